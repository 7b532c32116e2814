#include "collective/paired_plan.hpp"
#include "settings/counted.hpp"

#include "transport/communicator.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

namespace jali {

namespace {

bool inside(const Region& region, std::size_t bytes) {
    return region.offset <= bytes && region.bytes <= bytes - region.offset;
}

} // namespace

int PairedPlan::rank_of(int global) const {
    return static_cast<int>(std::upper_bound(base_.begin(), base_.end(), global) - base_.begin()) - 1;
}

void PairedPlan::check_structure() {
    if (ranks_ != composition_.ranks()) {
        throw CheckError(Fault::structure, -1, -1,
                         std::to_string(ranks_) + " schedules for a composition of " +
                             counted(composition_.ranks(), "rank"));
    }
    if (options_.hierarchy && options_.hierarchy->ranks() != ranks_) {
        throw CheckError(Fault::hierarchy, -1, -1,
                         "a hierarchy of " + counted(options_.hierarchy->ranks(), "rank") +
                             " for a plan of " + std::to_string(ranks_));
    }
    base_.assign(ranks_ + 1, 0);
    written_.assign(static_cast<std::size_t>(ranks_) * (buffers_ + 1), 0);
    for (int rank = 0; rank < ranks_; ++rank) {
        const Schedule& schedule = *of_ranks_[rank];
        base_[rank + 1] = base_[rank] + static_cast<int>(schedule.steps().size());
        const auto& buffers = schedule.buffers();
        if (static_cast<int>(buffers.size()) != buffers_ + 1) {
            fail(Fault::structure, rank, -1,
                 counted(buffers.size(), "buffer") + "; the composition has " + std::to_string(buffers_) +
                     ", and the last of the schedule is scratch");
        }
        for (int b = 0; b < buffers_; ++b) {
            const std::size_t expected = composition_.buffers()[b].count(rank) * size_;
            if (buffers[b].bytes != expected) {
                fail(Fault::structure, rank, -1,
                     "buffer " + say_buffer(b) + " has " + std::to_string(buffers[b].bytes) +
                         " bytes instead of " + std::to_string(expected));
            }
        }
        if (buffers.back().bytes > options_.scratch_limit) {
            fail(Fault::scratch, rank, -1,
                 std::to_string(buffers.back().bytes) + " bytes of scratch, more than the " +
                     std::to_string(options_.scratch_limit) + " allowed");
        }
        for (int s = 0; s < static_cast<int>(schedule.steps().size()); ++s) check_step(rank, s);
    }
}

void PairedPlan::check_region(int rank, int s, const Region& region, bool writes) {
    const auto& buffers = of_ranks_[rank]->buffers();
    if (region.buffer < 0 || region.buffer > buffers_) {
        fail(Fault::bounds, rank, s,
             "uses buffer " + std::to_string(region.buffer) + " of " + std::to_string(buffers_ + 1));
    }
    if (!inside(region, buffers[region.buffer].bytes)) {
        fail(Fault::bounds, rank, s,
             "uses bytes " + std::to_string(region.offset) + " to " +
                 std::to_string(region.offset + region.bytes) + " of " + say_buffer(region.buffer) +
                 ", which has " + std::to_string(buffers[region.buffer].bytes));
    }
    if (writes && region.bytes > 0) written_[rank * (buffers_ + 1) + region.buffer] = 1;
}

void PairedPlan::check_message(int rank, int s, int peer, int tag, int library) {
    if (peer < 0 || peer >= ranks_ || peer == rank) {
        fail(Fault::message, rank, s,
             "its peer is rank " + std::to_string(peer) + "; there are " + counted(ranks_, "rank") +
                 ", and none sends to itself");
    }
    if (tag < 0 || tag > max_tag) {
        fail(Fault::message, rank, s,
             "tag " + std::to_string(tag) + " is not in 0 to " + std::to_string(max_tag));
    }
    const auto& libraries = of_ranks_[rank]->libraries();
    if (library < 0 || library >= static_cast<int>(libraries.size())) {
        fail(Fault::structure, rank, s,
             "library " + std::to_string(library) + " of " + std::to_string(libraries.size()));
    }
    const int level = step(rank, s).mark.level;
    if (!options_.hierarchy) return;
    const Hierarchy& hierarchy = *options_.hierarchy;
    const int here = hierarchy.position_of(rank), there = hierarchy.position_of(peer);
    const int crossed = hierarchy.level_between(here, there);
    if (level != crossed) {
        fail(Fault::hierarchy, rank, s,
             "a message between ranks " + std::to_string(rank) + " and " + std::to_string(peer) +
                 " crosses level " + std::to_string(crossed) + " of the hierarchy " + hierarchy.describe() +
                 ", but is marked with level " + std::to_string(level));
    }
}

void PairedPlan::check_step(int rank, int s) {
    const Step& here = step(rank, s);
    if (here.parts.size() != 1 || std::holds_alternative<Kernel>(here.action))
        fail(Fault::structure, rank, s, "a kernel or a step in parts: nothing of a collective");
    for (const Port& need : here.parts[0].needs) {
        if (need.step < 0 || need.step >= static_cast<int>(of_ranks_[rank]->steps().size()) || need.part != 0)
            fail(Fault::structure, rank, s,
                 "needs step " + std::to_string(need.step) + ", which does not exist");
    }
    if (const auto* a = std::get_if<Receive>(&here.action)) {
        check_region(rank, s, a->into, true);
        check_message(rank, s, a->from, a->tag, a->library);
    } else if (const auto* a = std::get_if<Send>(&here.action)) {
        check_region(rank, s, a->from, false);
        check_message(rank, s, a->to, a->tag, a->library);
    } else if (const auto* a = std::get_if<Copy>(&here.action)) {
        for (const CopyRows& rows : a->rows) {
            check_region(rank, s, rows.from, false);
            check_region(rank, s, rows.to, true);
            check_rows(rank, s, rows);
        }
        check_rows_apart(rank, s);
    } else if (const auto* a = std::get_if<Reduce>(&here.action)) {
        if (a->how.type != composition_.type()) {
            fail(Fault::contribution, rank, s,
                 "combines elements of type " + std::string(name_of(a->how.type)) +
                     "; the composition is of " + std::string(name_of(composition_.type())));
        }
        if (a->how.divide_by < 1)
            fail(Fault::contribution, rank, s, "divides by " + std::to_string(a->how.divide_by));
        for (const ReduceRow& row : a->rows) {
            check_region(rank, s, row.into, true);
            if (row.from.empty())
                fail(Fault::contribution, rank, s, "combines nothing into " + say_buffer(row.into.buffer));
            if (row.into.bytes % size_ != 0) {
                fail(Fault::bounds, rank, s,
                     std::to_string(row.into.bytes) + " bytes are no whole number of elements of " +
                         std::to_string(size_) + " bytes");
            }
            for (const Region& from : row.from) {
                check_region(rank, s, from, false);
                if (from.bytes != row.into.bytes) {
                    fail(Fault::bounds, rank, s,
                         "combines " + std::to_string(from.bytes) + " bytes of " + say_buffer(from.buffer) +
                             " into " + std::to_string(row.into.bytes));
                }
            }
        }
        check_rows_apart(rank, s);
    }
}

void PairedPlan::check_rows(int rank, int s, const CopyRows& copy) const {
    if (!copy.rows || copy.row_bytes == 0) {
        if (copy.from.bytes < copy.to.bytes) {
            fail(Fault::bounds, rank, s,
                 "copies " + std::to_string(copy.to.bytes) + " bytes out of " +
                     std::to_string(copy.from.bytes));
        }
        return;
    }
    const std::size_t count = copy.to.bytes / copy.row_bytes;
    if (count * copy.row_bytes != copy.to.bytes || copy.first_row + count > copy.rows->size()) {
        fail(Fault::bounds, rank, s,
             std::to_string(copy.to.bytes) + " bytes are no rows of " + std::to_string(copy.row_bytes) +
                 " bytes, or more than are listed (" + std::to_string(copy.rows->size()) + ")");
    }
    for (std::size_t k = 0; k < count; ++k) {
        const std::int64_t row = (*copy.rows)[copy.first_row + k];
        if (row < 0 || (row + 1) * copy.row_bytes > copy.from.bytes) {
            fail(Fault::bounds, rank, s,
                 "row " + std::to_string(row) + " lies outside the " + std::to_string(copy.from.bytes) +
                     " bytes it is gathered from");
        }
    }
}

// Rows of one step may run in any order: none writes what another reads or writes. A reduction may write
// onto one of its own sources, exactly.
void PairedPlan::check_rows_apart(int rank, int s) {
    struct Use {
        Region where;
        std::size_t row;
    };
    std::vector<Use> writes, reads;
    bool own_source = false;
    if (const auto* a = std::get_if<Copy>(&step(rank, s).action)) {
        for (std::size_t k = 0; k < a->rows.size(); ++k) {
            writes.push_back({a->rows[k].to, k});
            for_runs(a->rows[k], [&](std::size_t from, std::size_t, std::size_t bytes) {
                reads.push_back({{a->rows[k].from.buffer, from, bytes}, k});
            });
        }
    } else if (const auto* a = std::get_if<Reduce>(&step(rank, s).action)) {
        own_source = true;
        for (std::size_t k = 0; k < a->rows.size(); ++k) {
            writes.push_back({a->rows[k].into, k});
            for (const Region& from : a->rows[k].from) reads.push_back({from, k});
        }
    }
    auto before = [](const Use& a, const Use& b) {
        return std::tie(a.where.buffer, a.where.offset) < std::tie(b.where.buffer, b.where.offset);
    };
    std::erase_if(writes, [](const Use& use) { return use.where.bytes == 0; });
    std::sort(writes.begin(), writes.end(), before);
    auto clash = [&](const Region& where) {
        fail(Fault::race, rank, s,
             "one of its rows writes what another reads or writes: " +
                 say_place(where.buffer, where.offset, where.offset + where.bytes));
    };
    for (std::size_t k = 1; k < writes.size(); ++k) {
        const Region &left = writes[k - 1].where, &right = writes[k].where;
        if (left.buffer == right.buffer && left.offset + left.bytes > right.offset) clash(right);
    }
    for (const Use& read : reads) {
        if (read.where.bytes == 0) continue;
        auto hit = std::upper_bound(writes.begin(), writes.end(), read, before);
        if (hit != writes.begin()) --hit;
        for (; hit != writes.end() && hit->where.buffer <= read.where.buffer; ++hit) {
            const Region& w = hit->where;
            if (w.buffer != read.where.buffer || w.offset + w.bytes <= read.where.offset) continue;
            if (w.offset >= read.where.offset + read.where.bytes) break;
            const bool itself = own_source && hit->row == read.row && w.offset == read.where.offset;
            if (!itself) clash(w);
        }
    }
}

void PairedPlan::pair_messages() {
    total_ = base_[ranks_];
    peer_.assign(total_, -1);
    struct Message {
        std::uint64_t envelope; // from, to, tag
        int order, global;
        bool operator<(const Message& other) const {
            return std::tie(envelope, order) < std::tie(other.envelope, other.order);
        }
    };
    std::vector<Message> sends, receives;
    auto envelope = [](int from, int to, int tag) {
        return static_cast<std::uint64_t>(from) << 40 | static_cast<std::uint64_t>(to) << 16 |
               static_cast<std::uint64_t>(tag);
    };
    for (int rank = 0; rank < ranks_; ++rank) {
        const auto order = local_order(rank);
        for (int k = 0; k < static_cast<int>(order.size()); ++k) {
            const int s = order[k];
            const auto& action = step(rank, s).action;
            if (const auto* a = std::get_if<Send>(&action))
                sends.push_back({envelope(rank, a->to, a->tag), k, base_[rank] + s});
            else if (const auto* a = std::get_if<Receive>(&action))
                receives.push_back({envelope(a->from, rank, a->tag), k, base_[rank] + s});
        }
    }
    std::sort(sends.begin(), sends.end());
    std::sort(receives.begin(), receives.end());
    for (std::size_t k = 0; k < sends.size() || k < receives.size(); ++k) {
        const bool unmet_send =
            k < sends.size() && (k == receives.size() || sends[k].envelope < receives[k].envelope);
        const bool unmet_receive =
            k < receives.size() && (k == sends.size() || receives[k].envelope < sends[k].envelope);
        if (unmet_send || unmet_receive) {
            const int global = (unmet_send ? sends : receives)[k].global;
            const int rank = rank_of(global), s = global - base_[rank];
            const auto& action = step(rank, s).action;
            if (const auto* a = std::get_if<Send>(&action)) {
                fail(Fault::message, rank, s,
                     "sends " + std::to_string(a->from.bytes) + " bytes to rank " + std::to_string(a->to) +
                         " with tag " + std::to_string(a->tag) + ", which does not receive them");
            }
            const auto& a = std::get<Receive>(action);
            fail(Fault::message, rank, s,
                 "waits for " + std::to_string(a.into.bytes) + " bytes from rank " + std::to_string(a.from) +
                     " with tag " + std::to_string(a.tag) + ", which does not send them");
        }
        const int from = rank_of(sends[k].global), to = rank_of(receives[k].global);
        const int s = sends[k].global - base_[from], r = receives[k].global - base_[to];
        const auto& send = std::get<Send>(step(from, s).action);
        const auto& receive = std::get<Receive>(step(to, r).action);
        if (send.from.bytes != receive.into.bytes) {
            fail(Fault::message, to, r,
                 "expects " + std::to_string(receive.into.bytes) + " bytes; " + say_step(from, s) +
                     " sends " + std::to_string(send.from.bytes));
        }
        const auto& sent_by = of_ranks_[from]->libraries()[send.library];
        const auto& taken_by = of_ranks_[to]->libraries()[receive.library];
        if (sent_by != taken_by) {
            fail(Fault::message, to, r,
                 "receives through library '" + taken_by + "' what " + say_step(from, s) +
                     " sends through '" + sent_by + "'");
        }
        peer_[sends[k].global] = receives[k].global;
        peer_[receives[k].global] = sends[k].global;
        if (k > 0 && sends[k].envelope == sends[k - 1].envelope) {
            envelope_orders_.push_back({sends[k - 1].global, sends[k].global});
            envelope_orders_.push_back({receives[k - 1].global, receives[k].global});
        }
    }
}

// The steps of a rank in an order that respects its needs; the order of the schedule if that one does.
std::vector<int> PairedPlan::local_order(int rank) const {
    const auto& steps = of_ranks_[rank]->steps();
    const int n = static_cast<int>(steps.size());
    std::vector<int> order(n);
    bool backwards = true;
    for (int s = 0; s < n; ++s) {
        order[s] = s;
        for (const Port& need : steps[s].parts[0].needs) backwards = backwards && need.step < s;
    }
    if (backwards) return order;
    std::vector<int> open(n);
    std::vector<std::vector<int>> next(n);
    for (int s = 0; s < n; ++s) {
        for (const Port& need : steps[s].parts[0].needs) {
            next[need.step].push_back(s);
            ++open[s];
        }
    }
    std::priority_queue<int, std::vector<int>, std::greater<>> ready;
    for (int s = 0; s < n; ++s) {
        if (open[s] == 0) ready.push(s);
    }
    order.clear();
    while (!ready.empty()) {
        const int s = ready.top();
        ready.pop();
        order.push_back(s);
        for (int later : next[s]) {
            if (--open[later] == 0) ready.push(later);
        }
    }
    for (int s = 0; s < n && static_cast<int>(order.size()) < n; ++s) {
        if (open[s] > 0) fail(Fault::deadlock, rank, s, "waits for itself through a cycle of needs");
    }
    return order;
}

// Per step of the rank, a set of bits: the steps that have ended when it starts, by the rank's own needs.
std::vector<std::uint64_t> PairedPlan::closure(int rank) const {
    const int n = base_[rank + 1] - base_[rank];
    const std::size_t words = (n + 63) / 64;
    std::vector<std::uint64_t> before(n * words, 0);
    for (int s : local_order(rank)) {
        std::uint64_t* mine = before.data() + s * words;
        for (const Port& need : step(rank, s).parts[0].needs) {
            if (mine[need.step / 64] >> (need.step % 64) & 1) continue;
            const std::uint64_t* theirs = before.data() + need.step * words;
            for (std::size_t w = 0; w < words; ++w) mine[w] |= theirs[w];
            mine[need.step / 64] |= std::uint64_t{1} << (need.step % 64);
        }
    }
    return before;
}

} // namespace jali
