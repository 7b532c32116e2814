#include "schedule/schedule.hpp"
#include "schedule/graph.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace jali {

namespace {

template <class... F>
struct Overloaded : F... {
    using F::operator()...;
};

// The accesses of one part, spec by spec: within a part, later specs follow earlier ones.
struct Access {
    std::span<const Region> reads;
    std::span<const Region> writes;
};

template <class Visit>
void for_each_access(const Step& step, int part, Visit&& visit) {
    const auto one = [](const Region& region) { return std::span(&region, 1); };
    std::visit(Overloaded{
                   // The bytes of a message belong to it until it ends.
                   [&](const Receive& a) { visit(Access{{}, one(a.into)}); },
                   [&](const Send& a) { visit(Access{one(a.from), {}}); },
                   [](const Wait&) {},
                   [](const Signal&) {},
                   [&](const LibraryCollective& a) { visit(Access{a.reads, a.writes}); },
                   [&](const Copy& a) {
                       for (const auto& spec : a.specs) visit(Access{one(spec.from), one(spec.to)});
                   },
                   [&](const Reduce& a) {
                       for (const auto& spec : a.specs) visit(Access{spec.from, one(spec.into)});
                   },
                   [&](const Kernel& a) { visit(Access{a.reads[part], a.writes[part]}); },
               },
               step.action);
}

bool overlap(const Region& a, const Region& b) {
    return a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

bool same(const Region& a, const Region& b) {
    return a.buffer == b.buffer && a.offset == b.offset && a.bytes == b.bytes;
}

// The last accesses to the bytes from here to the next entry, in some order of the parts: numbers in that
// order.
struct Touched {
    int writer = -1;
    std::vector<int> readers; // since then
};
using History = std::map<std::size_t, Touched>; // of one buffer

// Makes an entry begin at `offset`.
History::iterator cut(History& history, std::size_t offset) {
    auto after = history.upper_bound(offset);
    const auto at = std::prev(after);
    return at->first == offset ? at : history.emplace_hint(after, offset, at->second);
}

// That part `later` follows part `earlier` has to be shown; both touch `buffer`, and one of them writes.
struct Claim {
    int earlier, later, buffer;
    bool operator<(const Claim& other) const {
        return std::tie(earlier, later) < std::tie(other.earlier, other.later);
    }
    bool operator==(const Claim& other) const { return earlier == other.earlier && later == other.later; }
};

// Every step by itself.
class Form {
  public:
    explicit Form(const Schedule& schedule) : schedule_(schedule) {}

    void check() const {
        for (std::size_t s = 0; s < schedule_.steps().size(); ++s) check_step(static_cast<int>(s));
    }

  protected:
    std::string name(const Port& port) const { return quoted_name(schedule_, port); }
    [[noreturn]] void refuse(Fault kind, const Port& port, const std::string& what) const {
        throw ScheduleError("step " + name(port) + " " + what, kind, -1, port.step);
    }
    const Schedule& schedule_;

  private:
    void check_region(const Region& r, const Port& port) const {
        const auto& buffers = schedule_.buffers();
        const bool exists = r.buffer >= 0 && r.buffer < static_cast<int>(buffers.size());
        if (exists && r.offset <= buffers[r.buffer].bytes && r.bytes <= buffers[r.buffer].bytes - r.offset)
            return;
        refuse(Fault::bounds, port,
               "uses bytes " + std::to_string(r.offset) + " to " + std::to_string(r.offset + r.bytes) +
                   " of " +
                   (exists ? "buffer '" + buffers[r.buffer].name + "', which has " +
                                 std::to_string(buffers[r.buffer].bytes)
                           : "buffer " + std::to_string(r.buffer) + ", which does not exist"));
    }

    void check_envelope(const Envelope& envelope, const Port& port) const {
        const auto [sends, signals, peer, tag, library] = envelope;
        if (peer < 0) refuse(Fault::message, port, "has to do with rank " + std::to_string(peer));
        if (tag < 0) refuse(Fault::message, port, "has tag " + std::to_string(tag));
        check_library(library, port);
    }

    void check_library(int library, const Port& port) const {
        if (library < 0 || library >= static_cast<int>(schedule_.libraries().size()))
            refuse(Fault::structure, port,
                   "goes by library " + std::to_string(library) + " of " +
                       std::to_string(schedule_.libraries().size()));
    }

    void check_copy(const CopySpec& spec, const Port& port) const {
        const auto wrong = [&](const std::string& what, Fault kind = Fault::bounds) {
            refuse(kind, port, "copies " + what);
        };
        if (spec.to.bytes == 0) return;
        if (overlap(spec.from, spec.to)) wrong("bytes onto themselves", Fault::race);
        if (!spec.rows) {
            if (spec.from.bytes < spec.to.bytes)
                wrong(std::to_string(spec.to.bytes) + " bytes out of " + std::to_string(spec.from.bytes));
            return;
        }
        if (spec.row_bytes == 0 || spec.to.bytes % spec.row_bytes != 0)
            wrong("rows of " + std::to_string(spec.row_bytes) + " bytes to " + std::to_string(spec.to.bytes));
        const std::size_t count = spec.to.bytes / spec.row_bytes;
        if (spec.first_row + count > spec.rows->size())
            wrong("rows " + std::to_string(spec.first_row) + " to " + std::to_string(spec.first_row + count) +
                  " of a list of " + std::to_string(spec.rows->size()));
        for (std::size_t k = 0; k < count; ++k) {
            const std::int64_t number = (*spec.rows)[spec.first_row + k];
            if (number < 0 || (static_cast<std::size_t>(number) + 1) * spec.row_bytes > spec.from.bytes)
                wrong("row " + std::to_string(number) + " of " +
                      std::to_string(spec.from.bytes / spec.row_bytes));
        }
    }

    void check_reduce(const Reduce& step, const Port& port) const {
        try {
            check_reduction(step.how);
        } catch (const std::invalid_argument& error) {
            throw ScheduleError("step " + name(port) + ": " + error.what(), Fault::contribution, -1,
                                port.step);
        }
        const std::size_t element = size_of(step.how.type);
        for (const auto& spec : step.specs) {
            if (spec.from.empty()) refuse(Fault::contribution, port, "reduces nothing");
            if (spec.into.bytes % element != 0)
                refuse(Fault::bounds, port,
                       "reduces " + std::to_string(spec.into.bytes) +
                           " bytes, which are no whole elements of " + std::to_string(element));
            for (const Region& from : spec.from) {
                if (from.bytes != spec.into.bytes)
                    refuse(Fault::bounds, port,
                           "reduces " + std::to_string(from.bytes) + " bytes into " +
                               std::to_string(spec.into.bytes));
                if (overlap(from, spec.into) && !same(from, spec.into))
                    refuse(Fault::race, port,
                           "writes over a part of what it reduces: into may only be one of the sources");
            }
        }
    }

    void check_step(int number) const {
        const Step& step = schedule_.steps()[number];
        const Port port{number, 0};
        if (step.parts.empty())
            throw ScheduleError("step " + std::to_string(number) + ", '" + step.name + "', has no part");
        const auto* kernel = std::get_if<Kernel>(&step.action);
        if (kernel &&
            (kernel->reads.size() != step.parts.size() || kernel->writes.size() != step.parts.size()))
            refuse(Fault::structure, port, "does not say what each of its parts reads and writes");
        for (std::size_t p = 0; p < step.parts.size(); ++p) {
            for_each_access(step, static_cast<int>(p), [&](const Access& access) {
                for (const auto& regions : {access.reads, access.writes})
                    for (const Region& r : regions) check_region(r, {number, static_cast<int>(p)});
                for (const Region& r : access.reads) {
                    const Buffer& buffer = schedule_.buffers()[r.buffer];
                    if (buffer.rank >= 0)
                        refuse(Fault::structure, {number, static_cast<int>(p)},
                               "reads buffer '" + buffer.name + "' of rank " + std::to_string(buffer.rank) +
                                   ": memory of others is only written");
                }
            });
        }
        if (const auto envelope = envelope_of(step)) check_envelope(*envelope, port);
        if (const auto* a = std::get_if<LibraryCollective>(&step.action)) check_library(a->library, port);
        if (const auto* a = std::get_if<Copy>(&step.action))
            for (const auto& spec : a->specs) check_copy(spec, port);
        if (const auto* a = std::get_if<Reduce>(&step.action)) check_reduce(*a, port);
    }
};

class Checker : public Form {
  public:
    explicit Checker(const Schedule& schedule) : Form(schedule), graph_(schedule) {}

    void run() {
        check();
        collect_claims();
        prove_claims();
    }

  private:
    std::string name_at(int index) const { return name(graph_.port(graph_.order()[index])); }

    // Follows one order in which the parts may run and records the last accesses to all bytes. If every
    // reader follows the last writer in the graph, and every writer the last writer and the readers since,
    // all conflicting parts are ordered: others by transitivity.
    void collect_claims() {
        const auto& buffers = schedule_.buffers();
        std::vector<History> history(buffers.size());
        for (auto& of_buffer : history) of_buffer[0];
        const int n = graph_.size();
        for (int i = 0; i < n; ++i) {
            const Port port = graph_.port(graph_.order()[i]);
            auto claim = [&](int earlier, int buffer) {
                if (earlier >= 0 && earlier != i) claims_.push_back({earlier, i, buffer});
            };
            for_each_access(schedule_.steps()[port.step], port.part, [&](const Access& access) {
                for (const Region& r : access.reads) {
                    if (r.bytes == 0) continue;
                    auto& of_buffer = history[r.buffer];
                    const auto end = cut(of_buffer, r.offset + r.bytes);
                    for (auto at = cut(of_buffer, r.offset); at != end; ++at) {
                        Touched& touched = at->second;
                        if (touched.writer < 0 && !buffers[r.buffer].holds_data)
                            refuse(Fault::unwritten, port,
                                   "reads byte " + std::to_string(at->first) + " of buffer '" +
                                       buffers[r.buffer].name + "' before it is written");
                        claim(touched.writer, r.buffer);
                        if (touched.readers.empty() || touched.readers.back() != i)
                            touched.readers.push_back(i);
                    }
                }
                for (const Region& w : access.writes) {
                    if (w.bytes == 0) continue;
                    auto& of_buffer = history[w.buffer];
                    const auto end = cut(of_buffer, w.offset + w.bytes);
                    const auto begin = cut(of_buffer, w.offset);
                    for (auto at = begin; at != end; ++at) {
                        claim(at->second.writer, w.buffer);
                        for (int reader : at->second.readers) claim(reader, w.buffer);
                    }
                    begin->second = {i, {}};
                    of_buffer.erase(std::next(begin), end);
                }
            });
        }
        std::sort(claims_.begin(), claims_.end());
        claims_.erase(std::unique(claims_.begin(), claims_.end()), claims_.end());
    }

    // Which parts follow which, for `width` earlier parts at a time: a row of bits per part, propagated along
    // the order. Ends of parts only: that messages of an envelope start in turn orders no memory.
    void prove_claims() const {
        constexpr int width = 4096;
        const int n = graph_.size();
        std::vector<int> index(n);
        for (int i = 0; i < n; ++i) index[graph_.order()[i]] = i;
        auto claim = claims_.begin();
        std::vector<std::uint64_t> before;
        while (claim != claims_.end()) {
            const int base = claim->earlier; // claims are sorted
            const int columns = std::min(width, n - base), used = (columns + 63) / 64;
            before.assign(static_cast<std::size_t>(n - base) * used, 0);
            for (int i = base; i < n; ++i) {
                const std::uint64_t* mine = &before[static_cast<std::size_t>(i - base) * used];
                for (int follower : graph_.followers(graph_.order()[i])) {
                    std::uint64_t* theirs = &before[static_cast<std::size_t>(index[follower] - base) * used];
                    for (int w = 0; w < used; ++w) theirs[w] |= mine[w];
                    if (i - base < columns) theirs[(i - base) / 64] |= std::uint64_t{1} << ((i - base) % 64);
                }
            }
            for (; claim != claims_.end() && claim->earlier < base + columns; ++claim) {
                const int column = claim->earlier - base;
                if (before[static_cast<std::size_t>(claim->later - base) * used + column / 64] >>
                        (column % 64) &
                    1)
                    continue;
                throw ScheduleError("steps " + name_at(claim->earlier) + " and " + name_at(claim->later) +
                                    " may run in either order, and both use buffer '" +
                                    schedule_.buffers()[claim->buffer].name + "', which one of them writes");
            }
        }
    }

    Graph graph_;
    std::vector<Claim> claims_;
};

} // namespace

std::optional<Envelope> envelope_of(const Step& step) {
    if (const auto* a = std::get_if<Receive>(&step.action))
        return Envelope{false, false, a->from, a->tag, a->library};
    if (const auto* a = std::get_if<Wait>(&step.action))
        return Envelope{false, true, a->from, a->tag, a->library};
    if (const auto* a = std::get_if<Send>(&step.action))
        return Envelope{true, false, a->to, a->tag, a->library};
    if (const auto* a = std::get_if<Signal>(&step.action))
        return Envelope{true, true, a->to, a->tag, a->library};
    return std::nullopt;
}

Region region_of_message(const Step& step) {
    if (const auto* a = std::get_if<Receive>(&step.action)) return a->into;
    if (const auto* a = std::get_if<Send>(&step.action)) return a->from;
    return {};
}

int Schedule::add_buffer(std::string name, std::size_t bytes, bool holds_data, int rank) {
    buffers_.push_back({std::move(name), bytes, holds_data, rank});
    return static_cast<int>(buffers_.size()) - 1;
}

int Schedule::add_kernel(std::string name, Kernel kernel, std::vector<Part> parts) {
    steps_.push_back({std::move(name), std::move(kernel), std::move(parts), {}});
    return static_cast<int>(steps_.size()) - 1;
}

std::vector<Port> Schedule::order() const {
    const Graph graph(*this);
    std::vector<Port> ports;
    ports.reserve(graph.size());
    for (int k : graph.order()) ports.push_back(graph.port(k));
    return ports;
}

void Schedule::check_form() const {
    Form(*this).check();
}

void Schedule::check() const {
    Checker(*this).run();
}

std::string_view name_of(Fault fault) {
    constexpr std::string_view names[faults] = {"structure", "bounds",    "message",     "deadlock",
                                                "race",      "unwritten", "overwritten", "contribution",
                                                "scratch",   "hierarchy"};
    return names[static_cast<int>(fault)];
}

// No streams: where another library of the process brings streams of its own, they may not work.
std::string Schedule::describe() const {
    std::string text;
    auto number = [](auto n) { return std::to_string(n); };
    auto region = [&](const Region& r) {
        const int rank = buffers_[r.buffer].rank;
        return (rank < 0 ? std::string() : "rank " + number(rank) + "'s ") + buffers_[r.buffer].name + '[' +
               number(r.offset) + ':' + number(r.offset + r.bytes) + ']';
    };
    auto by = [&](int library) {
        return libraries_[library].empty() ? std::string() : ", by " + libraries_[library];
    };
    auto name = [&](const Port& port) {
        return number(port.step) +
               (steps_[port.step].parts.size() > 1 ? '.' + number(port.part) : std::string());
    };
    auto action = Overloaded{
        [&](const Receive& a) {
            return "receive " + number(a.into.bytes) + " B from rank " + number(a.from) + ", tag " +
                   number(a.tag) + by(a.library) + ", into " + region(a.into);
        },
        [&](const Send& a) {
            return "send " + number(a.from.bytes) + " B to rank " + number(a.to) + ", tag " + number(a.tag) +
                   by(a.library) + ", from " + region(a.from);
        },
        [&](const Wait& a) {
            return "wait for rank " + number(a.from) + ", tag " + number(a.tag) + by(a.library);
        },
        [&](const Signal& a) {
            return "signal rank " + number(a.to) + ", tag " + number(a.tag) + by(a.library);
        },
        [&](const LibraryCollective& a) {
            std::string words = "a collective" + by(a.library);
            for (const Region& r : a.reads) words += ", reads " + region(r);
            for (const Region& w : a.writes) words += ", writes " + region(w);
            return words;
        },
        [&](const Copy& a) {
            const bool puts = !a.specs.empty() && buffers_[a.specs[0].to.buffer].rank >= 0;
            std::string words = puts ? "put" : "copy";
            for (const auto& spec : a.specs)
                words += ' ' + number(spec.row_bytes ? spec.to.bytes / spec.row_bytes : 0) + 'x' +
                         number(spec.row_bytes) + " B " + buffers_[spec.from.buffer].name + " -> " +
                         region(spec.to);
            return words;
        },
        [&](const Reduce& a) {
            std::string words =
                std::string(name_of(a.how.operation)) + " of " + std::string(name_of(a.how.type));
            for (const auto& spec : a.specs) {
                words += ' ';
                for (std::size_t k = 0; k < spec.from.size(); ++k)
                    words += (k ? " + " : "") + region(spec.from[k]);
                words += " -> " + region(spec.into);
            }
            return words;
        },
        [&](const Kernel&) { return std::string("compute"); },
    };
    for (const Port& port : order()) {
        const Step& step = steps_[port.step];
        const Part& part = step.parts[port.part];
        text += name(port) + "  " + step.name + (part.name.empty() ? "" : "/") + part.name + ": " +
                std::visit(action, step.action);
        for (std::size_t k = 0; k < part.needs.size(); ++k)
            text += (k ? ", " : "; after ") + name(part.needs[k]);
        text += '\n';
    }
    return text;
}

void check_messages(std::span<const Schedule* const> of_ranks) {
    using Line =
        std::tuple<int, int, int, std::string, bool>; // from, to, tag, library, signal: sizes in order
    std::map<Line, std::vector<std::size_t>> sent, expected;
    const int ranks = static_cast<int>(of_ranks.size());
    for (int here = 0; here < ranks; ++here) {
        const auto& libraries = of_ranks[here]->libraries();
        for (const Step& step : of_ranks[here]->steps()) {
            const auto envelope = envelope_of(step);
            if (!envelope) continue;
            const auto [sends, signals, peer, tag, library] = *envelope;
            if (peer < 0 || peer >= ranks)
                throw ScheduleError("message '" + step.name + "' of rank " + std::to_string(here) +
                                    " is for rank " + std::to_string(peer) + " of " + std::to_string(ranks));
            const int from = sends ? here : peer, to = sends ? peer : here;
            (sends ? sent : expected)[{from, to, tag, libraries.at(library), signals}].push_back(
                region_of_message(step).bytes);
        }
    }
    for (const auto* side : {&sent, &expected}) {
        for (const auto& [line, sizes] : *side) {
            const auto& other = (side == &sent ? expected : sent)[line];
            if (sizes == other) continue;
            const auto& [from, to, tag, library, signals] = line;
            if (signals)
                throw ScheduleError("signals from rank " + std::to_string(from) + " to rank " +
                                    std::to_string(to) + ", tag " + std::to_string(tag) + ": " +
                                    std::to_string(sent[line].size()) + ", and " +
                                    std::to_string(expected[line].size()) + " waits for them");
            auto list = [](const std::vector<std::size_t>& bytes) {
                std::string text;
                for (auto b : bytes) text += (text.empty() ? "" : ", ") + std::to_string(b);
                return text.empty() ? std::string("nothing") : text + " B";
            };
            throw ScheduleError("messages from rank " + std::to_string(from) + " to rank " +
                                std::to_string(to) + ", tag " + std::to_string(tag) +
                                (library.empty() ? "" : ", by " + library) + ": " + list(sent[line]) +
                                " sent, " + list(expected[line]) + " received");
        }
    }
}

} // namespace jali
