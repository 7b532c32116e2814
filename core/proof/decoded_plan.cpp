// Decodes launches of the kernel of collectives (prelude/collective.hpp) from their arguments.
//
// A block of threads is a channel, and slices of regions are disjoint: every region is cut alike into
// iterations x channels of them, and regions are equal or disjoint where one of two is written (both is
// checked for all of them: LaunchedProgram). So two channels use different bytes and different messages, and
// channels that begin in equal states, modulo whole turns of their queues, behave the same. Therefore events
// are made of the first, the last and one between of all channels that begin alike on all ranks
// (GpuPlan::choose_channels). All others are checked to begin in the same states, and ranks compare their
// counts of messages, and the bytes and slices of every message.
//
// Within a block, threads meet; their accesses between two meetings need no order among instructions, since
// the thread of a packet of a slice is the same in all of them and dependent slices are equal. Words are set
// and waited for by single threads between meetings, so these events follow the instructions before, and
// instructions after the next meeting follow them.
#include "composition/evaluation.hpp"
#include "proof/channel_states.hpp"
#include "proof/launched_program.hpp"
#include "schedule/symbolic.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>

namespace jali {

namespace {

using std::to_string;

struct Queues {
    std::int64_t channels = 0;
    // [channel][rank][2]: messages sent and received before the next launch.
    std::vector<std::int64_t> numbers;
    bool said = false; // whether the initial numbers are stated
    // Launches that had messages from a rank, or to it: by the rank and whether to it.
    std::map<std::pair<std::int64_t, bool>, std::int64_t> launches;
};

class CollectiveKernels : public KernelFamily {
  public:
    CollectiveKernels(CallDecoder& decoder, const RecordedPlan& plan, std::span<const DriverCall> calls)
        : d_(decoder), plan_(plan) {
        for (int b = 0; b < plan.user_buffers; ++b)
            d_.part_of_memory(plan.buffers[b].address, plan.buffers[b].bytes,
                              "buffer " + to_string(b) + " of the collective");
        for (const DriverCall& call : calls) {
            if (call.kind != DriverCall::Kind::launch || call.function != plan.kernel) continue;
            const auto a = CallDecoder::arguments_of<CollectiveArguments>(call);
            if (a.ranks > 0) launches_.push_back(a);
        }
    }

    bool launch(const DriverCall& call) override {
        if (call.function != plan_.kernel) return false;
        const LaunchedProgram p(d_, plan_, call);
        if (p.a.ranks == 0) {
            alone(p, call.stream);
        } else {
            with_others(p, call.stream);
        }
        return true;
    }

    void mark(bool begins, int event, std::vector<Stretch>& touched) override {
        for (int b = 0; b < plan_.user_buffers; ++b) {
            const auto& [address, bytes] = plan_.buffers[static_cast<std::size_t>(b)];
            if (bytes == 0) continue;
            const Stretch where = d_.stretch(address, bytes);
            touched.push_back(where);
            if (begins) d_.at(event).holds.push_back({where, in_this_run(label_of_buffer(d_.rank(), b))});
        }
        if (begins) {
            written_.clear();
            return;
        }
        expect(event);
        for (const auto& [address, queues] : queues_)
            for (const auto& [pair, launches] : queues.launches) {
                const auto [peer, sent] = pair; // as many messages were sent as received
                const std::int64_t from = sent ? d_.rank() : peer, to = sent ? peer : d_.rank();
                require_agreement(event, {8, from, to, d_.runs()},
                                  queues.numbers[static_cast<std::size_t>(2 * peer + !sent)]);
            }
    }

  private:
    // ---- runs ------------------------------------------------------------------------------------------

    std::uint64_t in_this_run(std::uint64_t label) const {
        return mixed(label, static_cast<std::uint64_t>(d_.runs()));
    }

    std::int32_t how() {
        if (how_ < 0) {
            d_.events().operations = plan_.operations;
            how_ = static_cast<std::int32_t>(plan_.operations.size());
            d_.events().operations.push_back(plan_.how);
        }
        return how_;
    }

