#include "collective/checker.hpp"

#include "collective/evaluation.hpp"
#include "collective/paired_plan.hpp"
#include "schedule/symbolic.hpp"

#include <algorithm>
#include <optional>

namespace jali {

namespace {

using symbolic::Content;
using symbolic::Contents;
using symbolic::Range;
using symbolic::Ranges;
using symbolic::Source;
using symbolic::Symbol;

// Who touched a range since it was last written, and who wrote it: what a later access has to follow.
struct Touched {
    int writer = -1;  // step of the rank, -1: nobody yet
    int readers = -1; // a chain in Checker::readers_
    bool operator==(const Touched&) const = default;
};

struct Reader {
    int step, next;
};

// `earlier` has to end before `later` starts (both of one rank), since both use `where`.
struct Order {
    int earlier, later;
    Region where;
    bool first_writes, second_writes;
};

// Carries contents through the paired plan and compares them with the composition's.
class Checker : public PairedPlan {
  public:
    using PairedPlan::PairedPlan;

    void check() {
        check_structure();
        pair_messages();
        expect();
        std::optional<CheckError> wrong;
        try {
            follow();
            compare();
        } catch (const CheckError& error) {
            if (error.kind == Fault::deadlock) throw;
            wrong = error; // a race, if there is one, is the better explanation
        }
        check_orders();
        if (wrong) throw *wrong;
    }

  private:
    // What the composition says

    void expect() {
        Evaluation evaluation =
            evaluate(composition_, symbols_, options_.reproducible, [&](int rank, const Region& hole) {
                fail(Fault::structure, rank, -1,
                     "the composition reads " +
                         say_place(hole.buffer, hole.offset, hole.offset + hole.bytes) +
                         ", which it did not write and which is no input");
            });
        now_ = std::move(evaluation.before);
        expected_ = std::move(evaluation.after);
        may_write_ = std::move(evaluation.written);
    }

    // All steps, in an order in which a rendezvous transport could run them

    void follow() {
        // Node 2g is the start of step g, 2g + 1 its end.
        open_.assign(2 * static_cast<std::size_t>(total_), 0);
        position_.assign(2 * static_cast<std::size_t>(total_), -1);
        first_.assign(total_ + 1, 0);
        rank_.resize(total_);
        touched_.resize(now_.size());
        carried_.resize(total_);
        for (int rank = 0; rank < ranks_; ++rank) {
            for (int g = base_[rank]; g < base_[rank + 1]; ++g) {
                rank_[g] = rank;
                const auto& needs = step(rank, g - base_[rank]).parts[0].needs;
                open_[2 * g] = static_cast<int>(needs.size());
                open_[2 * g + 1] = peer_[g] >= 0 ? 2 : 1;
                for (const Port& need : needs) ++first_[base_[rank] + need.step + 1];
            }
        }
        for (int g = 0; g < total_; ++g) first_[g + 1] += first_[g];
        next_.resize(first_[total_]);
        auto at = first_;
        for (int g = 0; g < total_; ++g) {
            for (const Port& need : step(rank_[g], g - base_[rank_[g]]).parts[0].needs)
                next_[at[base_[rank_[g]] + need.step]++] = g;
        }
        std::vector<int> ready;
        for (int g = 0; g < total_; ++g) {
            if (open_[2 * g] == 0) ready.push_back(2 * g);
        }
        auto release = [&](int node) {
            if (--open_[node] == 0) ready.push_back(node);
        };
        int passed = 0;
        for (std::size_t k = 0; k < ready.size(); ++k) {
            const int node = ready[k], g = node / 2;
            position_[node] = passed++;
            if (node % 2 == 0) {
                begin(g);
                release(node + 1);
                if (peer_[g] >= 0) release(2 * peer_[g] + 1);
            } else {
                end(g);
                for (int j = first_[g]; j < first_[g + 1]; ++j) release(2 * next_[j]);
            }
        }
        if (passed < 2 * total_) report_deadlock();
    }

