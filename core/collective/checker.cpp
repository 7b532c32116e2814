#include "collective/checker.hpp"

#include "collective/symbolic.hpp"
#include "transport/communicator.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <sstream>
#include <tuple>

namespace jali {

namespace {

using symbolic::Content;
using symbolic::Range;
using symbolic::Ranges;
using symbolic::Symbol;
using symbolic::Symbols;
using symbolic::Term;

using Contents = Ranges<Content>;

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

bool inside(const Region& region, std::size_t bytes) {
    return region.offset <= bytes && region.bytes <= bytes - region.offset;
}

// The runs of consecutive bytes of a gather, as run(source offset, target offset, bytes).
template <class Run>
void for_runs(const CopyRows& copy, Run run) {
    if (!copy.rows || copy.row_bytes == 0) {
        run(copy.from.offset, copy.to.offset, copy.to.bytes);
        return;
    }
    const std::size_t count = copy.to.bytes / copy.row_bytes;
    const auto* rows = copy.rows->data() + copy.first_row;
    for (std::size_t k = 0; k < count;) {
        std::size_t next = k + 1;
        while (next < count && rows[next] == rows[next - 1] + 1) ++next;
        run(copy.from.offset + rows[k] * copy.row_bytes, copy.to.offset + k * copy.row_bytes,
            (next - k) * copy.row_bytes);
        k = next;
    }
}

class Checker {
  public:
    Checker(const Composition& composition, std::span<const Schedule* const> of_ranks,
            const CheckOptions& options)
        : composition_(composition), of_ranks_(of_ranks), options_(options),
          ranks_(static_cast<int>(of_ranks.size())), size_(size_of(composition.type())),
          buffers_(static_cast<int>(composition.buffers().size())),
          symbols_(composition.ranks(), buffers_, composition.type(), options.reproducible) {}

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
    const Step& step(int rank, int s) const { return of_ranks_[rank]->steps()[s]; }
    int rank_of(int global) const {
        return static_cast<int>(std::upper_bound(base_.begin(), base_.end(), global) - base_.begin()) - 1;
    }

    // ---- words

    std::string say_step(int rank, int s) const {
        const Step& here = step(rank, s);
        std::string text =
            "rank " + std::to_string(rank) + ", step " + std::to_string(s) + " '" + here.name + "'";
        const Mark& mark = here.mark;
        std::string marks;
        auto add = [&](const char* what, int value) {
            if (value >= 0) marks += (marks.empty() ? "" : ", ") + std::string(what) + std::to_string(value);
        };
        add("stage ", mark.stage);
        add("channel ", mark.channel);
        add("level ", mark.level);
        return marks.empty() ? text : text + " (" + marks + ")";
    }

    std::string say_buffer(int buffer) const {
        return "'" + (buffer < buffers_ ? composition_.buffers()[buffer].name : std::string("scratch")) + "'";
    }

    std::string say_range(std::size_t begin, std::size_t end) const {
        if (begin % size_ == 0 && end % size_ == 0) {
            begin /= size_, end /= size_;
            return end == begin + 1 ? "element " + std::to_string(begin)
                                    : "elements " + std::to_string(begin) + " to " + std::to_string(end - 1);
        }
        return "bytes " + std::to_string(begin) + " to " + std::to_string(end - 1);
    }

    std::string say_place(int buffer, std::size_t begin, std::size_t end) const {
        return say_range(begin, end) + " of " + say_buffer(buffer);
    }

    std::string say_term(const Term& term, std::int64_t position) const {
        const std::int64_t byte = position + term.offset;
        std::string text;
        if (term.rank < 0) {
            text = "(" + say_content({term.buffer, term.offset}, position) + ")";
        } else {
            text = "rank " + std::to_string(term.rank) + "'s " + say_buffer(term.buffer) + "[" +
                   (byte % static_cast<std::int64_t>(size_) == 0
                        ? std::to_string(byte / static_cast<std::int64_t>(size_))
                        : "byte " + std::to_string(byte)) +
                   "]";
        }
        return term.times == 1 ? text : std::to_string(term.times) + " times " + text;
    }

