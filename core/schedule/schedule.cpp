#include "schedule/schedule.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

namespace jali {

namespace {

template <class... F>
struct Overloaded : F... {
    using F::operator()...;
};

// Start messages, feed the other ranks, compute, and only then wait; for our own sends last of all.
int urgency(const Schedule& schedule, const Port& port) {
    return std::visit(
        Overloaded{
            [](const Receive&) { return 0; },
            [](const Send&) { return 1; },
            [](const Copy&) { return 2; },
            [](const Kernel&) { return 3; },
            [&](const Wait& a) {
                const bool exists = a.step >= 0 && a.step < static_cast<int>(schedule.steps().size());
                return exists && std::holds_alternative<Send>(schedule.steps()[a.step].action) ? 5 : 4;
            },
        },
        schedule.steps()[port.step].action);
}

// What a part runs after: its needs, and the part before it.
std::vector<Port> needs_of(const Schedule& schedule, const Port& port) {
    std::vector<Port> needs = schedule.steps()[port.step].parts[port.part].needs;
    if (port.part > 0) needs.push_back({port.step, port.part - 1});
    return needs;
}

struct Access {
    std::vector<Region> reads, writes;
};

Access access_of(const Schedule& schedule, const Port& port) {
    const Step& step = schedule.steps()[port.step];
    Access access;
    std::visit(
        Overloaded{
            // The bytes of a message are there once it was waited for; until then nobody else may touch them.
            [&](const Receive& a) { access.writes.push_back(a.into); },
            [&](const Send& a) { access.reads.push_back(a.from); },
            [&](const Wait&) {},
            [&](const Copy& a) {
                for (const auto& rows : a.rows) {
                    access.reads.push_back(rows.from);
                    access.writes.push_back(rows.to);
                }
            },
            [&](const Kernel& a) {
                if (port.part < static_cast<int>(a.reads.size())) access.reads = a.reads[port.part];
                if (port.part < static_cast<int>(a.writes.size())) access.writes = a.writes[port.part];
            },
        },
        step.action);
    return access;
}

bool overlap(const Region& a, const Region& b) {
    return a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

std::string name_of(const Schedule& schedule, const Port& port) {
    const Step& step = schedule.steps()[port.step];
    const auto& part = step.parts[port.part].name;
    return "'" + step.name + (part.empty() ? "" : "/" + part) + "'";
}

} // namespace

int Schedule::add_buffer(std::string name, std::size_t bytes, bool holds_data) {
    buffers_.push_back({std::move(name), bytes, holds_data});
    return static_cast<int>(buffers_.size()) - 1;
}

int Schedule::add_kernel(std::string name, Kernel kernel, std::vector<Part> parts) {
    steps_.push_back({std::move(name), std::move(kernel), std::move(parts)});
    return static_cast<int>(steps_.size()) - 1;
}

std::vector<Port> Schedule::order() const {
    std::vector<Port> all;
    std::vector<int> first(steps_.size());
    for (std::size_t s = 0; s < steps_.size(); ++s) {
        first[s] = static_cast<int>(all.size());
        for (std::size_t p = 0; p < steps_[s].parts.size(); ++p)
            all.push_back({static_cast<int>(s), static_cast<int>(p)});
    }
    std::vector<int> open(all.size(), 0);
    std::vector<std::vector<int>> next(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
        for (const Port& need : needs_of(*this, all[i])) {
            if (need.step < 0 || need.step >= static_cast<int>(steps_.size()) || need.part < 0 ||
                need.part >= static_cast<int>(steps_[need.step].parts.size())) {
                throw ScheduleError("step " + name_of(*this, all[i]) + " needs part " +
                                    std::to_string(need.part) + " of step " + std::to_string(need.step) +
                                    ", which does not exist");
            }
            next[first[need.step] + need.part].push_back(static_cast<int>(i));
            ++open[i];
        }
    }
    std::set<std::pair<int, int>> ready; // (urgency, index)
    auto offer = [&](int i) { ready.insert({urgency(*this, all[i]), i}); };
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (open[i] == 0) offer(static_cast<int>(i));
    }
    std::vector<Port> result;
    while (!ready.empty()) {
        const int i = ready.begin()->second;
        ready.erase(ready.begin());
        result.push_back(all[i]);
        for (int j : next[i]) {
            if (--open[j] == 0) offer(j);
        }
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (open[i] > 0)
            throw ScheduleError("step " + name_of(*this, all[i]) +
                                " waits for itself through a cycle of needs");
    }
    return result;
}

void Schedule::check() const {
    const auto ports = order();
    const std::size_t n = ports.size();
    std::map<std::pair<int, int>, std::size_t> index;
    for (std::size_t i = 0; i < n; ++i) index[{ports[i].step, ports[i].part}] = i;

    // before[i]: everything that certainly ran before i. A message step counts as ended at its wait.
    std::vector<std::vector<char>> before(n, std::vector<char>(n, 0));
    std::vector<std::size_t> end(n); // for messages: the wait that completes them
    std::map<int, int> waits;
    for (std::size_t i = 0; i < n; ++i) {
        end[i] = i;
        for (const Port& need : needs_of(*this, ports[i])) {
            const auto j = index[{need.step, need.part}];
            before[i][j] = 1;
            for (std::size_t k = 0; k < n; ++k) before[i][k] |= before[j][k];
        }
        if (const auto* wait = std::get_if<Wait>(&steps_[ports[i].step].action)) {
            if (wait->step < 0 || wait->step >= static_cast<int>(steps_.size()) ||
                !(std::holds_alternative<Receive>(steps_[wait->step].action) ||
                  std::holds_alternative<Send>(steps_[wait->step].action))) {
                throw ScheduleError("step " + name_of(*this, ports[i]) + " waits for step " +
                                    std::to_string(wait->step) + ", which is not a message");
            }
            ++waits[wait->step];
            const auto message = index[{wait->step, 0}];
            if (!before[i][message]) {
                throw ScheduleError("step " + name_of(*this, ports[i]) +
                                    " waits for a message that it does not follow");
            }
            end[message] = i;
        }
    }
    std::vector<Access> access;
    for (std::size_t i = 0; i < n; ++i) {
        access.push_back(access_of(*this, ports[i]));
        for (const auto* regions : {&access[i].reads, &access[i].writes}) {
            for (const Region& r : *regions) {
                if (r.buffer < 0 || r.buffer >= static_cast<int>(buffers_.size()) ||
                    r.offset + r.bytes > buffers_[r.buffer].bytes) {
                    throw ScheduleError("step " + name_of(*this, ports[i]) + " uses bytes " +
                                        std::to_string(r.offset) + " to " +
                                        std::to_string(r.offset + r.bytes) + " of " +
                                        (r.buffer < 0 || r.buffer >= static_cast<int>(buffers_.size())
                                             ? "a buffer that does not exist"
                                             : "buffer '" + buffers_[r.buffer].name + "', which has " +
                                                   std::to_string(buffers_[r.buffer].bytes)));
                }
            }
        }
        const auto& action = steps_[ports[i].step].action;
        if ((std::holds_alternative<Receive>(action) || std::holds_alternative<Send>(action)) &&
            waits[ports[i].step] != 1) {
            throw ScheduleError("message " + name_of(*this, ports[i]) + " is waited for " +
                                std::to_string(waits[ports[i].step]) + " times instead of once");
        }
    }
    auto follows = [&](std::size_t later, std::size_t earlier) {
        return before[later][end[earlier]] || later == end[earlier];
    };
    for (std::size_t i = 0; i < n; ++i) {
        for (const Region& read : access[i].reads) {
            if (buffers_[read.buffer].holds_data) continue;
            // Cover the region with what was certainly written before.
            std::vector<std::pair<std::size_t, std::size_t>> written;
            for (std::size_t j = 0; j < n; ++j) {
                if (!follows(i, j) || i == j) continue;
                for (const Region& w : access[j].writes) {
                    if (overlap(read, w)) written.push_back({w.offset, w.offset + w.bytes});
                }
            }
            std::sort(written.begin(), written.end());
            std::size_t covered = read.offset;
            for (const auto& [from, to] : written) {
                if (from <= covered) covered = std::max(covered, to);
            }
            if (covered < read.offset + read.bytes) {
                throw ScheduleError("step " + name_of(*this, ports[i]) + " reads byte " +
                                    std::to_string(covered) + " of buffer '" + buffers_[read.buffer].name +
                                    "' before it is written");
            }
        }
        for (std::size_t j = 0; j < n; ++j) {
            if (i == j || follows(i, j) || follows(j, i)) continue;
            for (const Region& w : access[i].writes) {
                for (const auto* others : {&access[j].reads, &access[j].writes}) {
                    for (const Region& other : *others) {
                        if (overlap(w, other)) {
                            throw ScheduleError("steps " + name_of(*this, ports[i]) + " and " +
                                                name_of(*this, ports[j]) +
                                                " may run in either order, and both use buffer '" +
                                                buffers_[w.buffer].name + "', which the first writes");
                        }
                    }
                }
            }
        }
    }
}

std::string Schedule::describe() const {
    std::ostringstream text;
    auto region = [&](const Region& r) {
        text << buffers_[r.buffer].name << '[' << r.offset << ':' << r.offset + r.bytes << ']';
    };
    auto name = [&](const Port& port) {
        text << port.step;
        if (steps_[port.step].parts.size() > 1) text << '.' << port.part;
    };
    for (const Port& port : order()) {
        const Step& step = steps_[port.step];
        const Part& part = step.parts[port.part];
        name(port);
        text << "  " << step.name << (part.name.empty() ? "" : "/") << part.name << ": ";
        std::visit(Overloaded{
                       [&](const Receive& a) {
                           text << "receive " << a.into.bytes << " B from rank " << a.from << ", tag "
                                << a.tag << ", into ";
                           region(a.into);
                       },
                       [&](const Send& a) {
                           text << "send " << a.from.bytes << " B to rank " << a.to << ", tag " << a.tag
                                << ", from ";
                           region(a.from);
                       },
                       [&](const Wait& a) { text << "wait for step " << a.step; },
                       [&](const Copy& a) {
                           text << "copy";
                           for (const auto& rows : a.rows) {
                               text << ' ' << (rows.row_bytes ? rows.to.bytes / rows.row_bytes : 0) << 'x'
                                    << rows.row_bytes << " B " << buffers_[rows.from.buffer].name << " -> ";
                               region(rows.to);
                           }
                       },
                       [&](const Kernel&) { text << "compute"; },
                   },
                   step.action);
        for (std::size_t k = 0; k < part.needs.size(); ++k) {
            text << (k ? ", " : "; after ");
            name(part.needs[k]);
        }
        text << '\n';
    }
    return text.str();
}

void check_messages(std::span<const Schedule* const> of_ranks) {
    // (from, to, tag) -> sizes in order
    using Lane = std::tuple<int, int, int>;
    std::map<Lane, std::vector<std::size_t>> sent, expected;
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
        const int here = static_cast<int>(rank);
        for (const Port& port : of_ranks[rank]->order()) {
            const auto& action = of_ranks[rank]->steps()[port.step].action;
            if (const auto* a = std::get_if<Send>(&action))
                sent[{here, a->to, a->tag}].push_back(a->from.bytes);
            if (const auto* a = std::get_if<Receive>(&action))
                expected[{a->from, here, a->tag}].push_back(a->into.bytes);
        }
    }
    for (const auto* side : {&sent, &expected}) {
        for (const auto& [lane, sizes] : *side) {
            const auto& other = (side == &sent ? expected : sent)[lane];
            if (sizes == other) continue;
            const auto& [from, to, tag] = lane;
            auto list = [](const std::vector<std::size_t>& bytes) {
                std::string text;
                for (auto b : bytes) text += (text.empty() ? "" : ", ") + std::to_string(b);
                return text.empty() ? std::string("nothing") : text + " B";
            };
            throw ScheduleError("messages from rank " + std::to_string(from) + " to rank " +
                                std::to_string(to) + ", tag " + std::to_string(tag) + ": " +
                                list(sent[lane]) + " sent, " + list(expected[lane]) + " received");
        }
    }
}

} // namespace jali