    void begin(int g) {
        const int rank = rank_[g], s = g - base_[rank];
        const auto& action = step(rank, s).action;
        if (const auto* a = std::get_if<Send>(&action)) {
            take(rank, s, a->from, carried_[g]);
        } else if (const auto* a = std::get_if<Copy>(&action)) {
            moved_.clear();
            for (const CopyRows& rows : a->rows) {
                for_runs(rows, [&](std::size_t from, std::size_t to, std::size_t bytes) {
                    moved_.emplace_back(Region{rows.to.buffer, to, bytes}, Source{});
                    take(rank, s, {rows.from.buffer, from, bytes}, moved_.back().second);
                });
            }
            for (const auto& [to, source] : moved_) put(rank, s, to, source);
        } else if (const auto* a = std::get_if<Reduce>(&action)) {
            for (const ReduceRow& row : a->rows) {
                taken_.resize(row.from.size());
                for (std::size_t k = 0; k < row.from.size(); ++k) {
                    take(rank, s, row.from[k], taken_[k]);
                    check_aligned(rank, s, row.from[k], taken_[k]);
                }
                symbols_.combine(symbols_.operation(a->how, options_.reproducible), a->how.divide_by, taken_,
                                 row.into.bytes, combined_);
                put(rank, s, row.into, combined_);
            }
        }
    }

    void end(int g) {
        const int rank = rank_[g], s = g - base_[rank];
        if (const auto* a = std::get_if<Receive>(&step(rank, s).action)) {
            put(rank, s, a->into, carried_[peer_[g]]);
            carried_[peer_[g]] = {};
        }
    }

    void check_aligned(int rank, int s, const Region& region, const Source& source) const {
        const auto size = static_cast<std::int64_t>(size_);
        for (const auto& range : source) {
            const auto origin = static_cast<std::int64_t>(range.begin) + range.what.shift;
            if (range.begin % size_ != 0 || origin % size != 0) {
                fail(Fault::bounds, rank, s,
                     "combines " + say_place(region.buffer, region.offset, region.offset + region.bytes) +
                         ", where no element begins at byte " + std::to_string(region.offset + range.begin));
            }
        }
    }

    void take(int rank, int s, const Region& region, Source& source) {
        const std::size_t slot = static_cast<std::size_t>(rank) * (buffers_ + 1) + region.buffer;
        const std::size_t hole = read(now_[slot], region.offset, region.bytes, source);
        if (hole < region.bytes) {
            fail(Fault::unwritten, rank, s,
                 "reads " + say_place(region.buffer, region.offset, region.offset + region.bytes) +
                     ", but nothing has been written at " +
                     say_range(region.offset + hole,
                               region.offset + hole +
                                   (hole % size_ ? 1 : std::min(size_, region.bytes - hole))) +
                     " by the steps it follows");
        }
        if (!written_[slot] || region.bytes == 0) return;
        const std::size_t end = region.offset + region.bytes;
        Ranges<Touched>& touched = touched_[slot];
        touches_.clear();
        std::size_t covered = region.offset;
        auto note = [&](std::size_t from, std::size_t to, Touched what) {
            readers_.push_back({s, what.readers});
            touches_.push_back({from, to, {what.writer, static_cast<int>(readers_.size()) - 1}});
        };
        const auto& all = touched.all();
        for (std::size_t k = touched.find(region.offset); k < all.size() && all[k].begin < end; ++k) {
            if (all[k].begin > covered) note(covered, all[k].begin, {});
            const std::size_t from = std::max(all[k].begin, region.offset);
            covered = std::min(all[k].end, end);
            if (all[k].what.writer >= 0)
                must_follow(rank, all[k].what.writer, s, {region.buffer, from, covered - from}, true, false);
            note(from, covered, all[k].what);
        }
        if (covered < end) note(covered, end, {});
        touched.replace(region.offset, end, touches_);
    }