    // The results of a run; of partly checked regions only the checked slices.
    void expect(int event) {
        how();
        auto& values = d_.events().values;
        const auto base = static_cast<std::int32_t>(values.size());
        for (Value value : plan_.values) {
            for (ValueTerm& term : value.terms) {
                if (term.value >= 0) {
                    term.value += base;
                } else {
                    term.label = in_this_run(term.label);
                }
            }
            values.push_back(std::move(value));
        }
        std::map<int, symbolic::Ranges<bool>> checked; // by buffer
        for (const auto& [region, slices] : written_) {
            const auto [buffer, begin, bytes] = region;
            auto& of_buffer = checked[buffer];
            for (const auto& [first, length] : slices) {
                const symbolic::Range<bool> range{begin + first, begin + first + length, true};
                of_buffer.replace(range.begin, range.end, {&range, 1});
            }
        }
        for (const RecordedPlan::Result& r : plan_.results) {
            symbolic::Ranges<bool> wanted;
            const symbolic::Range<bool> whole{r.begin, r.end, true};
            wanted.replace(r.begin, r.end, {&whole, 1});
            for (const auto& [region, slices] : written_)
                if (std::get<0>(region) == r.buffer) {
                    const std::uint64_t begin = std::max(std::get<1>(region), r.begin),
                                        end = std::min(std::get<1>(region) + std::get<2>(region), r.end);
                    if (begin < end) wanted.replace(begin, end, {});
                }
            const auto want = [&](std::uint64_t begin, std::uint64_t end) {
                if (begin >= end) return;
                d_.at(event).results.push_back(
                    {d_.stretch(plan_.buffers[static_cast<std::size_t>(r.buffer)].address + begin,
                                end - begin),
                     base + r.value, r.shift + static_cast<std::int64_t>(begin - r.begin)});
            };
            for (const auto& range : wanted.all()) want(range.begin, range.end);
            if (const auto found = checked.find(r.buffer); found != checked.end())
                for (const auto& range : found->second.all())
                    want(std::max<std::uint64_t>(range.begin, r.begin),
                         std::min<std::uint64_t>(range.end, r.end));
        }
    }

    // ---- programs with messages ------------------------------------------------------------------------

    // Slices of different channels need each other not, so all of them may count as one: instructions then
    // follow each other although those of two channels do not.
    void alone(const LaunchedProgram& p, void* stream) {
        const int start = d_.begin("collective", stream);
        LaunchedChannel all{p, -1, nullptr, {start}, {}, "collective"};
        do_instructions(all);
        all.meet();
        d_.end("collective: end", stream, all.before);
    }

    void with_others(const LaunchedProgram& p, void* stream) {
        const CollectiveArguments& a = p.a;
        Queues& queues = queues_of(a);
        const int start = d_.begin("collective", stream);
        d_.reads(start, {d_.stretch(a.memories, static_cast<std::uint64_t>(a.ranks) * 8)});
        if (a.table_words > small_table_words)
            d_.reads(start, {d_.stretch(a.table, static_cast<std::uint64_t>(a.table_words) * 8)});
        say(p, queues, start);
        std::vector<std::int32_t> ends{start};
        for (const int c : plan_.checked) {
            if (c >= a.channels) continue;
            LaunchedChannel channel{p,       c,  &queues.numbers[static_cast<std::size_t>(2 * c * a.ranks)],
                                    {start}, {}, "collective, channel " + to_string(c)};
            ends.push_back(run(channel));
        }
        d_.end("collective: end", stream, std::move(ends));
        for (std::int64_t c = 0; c < a.channels; ++c)
            for (std::int64_t k = 0; k < 2 * a.ranks; ++k)
                queues.numbers[static_cast<std::size_t>(2 * c * a.ranks + k)] +=
                    a.iterations * p.per_iteration[static_cast<std::size_t>(k)];
        note_written(p);
    }