    std::string say_content(const Content& content, std::int64_t position) const {
        if (content.symbol == 0) return "undefined";
        const Symbol& symbol = symbols_[content.symbol];
        std::string text = symbol.how < 0 ? "" : "the " + symbols_.name_of_operation(symbol.how) + " of ";
        constexpr std::size_t most = 6;
        for (std::size_t k = 0; k < symbol.terms.size() && k < most; ++k) {
            text += (k ? ", " : "") + say_term(symbol.terms[k], position + content.shift);
        }
        if (symbol.terms.size() > most) text += ", ... (" + std::to_string(symbol.terms.size()) + " in all)";
        if (symbol.divide_by != 1) text += ", divided by " + std::to_string(symbol.divide_by);
        return text;
    }

    // What of `expected` is not in `found`, term by term; empty if they are no combinations by one operation.
    std::string say_difference(const Content& expected, const Content& found, std::int64_t position) const {
        const Symbol& left = symbols_[expected.symbol];
        const Symbol& right = symbols_[found.symbol];
        std::map<std::tuple<int, int, std::int64_t>, int> difference;
        for (const Term& t : left.terms) difference[{t.rank, t.buffer, t.offset + expected.shift}] += t.times;
        for (const Term& t : right.terms) difference[{t.rank, t.buffer, t.offset + found.shift}] -= t.times;
        std::string missing, extra;
        for (const auto& [term, times] : difference) {
            if (times == 0) continue;
            const auto& [rank, buffer, offset] = term;
            std::string& list = times > 0 ? missing : extra;
            if (list.size() < 200)
                list +=
                    (list.empty() ? "" : ", ") + say_term({rank, buffer, offset, std::abs(times)}, position);
        }
        std::string text;
        if (!missing.empty()) text += "; missing: " + missing;
        if (!extra.empty()) text += "; too much: " + extra;
        if (text.empty()) text = "; the same terms, in another order or combined otherwise";
        return text;
    }

    [[noreturn]] void fail(Fault kind, int rank, int s, const std::string& what) const {
        throw CheckError(kind, rank, s,
                         (s >= 0 ? say_step(rank, s) : "rank " + std::to_string(rank)) + ": " + what);
    }

    // ---- (1) each schedule by itself: buffers, regions, needs, marks