    void put(int rank, int s, const Region& region, const Source& source) {
        if (region.bytes == 0) return;
        const std::size_t slot = static_cast<std::size_t>(rank) * (buffers_ + 1) + region.buffer;
        const std::size_t end = region.offset + region.bytes;
        if (region.buffer < buffers_) {
            const auto& allowed = may_write_[slot].all();
            std::size_t covered = region.offset;
            for (std::size_t k = may_write_[slot].find(region.offset);
                 k < allowed.size() && allowed[k].begin <= covered; ++k)
                covered = std::max(covered, allowed[k].end);
            if (covered < end) {
                fail(Fault::overwritten, rank, s,
                     "writes " + say_place(region.buffer, region.offset, end) +
                         "; the composition does not write " +
                         say_range(covered, std::min(end, covered + size_)) + " there");
            }
        }
        Ranges<Touched>& touched = touched_[slot];
        const auto& all = touched.all();
        for (std::size_t k = touched.find(region.offset); k < all.size() && all[k].begin < end; ++k) {
            const std::size_t from = std::max(all[k].begin, region.offset), to = std::min(all[k].end, end);
            const Region where{region.buffer, from, to - from};
            const Touched& what = all[k].what;
            if (what.writer >= 0 && what.readers < 0) must_follow(rank, what.writer, s, where, true, true);
            for (int r = what.readers; r >= 0; r = readers_[r].next)
                must_follow(rank, readers_[r].step, s, where, false, true);
        }
        const Range<Touched> mine{region.offset, end, {s, -1}};
        touched.replace(region.offset, end, {&mine, 1});
        write(now_[slot], region.offset, region.bytes, source);
    }

    // Races: accesses that conflict have to be ordered

    void must_follow(int rank, int earlier, int later, const Region& where, bool first_writes,
                     bool second_writes) {
        if (earlier == later) return;
        for (const Port& need : step(rank, later).parts[0].needs) {
            if (need.step == earlier) return;
        }
        auto& orders = orders_;
        if (orders.empty()) orders.resize(ranks_);
        auto& mine = orders[rank];
        if (!mine.empty() && mine.back().earlier == earlier && mine.back().later == later) return;
        mine.push_back({earlier, later, where, first_writes, second_writes});
    }

    void check_orders() {
        for (int rank = 0; rank < ranks_ && !orders_.empty(); ++rank) {
            if (orders_[rank].empty()) continue;
            const auto before = closure(rank);
            const std::size_t words = (base_[rank + 1] - base_[rank] + 63) / 64;
            for (const Order& order : orders_[rank]) {
                if (before[order.later * words + order.earlier / 64] >> (order.earlier % 64) & 1) continue;
                if (comes_before(2 * (base_[rank] + order.earlier) + 1, 2 * (base_[rank] + order.later)))
                    continue;
                auto verb = [](bool writes) { return writes ? "writes " : "reads "; };
                fail(Fault::race, rank, order.later,
                     verb(order.second_writes) +
                         say_place(order.where.buffer, order.where.offset,
                                   order.where.offset + order.where.bytes) +
                         " and may run before the end of step " + std::to_string(order.earlier) + " '" +
                         step(rank, order.earlier).name + "', which " + verb(order.first_writes) + "it");
            }
        }
        for (const auto& [first, second] : envelope_orders_) {
            if (comes_before(2 * first, 2 * second)) continue;
            const int rank = rank_of(first);
            fail(Fault::message, rank, second - base_[rank],
                 "may start before step " + std::to_string(first - base_[rank]) + " '" +
                     step(rank, first - base_[rank]).name +
                     "', which has the same peer and tag: the two messages can be mistaken for each other");
        }
    }

    // Does one node certainly come before another, also through messages of other ranks? A receive ends after
    // its send started, whatever the transport; that a send waits for its receiver is not relied upon.
    bool comes_before(int earlier, int later) {
        seen_.resize(2 * static_cast<std::size_t>(total_), 0);
        ++search_;
        stack_.assign(1, later);
        const int oldest = position_[earlier];
        while (!stack_.empty()) {
            const int node = stack_.back();
            stack_.pop_back();
            if (node == earlier) return true;
            // Only what was passed after `earlier` can follow it.
            if (seen_[node] == search_ || (oldest >= 0 && position_[node] >= 0 && position_[node] < oldest))
                continue;
            seen_[node] = search_;
            const int g = node / 2, rank = rank_[g];
            const Step& here = step(rank, g - base_[rank]);
            if (node % 2 == 1) {
                stack_.push_back(2 * g);
                if (std::holds_alternative<Receive>(here.action)) stack_.push_back(2 * peer_[g]);
            } else {
                for (const Port& need : here.parts[0].needs)
                    stack_.push_back(2 * (base_[rank] + need.step) + 1);
            }
        }
        return false;
    }