    // All events that state `about` must state the same value.
    void require_agreement(int event, std::initializer_list<std::int64_t> about, std::int64_t value) {
        std::uint64_t label = 0;
        for (const std::int64_t part : about) label = mixed(label, static_cast<std::uint64_t>(part));
        d_.events().said.push_back({label, value, event});
    }
    // Values that must be equal at both ends of messages, for all channels.
    void say(const LaunchedProgram& p, Queues& queues, int event) {
        const CollectiveArguments& a = p.a;
        std::int64_t what = 0;
        for (const std::int64_t value :
             {a.ranks, a.freed, a.queues, a.slots, a.slot_bytes, plan_.wire == Wire::slotted ? a.arrived : 0})
            require_agreement(event, {1, what++}, value);
        std::map<std::pair<std::int64_t, bool>, std::int64_t> launches; // with messages of this pair
        for (std::int64_t peer = 0; peer < a.ranks; ++peer)
            for (const bool sent : {true, false}) {
                const std::int64_t from = sent ? a.rank : peer, to = sent ? peer : a.rank;
                for (std::int64_t c = 0; c < queues.channels && !queues.said; ++c)
                    require_agreement(
                        event, {2, from, to, c},
                        queues.numbers[static_cast<std::size_t>(2 * (c * a.ranks + peer) + !sent)]);
                const std::int32_t messages = p.per_iteration[static_cast<std::size_t>(2 * peer + !sent)];
                if (messages == 0) continue;
                const std::int64_t launch = launches[{peer, sent}] = queues.launches[{peer, sent}]++;
                require_agreement(event, {3, from, to, launch}, messages);
                require_agreement(event, {4, from, to, launch}, a.channels);
                require_agreement(event, {5, from, to, launch}, a.iterations);
            }
        queues.said = true;
        for (const DeviceInstruction& i : p.instructions) {
            const auto message = [&](const DeviceOperand& o, bool sent) {
                if (o.where >= 0) return;
                const std::int64_t peer = ~o.where, from = sent ? a.rank : peer, to = sent ? peer : a.rank;
                require_agreement(event, {6, from, to, launches[{peer, sent}], o.packet}, i.bytes);
                require_agreement(event, {7, from, to, launches[{peer, sent}], o.packet}, i.chunk);
            };
            message(i.to, true);
            for (std::int32_t s = 0; s < i.sources; ++s) message(p.sources[i.first_source + s], false);
        }
    }

    Queues& queues_of(const CollectiveArguments& a) {
        const auto [found, fresh] = queues_.try_emplace(a.numbers);
        Queues& queues = found->second;
        if (!fresh) return queues;
        for (const CollectiveArguments& other : launches_)
            if (other.numbers == a.numbers) {
                queues.channels = std::max(queues.channels, other.channels);
                check_collective(other.ranks == a.ranks, "has another number of ranks than one before");
            }
        check_collective(queues.channels <= static_cast<std::int64_t>(plan_.stands_for.size()),
                         "has " + to_string(queues.channels) + " channels");
        queues.numbers = d_.entries<std::int64_t>(a.numbers, 2 * queues.channels * a.ranks);
        check_alike(a, queues);
        return queues;
    }

    // Checks that every channel begins like its representative.
    void check_alike(const CollectiveArguments& a, const Queues& queues) {
        const GpuAddress mine = d_.entries<GpuAddress>(a.memories, a.ranks)[static_cast<std::size_t>(a.rank)];
        const std::int64_t pairs = queues.channels * a.ranks;
        const auto freed = words_at(mine + static_cast<std::uint64_t>(a.freed), pairs);
        std::vector<std::int64_t> arrived;
        if (plan_.wire == Wire::slotted)
            arrived = words_at(mine + static_cast<std::uint64_t>(a.arrived), pairs * a.slots);
        const auto states = channel_states(a, queues.channels, queues.numbers, freed, arrived);
        for (std::size_t c = 0; c < states.size(); ++c)
            check_collective(states[c] == states[static_cast<std::size_t>(plan_.stands_for[c])],
                             "has channels " + to_string(plan_.stands_for[c]) + " and " + to_string(c) +
                                 " that have passed messages in another way");
    }