    void check_structure() {
        if (ranks_ != composition_.ranks()) {
            throw CheckError(Fault::structure, -1, -1,
                             std::to_string(ranks_) + " schedules for a composition of " +
                                 std::to_string(composition_.ranks()) + " ranks");
        }
        if (options_.hierarchy && options_.hierarchy->ranks() != ranks_) {
            throw CheckError(Fault::hierarchy, -1, -1,
                             "a hierarchy of " + std::to_string(options_.hierarchy->ranks()) +
                                 " ranks for a plan of " + std::to_string(ranks_));
        }
        base_.assign(ranks_ + 1, 0);
        written_.assign(static_cast<std::size_t>(ranks_) * (buffers_ + 1), 0);
        for (int rank = 0; rank < ranks_; ++rank) {
            const Schedule& schedule = *of_ranks_[rank];
            base_[rank + 1] = base_[rank] + static_cast<int>(schedule.steps().size());
            const auto& buffers = schedule.buffers();
            if (static_cast<int>(buffers.size()) != buffers_ + 1) {
                fail(Fault::structure, rank, -1,
                     std::to_string(buffers.size()) + " buffers; the composition has " +
                         std::to_string(buffers_) + ", and the last of the schedule is scratch");
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

    void check_region(int rank, int s, const Region& region, bool writes) {
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

    void check_message(int rank, int s, int peer, int tag, int library) {
        if (peer < 0 || peer >= ranks_ || peer == rank) {
            fail(Fault::message, rank, s,
                 "its peer is rank " + std::to_string(peer) + "; there are " + std::to_string(ranks_) +
                     " ranks, and none sends to itself");
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
        int crossed = 0;
        while (crossed + 1 < hierarchy.levels() && hierarchy.group(crossed, here).contains(there)) ++crossed;
        if (level != crossed) {
            fail(Fault::hierarchy, rank, s,
                 "a message between ranks " + std::to_string(rank) + " and " + std::to_string(peer) +
                     " crosses level " + std::to_string(crossed) + " of the hierarchy " +
                     hierarchy.describe() + ", but is marked with level " + std::to_string(level));
        }
    }

    void check_step(int rank, int s) {
        const Step& here = step(rank, s);
        if (here.parts.size() != 1 || std::holds_alternative<Kernel>(here.action))
            fail(Fault::structure, rank, s, "a kernel or a step in parts: nothing of a collective");
        for (const Port& need : here.parts[0].needs) {
            if (need.step < 0 || need.step >= static_cast<int>(of_ranks_[rank]->steps().size()) ||
                need.part != 0)
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
                    fail(Fault::contribution, rank, s,
                         "combines nothing into " + say_buffer(row.into.buffer));
                if (row.into.bytes % size_ != 0) {
                    fail(Fault::bounds, rank, s,
                         std::to_string(row.into.bytes) + " bytes are no whole number of elements of " +
                             std::to_string(size_) + " bytes");
                }
                for (const Region& from : row.from) {
                    check_region(rank, s, from, false);
                    if (from.bytes != row.into.bytes) {
                        fail(Fault::bounds, rank, s,
                             "combines " + std::to_string(from.bytes) + " bytes of " +
                                 say_buffer(from.buffer) + " into " + std::to_string(row.into.bytes));
                    }
                }
            }
            check_rows_apart(rank, s);
        }
    }

    void check_rows(int rank, int s, const CopyRows& copy) const {
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
    void check_rows_apart(int rank, int s) {
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

    // ---- (2) messages: the k-th send of a lane meets its k-th receive

    void pair_messages() {
        total_ = base_[ranks_];
        peer_.assign(total_, -1);
        struct Message {
            std::uint64_t lane; // from, to, tag
            int order, global;
            bool operator<(const Message& other) const {
                return std::tie(lane, order) < std::tie(other.lane, other.order);
            }
        };
        std::vector<Message> sends, receives;
        auto lane = [](int from, int to, int tag) {
            return static_cast<std::uint64_t>(from) << 40 | static_cast<std::uint64_t>(to) << 16 |
                   static_cast<std::uint64_t>(tag);
        };
        for (int rank = 0; rank < ranks_; ++rank) {
            const auto order = local_order(rank);
            for (int k = 0; k < static_cast<int>(order.size()); ++k) {
                const int s = order[k];
                const auto& action = step(rank, s).action;
                if (const auto* a = std::get_if<Send>(&action))
                    sends.push_back({lane(rank, a->to, a->tag), k, base_[rank] + s});
                else if (const auto* a = std::get_if<Receive>(&action))
                    receives.push_back({lane(a->from, rank, a->tag), k, base_[rank] + s});
            }
        }
        std::sort(sends.begin(), sends.end());
        std::sort(receives.begin(), receives.end());
        for (std::size_t k = 0; k < sends.size() || k < receives.size(); ++k) {
            const bool unmet_send =
                k < sends.size() && (k == receives.size() || sends[k].lane < receives[k].lane);
            const bool unmet_receive =
                k < receives.size() && (k == sends.size() || receives[k].lane < sends[k].lane);
            if (unmet_send || unmet_receive) {
                const int global = (unmet_send ? sends : receives)[k].global;
                const int rank = rank_of(global), s = global - base_[rank];
                const auto& action = step(rank, s).action;
                if (const auto* a = std::get_if<Send>(&action)) {
                    fail(Fault::message, rank, s,
                         "sends " + std::to_string(a->from.bytes) + " bytes to rank " +
                             std::to_string(a->to) + " with tag " + std::to_string(a->tag) +
                             ", which does not receive them");
                }
                const auto& a = std::get<Receive>(action);
                fail(Fault::message, rank, s,
                     "waits for " + std::to_string(a.into.bytes) + " bytes from rank " +
                         std::to_string(a.from) + " with tag " + std::to_string(a.tag) +
                         ", which does not send them");
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
            if (k > 0 && sends[k].lane == sends[k - 1].lane) {
                lane_orders_.push_back({sends[k - 1].global, sends[k].global});
                lane_orders_.push_back({receives[k - 1].global, receives[k].global});
            }
        }
    }

    // The steps of a rank in an order that respects its needs; the order of the schedule if that one does.
    std::vector<int> local_order(int rank) const {
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

    // ---- (3) what the composition says

    Contents& contents(std::vector<Contents>& of, int rank, int buffer) const {
        return of[static_cast<std::size_t>(rank) * (buffers_ + 1) + buffer];
    }

    void expect() {
        const std::size_t slots = static_cast<std::size_t>(ranks_) * (buffers_ + 1);
        now_.resize(slots);
        for (int rank = 0; rank < ranks_; ++rank) {
            for (int b = 0; b < buffers_; ++b) {
                const auto& buffer = composition_.buffers()[b];
                const std::size_t bytes = buffer.count(rank) * size_;
                const Range<Content> all{0, bytes, symbols_.original(rank, b)};
                if (buffer.input) contents(now_, rank, b).replace(0, bytes, {&all, 1});
            }
        }
        expected_ = now_;
        may_write_.resize(slots);
        std::vector<Source> sources;
        for (const auto& primitives : composition_.steps()) {
            for (const Primitive& primitive : primitives) {
                const std::size_t bytes = primitive.count * size_;
                const Region from{primitive.from.buffer, primitive.from.offset * size_, bytes};
                const Region to{primitive.to.buffer, primitive.to.offset * size_, bytes};
                auto load = [&](int rank, Source& source) {
                    const auto hole = read(contents(expected_, rank, from.buffer), from, source);
                    if (hole < bytes) {
                        fail(Fault::structure, rank, -1,
                             "the composition reads " +
                                 say_place(from.buffer, from.offset + hole, from.offset + bytes) +
                                 ", which it did not write and which is no input");
                    }
                };
                if (primitive.kind == Primitive::Kind::multicast) {
                    sources.resize(1);
                    load(primitive.root, sources[0]);
                    for (int leaf : primitive.ranks.members())
                        write(contents(expected_, leaf, to.buffer), to, sources[0]);
                    for (int leaf : primitive.ranks.members()) allow(leaf, to);
                } else {
                    const Reduction& how = composition_.reductions()[primitive.reduction];
                    const auto members = primitive.ranks.members();
                    const int divide_by =
                        how.operation == Operation::avg ? static_cast<int>(members.size()) : how.divide_by;
                    sources.resize(members.size());
                    for (std::size_t k = 0; k < members.size(); ++k) load(members[k], sources[k]);
                    combine(how, divide_by, sources, bytes, combined_);
                    write(contents(expected_, primitive.root, to.buffer), to, combined_);
                    allow(primitive.root, to);
                }
            }
        }
    }

    void allow(int rank, const Region& to) {
        const Range<bool> range{to.offset, to.offset + to.bytes, true};
        if (to.bytes > 0)
            may_write_[static_cast<std::size_t>(rank) * (buffers_ + 1) + to.buffer].replace(
                to.offset, to.offset + to.bytes, {&range, 1});
    }

    // ---- (4) contents of regions. A Source has positions relative to its region.

    using Source = std::vector<Range<Content>>;

    // Returns the position of the first undefined byte, or the size of the region.
    static std::size_t read(const Contents& from, const Region& region, Source& source) {
        source.clear();
        std::size_t covered = region.offset;
        const std::size_t end = region.offset + region.bytes;
        const auto& all = from.all();
        for (std::size_t k = from.find(region.offset); k < all.size() && all[k].begin < end; ++k) {
            if (all[k].begin > covered) break;
            const std::size_t begin = covered;
            covered = std::min(all[k].end, end);
            source.push_back(
                {begin - region.offset,
                 covered - region.offset,
                 {all[k].what.symbol, all[k].what.shift + static_cast<std::int64_t>(region.offset)}});
        }
        return covered - region.offset;
    }

    void write(Contents& to, const Region& region, const Source& source) {
        placed_.clear();
        for (const auto& [begin, end, what] : source) {
            placed_.push_back({begin + region.offset,
                               end + region.offset,
                               {what.symbol, what.shift - static_cast<std::int64_t>(region.offset)}});
        }
        to.replace(region.offset, region.offset + region.bytes, placed_);
    }

    void combine(const Reduction& how, int divide_by, const std::vector<Source>& sources, std::size_t bytes,
                 Source& result) {
        const int operation = symbols_.operation(how);
        result.clear();
        at_.assign(sources.size(), 0);
        for (std::size_t position = 0; position < bytes;) {
            std::size_t end = bytes;
            operands_.clear();
            for (std::size_t k = 0; k < sources.size(); ++k) {
                while (sources[k][at_[k]].end <= position) ++at_[k];
                end = std::min(end, sources[k][at_[k]].end);
                operands_.push_back(sources[k][at_[k]].what);
            }
            result.push_back({position, end, symbols_.combine(operation, divide_by, operands_)});
            position = end;
        }
    }

    // ---- (5) all steps, in an order in which a rendezvous transport could run them

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
                combine(a->how, a->how.divide_by, taken_, row.into.bytes, combined_);
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
        const std::size_t hole = read(now_[slot], region, source);
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
        write(now_[slot], region, source);
    }

    // ---- (6) races: accesses that conflict have to be ordered

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
        for (const auto& [first, second] : lane_orders_) {
            if (comes_before(2 * first, 2 * second)) continue;
            const int rank = rank_of(first);
            fail(Fault::message, rank, second - base_[rank],
                 "may start before step " + std::to_string(first - base_[rank]) + " '" +
                     step(rank, first - base_[rank]).name +
                     "', which has the same peer and tag: the two messages can be mistaken for each other");
        }
    }

    // Per step of the rank, a set of bits: the steps that have ended when it starts, by the rank's own needs.
    std::vector<std::uint64_t> closure(int rank) const {
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

    // ---- (7) deadlock: walk from a node that never came to one it waits for, until one is met again

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

    // ---- (8) the end: every element as the composition says

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

    const Composition& composition_;
    const std::span<const Schedule* const> of_ranks_;
    const CheckOptions& options_;
    const int ranks_;
    const std::size_t size_; // of an element
    const int buffers_;      // of the composition; scratch is one more
    Symbols symbols_;

    int total_ = 0;             // steps of all ranks
    std::vector<int> base_;     // first step of each rank
    std::vector<char> written_; // per rank and buffer: does any step write it?
    std::vector<int> peer_;     // the other side of a message, or -1
    std::vector<std::pair<int, int>> lane_orders_;

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
    Source combined_, placed_;
    std::vector<Range<Touched>> touches_;
    std::vector<std::size_t> at_;
    std::vector<Content> operands_;
};

} // namespace

std::string_view name_of(Fault fault) {
    constexpr std::string_view names[faults] = {"structure", "bounds",    "message",     "deadlock",
                                                "race",      "unwritten", "overwritten", "contribution",
                                                "scratch",   "hierarchy"};
    return names[static_cast<int>(fault)];
}

void check_plan(const Composition& composition, std::span<const Schedule* const> of_ranks,
                const CheckOptions& options) {
    Checker(composition, of_ranks, options).check();
}

} // namespace jali