    // Deadlock: walk from a node that never came to one it waits for, until one is met again

    void report_deadlock() {
        int node = 0;
        while (position_[node] >= 0) ++node;
        std::vector<int> path;
        while (std::find(path.begin(), path.end(), node) == path.end()) {
            path.push_back(node);
            const int g = node / 2, rank = rank_[g];
            if (node % 2 == 1) {
                node = position_[2 * g] < 0 ? 2 * g : 2 * peer_[g];
            } else {
                for (const Port& need : step(rank, g - base_[rank]).parts[0].needs) {
                    const int end = 2 * (base_[rank] + need.step) + 1;
                    if (position_[end] < 0) node = end;
                }
            }
        }
        path.erase(path.begin(), std::find(path.begin(), path.end(), node));
        std::string text = "deadlock: ";
        int last = -1, listed = 0;
        for (int n : path) {
            if (n / 2 == last) continue;
            last = n / 2;
            if (++listed > 8) continue;
            const int rank = rank_[last];
            text += (listed > 1 ? ", which waits for " : "") + say_step(rank, last - base_[rank]);
        }
        if (listed > 8) text += ", ... (" + std::to_string(listed) + " steps in the circle)";
        text += ", which waits for the first";
        const int rank = rank_[node / 2];
        throw CheckError(Fault::deadlock, rank, node / 2 - base_[rank], text);
    }

    // The end: every element as the composition says

    void compare() const {
        for (int rank = 0; rank < ranks_; ++rank) {
            for (int b = 0; b < buffers_; ++b) {
                const std::size_t slot = static_cast<std::size_t>(rank) * (buffers_ + 1) + b;
                const auto& expected = expected_[slot].all();
                const auto& found = now_[slot].all();
                std::size_t i = 0;
                for (const auto& want : expected) {
                    for (std::size_t position = want.begin; position < want.end;) {
                        while (i < found.size() && found[i].end <= position) ++i;
                        const bool there = i < found.size() && found[i].begin <= position;
                        if (!there || found[i].what != want.what) {
                            complain(rank, b, position, want, there ? found[i].what : Content{},
                                     there ? std::min(want.end, found[i].end) : want.end);
                        }
                        position = std::min(want.end, found[i].end);
                    }
                }
            }
        }
    }

    [[noreturn]] void complain(int rank, int b, std::size_t position, const Range<Content>& want,
                               const Content& found, std::size_t end) const {
        const auto at = static_cast<std::int64_t>(position);
        std::string text = "in the end " + say_place(b, position, end);
        if (found.symbol == 0) {
            text += " has not been written; expected there: " + say_content(want.what, at);
            throw CheckError(Fault::contribution, rank, -1, "rank " + std::to_string(rank) + ": " + text);
        }
        text +=
            " (from the first on) is " + say_content(found, at) + " instead of " + say_content(want.what, at);
        const Symbol &left = symbols_[want.what.symbol], &right = symbols_[found.symbol];
        if (left.how == right.how && left.how >= 0 && left.divide_by == right.divide_by)
            text += say_difference(want.what, found, at);
        throw CheckError(Fault::contribution, rank, -1, "rank " + std::to_string(rank) + ": " + text);
    }

    std::vector<Contents> now_, expected_; // per rank and buffer
    std::vector<Ranges<bool>> may_write_;
    std::vector<Ranges<Touched>> touched_;
    std::vector<Reader> readers_;
    std::vector<Source> carried_; // by messages under way
    std::vector<std::vector<Order>> orders_;

    std::vector<int> open_, position_, first_, next_, rank_;
    std::vector<int> seen_, stack_;
    int search_ = 0;

    std::vector<Source> taken_;
    std::vector<std::pair<Region, Source>> moved_;
    Source combined_;
    std::vector<Range<Touched>> touches_;
};

} // namespace

void check_plan(const Composition& composition, std::span<const Schedule* const> of_ranks,
                const CheckOptions& options) {
    Checker(composition, of_ranks, options).check();
}

} // namespace jali