    // Words of this rank's memory at the beginning of the recording; read together.
    std::vector<std::int64_t> words_at(GpuAddress address, std::int64_t count) {
        const auto found = d_.entries<std::int64_t>(address, count);
        for (std::int64_t k = 0; k < count; ++k)
            words_.emplace(address + static_cast<std::uint64_t>(8 * k), found[static_cast<std::size_t>(k)]);
        return found;
    }
    std::int64_t first_of(GpuAddress word) {
        const auto found = words_.find(word);
        return found != words_.end() ? found->second : words_at(word, 1)[0];
    }

    void note_written(const LaunchedProgram& p) {
        if (plan_.checked.size() == plan_.stands_for.size()) return; // at all slices
        for (const DeviceInstruction& i : p.instructions) {
            if (i.to.where < 0 || i.to.where >= plan_.user_buffers) continue;
            auto& slices = written_[{i.to.where, static_cast<std::uint64_t>(i.to.offset),
                                     static_cast<std::uint64_t>(i.bytes)}];
            if (!slices.empty()) continue; // by the program before, with the same slices
            for (std::int64_t iteration = 0; iteration < p.iterations(); ++iteration)
                for (const int c : plan_.checked)
                    if (const auto [begin, bytes] = p.slice(i, c, iteration); c < p.a.channels && bytes > 0)
                        slices.push_back(
                            {static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(bytes)});
        }
    }

    // One channel from beginning to end; returns its last event.
    int run(LaunchedChannel& c) {
        const CollectiveArguments& a = c.p.a;
        const GpuAddress lasting = a.numbers + static_cast<std::uint64_t>(16 * c.channel * a.ranks);
        const Stretch numbers = d_.stretch(lasting, static_cast<std::uint64_t>(16 * a.ranks));
        const bool flagged = plan_.wire == Wire::flagged;
        const int begin = d_.add(c.name + ": beginning", c.before);
        d_.reads(begin, {numbers});
        if (flagged)
            for (std::int64_t peer = 0; peer < a.ranks; ++peer)
                if (c.per(peer, 0) > 0) {
                    const GpuAddress word =
                        a.own_memory + static_cast<std::uint64_t>(a.freed + 8 * (c.channel * a.ranks + peer));
                    d_.wait(begin, word, c.numbers[2 * peer] + c.per(peer, 0) - a.slots, first_of(word),
                            false);
                }
        c.before = {begin};
        do_instructions(c);
        c.meet();
        const int end = d_.add(c.name + ": end", c.before);
        d_.writes(end, {numbers});
        for (std::int64_t peer = 0; flagged && peer < a.ranks; ++peer) {
            const std::int64_t before = c.numbers[2 * peer + 1];
            const std::int64_t halves = (before + a.iterations * c.per(peer, 1)) & ~(a.slots / 2 - 1);
            if (halves > before) d_.signal(end, c.freed(peer, a.rank), halves);
        }
        return end;
    }

    void do_instructions(LaunchedChannel& c) {
        if (plan_.wire == Wire::flagged) {
            do_flagged(c);
        } else {
            do_slotted(c);
        }
    }

    void do_slotted(LaunchedChannel& c) {
        const CollectiveArguments& a = c.p.a;
        check_collective(a.leads >= 0 && a.leads <= a.instructions,
                         "leads by " + to_string(a.leads) + " instructions");
        check_collective(a.first_last_action >= 0 && a.first_last_action <= a.actions,
                         "ends iterations by words that its table has not");
        const auto lead = [&](std::int64_t iteration) {
            for (std::int64_t k = 0; k < a.leads; ++k) do_instruction(c, k, iteration);
        };
        lead(0);
        if (a.leads > 0) {
            c.meet();
            std::vector<DeviceAction> ahead;
            for (const DeviceAction& action : c.p.actions)
                if (action.ahead != 0) ahead.push_back(action);
            act(c, ahead, -1);
        }
        for (std::int64_t now = 0; now < c.iterations(); ++now) {
            if (a.leads > 0 && now + 1 < c.iterations()) lead(now + 1);
            for (std::int64_t k = a.leads; k < a.instructions; ++k) do_instruction(c, k, now);
            c.meet();
            act(c, std::span(c.p.actions).subspan(static_cast<std::size_t>(a.first_last_action)), now);
        }
    }

    void do_instruction(LaunchedChannel& c, std::int64_t k, std::int64_t iteration) {
        const DeviceInstruction& i = c.p.instructions[static_cast<std::size_t>(k)];
        if (i.meets != 0) {
            c.meet();
            act(c, std::span(c.p.actions).subspan(i.first_action, i.actions), iteration);
            wait(c, std::span(c.p.waits).subspan(i.first_wait, i.waits), iteration);
            c.meet();
        }
        if (const int event = do_slice(c, k, iteration, c.before); event >= 0) c.before = {event};
    }

    // By single threads, side by side.
    void act(LaunchedChannel& c, std::span<const DeviceAction> actions, std::int64_t iteration) {
        if (actions.empty()) return;
        const int event = d_.add(c.name + ": words of iteration " + to_string(iteration), c.before);
        for (const DeviceAction& d : actions) {
            check_collective(d.peer >= 0 && d.peer < c.p.a.ranks &&
                                 (d.kind == DeviceAction::announce || d.kind == DeviceAction::free),
                             "sets words of rank " + to_string(d.peer));
            if (iteration + d.ahead >= c.iterations()) continue;
            const std::int64_t n = c.number(d.peer, d.packet, d.kind, iteration) + d.ahead * c.per(d.peer, 0);
            d_.signal(event,
                      d.kind == DeviceAction::announce ? c.arrived(d.peer, c.p.a.rank, n)
                                                       : c.freed(d.peer, c.p.a.rank),
                      n + 1);
        }
        c.unmet.push_back(event);
    }
    void wait(LaunchedChannel& c, std::span<const DeviceWait> waits, std::int64_t iteration) {
        if (waits.empty()) return;
        const int event = d_.add(c.name + ": waits of iteration " + to_string(iteration), c.before);
        for (const DeviceWait& w : waits) {
            check_collective(w.peer >= 0 && w.peer < c.p.a.ranks,
                             "waits for words of rank " + to_string(w.peer));
            const bool arrival = w.kind == DeviceWait::arrival;
            const std::int64_t n = c.number(w.peer, w.packet, arrival ? 1 : 0, iteration);
            const GpuAddress word = arrival ? c.arrived(c.p.a.rank, w.peer, n) : c.freed(c.p.a.rank, w.peer);
            if (arrival || n >= c.p.a.slots)
                d_.wait(event, word, arrival ? n + 1 : n + 1 - c.p.a.slots, first_of(word), false);
        }
        c.unmet.push_back(event);
    }

    // Rounds of instructions side by side, each by one or several warps.
    void do_flagged(LaunchedChannel& c) {
        const std::int64_t warps = c.p.threads / plan_.warp;
        for (std::int64_t round = 0; round < c.p.a.instructions;) {
            const std::int64_t together = c.p.instructions[static_cast<std::size_t>(round)].together;
            check_collective(together > 0 && round + together <= c.p.a.instructions,
                             "does " + to_string(together) + " instructions side by side");
            if (round > 0) c.meet();
            const std::vector<std::int32_t> begin = c.before;
            std::vector<int> done(static_cast<std::size_t>(together), -1);
            c.before.clear();
            for (std::int64_t k = 0; k < together; ++k) {
                // with fewer warps than instructions, a warp runs several in turn
                const std::int64_t ahead = warps <= together ? k - warps : -1;
                const auto follows =
                    ahead >= 0 && done[ahead] >= 0 ? std::vector<std::int32_t>{done[ahead]} : begin;
                done[k] = do_slice(c, round + k, 0, follows);
                if (done[k] >= 0) c.unmet.push_back(done[k]);
            }
            if (c.unmet.empty()) c.before = begin;
            round += together;
        }
    }

    Stretch region(const LaunchedProgram& p, const DeviceOperand& o, std::int64_t begin, std::int64_t bytes) {
        return d_.stretch(p.a.buffers[o.where] + static_cast<std::uint64_t>(o.offset + begin),
                          static_cast<std::uint64_t>(bytes));
    }

    // Returns its event; -1: nothing is in this slice, though its message is counted.
    int do_slice(LaunchedChannel& c, std::int64_t k, std::int64_t iteration,
                 std::vector<std::int32_t> after) {
        const LaunchedProgram& p = c.p;
        const DeviceInstruction& i = p.instructions[static_cast<std::size_t>(k)];
        const auto [begin, bytes] = c.slice(i, iteration);
        const bool flagged = plan_.wire == Wire::flagged;
        if (flagged) check_flags(c, i);
        if (bytes <= 0) return -1;
        const int event =
            d_.add(c.name + ", iteration " + to_string(iteration) + ", instruction " + to_string(k),
                   std::move(after));
        const std::int64_t in_slot = (bytes + 15) / 16 * p.packet_bytes();
        const auto locate = [&](const DeviceOperand& o, bool target, Stretch& touched) {
            if (o.where >= 0) return touched = region(p, o, begin, bytes);
            const std::int64_t peer = ~o.where, n = c.number(peer, o.packet, target ? 0 : 1, iteration);
            const GpuAddress slot = target ? c.slot(peer, p.a.rank, n) : c.slot(p.a.rank, peer, n);
            touched = d_.stretch(slot, static_cast<std::uint64_t>(in_slot));
            if (flagged && target) d_.signal(event, slot, n + 1);
            if (flagged && !target) d_.wait(event, slot, n + 1, flag_of(slot, n + 1), true);
            return Stretch{touched.space, touched.begin, touched.begin + static_cast<std::uint64_t>(bytes)};
        };
        Stretch touched_to;
        const Stretch to = locate(i.to, true, touched_to);
        std::vector<Stretch> from, touched_from;
        for (std::int32_t s = 0; s < i.sources; ++s) {
            Stretch touched;
            from.push_back(locate(p.sources[i.first_source + s], false, touched));
            touched_from.push_back(touched);
        }
        d_.reads(event, std::move(touched_from));
        d_.writes(event, {touched_to});
        if (i.sources == 1 && i.divide_by == 1) {
            d_.at(event).moves.push_back({to, from[0]});
        } else {
            d_.at(event).combinations.push_back({to, std::move(from), how(), i.divide_by});
        }
        return event;
    }

    // Checks the initial flags of all slots that this instruction may read.
    void check_flags(const LaunchedChannel& c, const DeviceInstruction& i) {
        for (std::int32_t s = 0; s < i.sources; ++s) {
            const DeviceOperand& o = c.p.sources[i.first_source + s];
            for (std::int64_t n = 0; o.where < 0 && n < c.p.a.slots; ++n)
                first_of(c.slot(c.p.a.rank, ~o.where, n));
        }
    }
    // The number that a slot's first flag meant then: the last up to `number` with these 32 bits.
    std::int64_t flag_of(GpuAddress slot, std::int64_t number) {
        const auto flag = static_cast<std::uint32_t>(static_cast<std::uint64_t>(first_of(slot)) >> 32);
        return number - static_cast<std::uint32_t>(static_cast<std::uint32_t>(number) - flag);
    }

    CallDecoder& d_;
    const RecordedPlan& plan_;
    std::vector<CollectiveArguments> launches_; // with messages
    std::int32_t how_ = -1;
    std::map<GpuAddress, Queues> queues_; // by their numbers
    std::map<GpuAddress, std::int64_t> words_;
    // of this run: (buffer, offset, bytes) that programs with messages wrote; the checked slices
    std::map<std::tuple<int, std::uint64_t, std::uint64_t>,
             std::vector<std::pair<std::uint64_t, std::uint64_t>>>
        written_;
};

} // namespace

std::unique_ptr<KernelFamily> RecordedPlan::family(CallDecoder& decoder,
                                                   std::span<const DriverCall> calls) const {
    return std::make_unique<CollectiveKernels>(decoder, *this, calls);
}

} // namespace jali
