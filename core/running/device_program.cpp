#include "running/device_program.hpp"

#include <algorithm>
#include <map>
#include <optional>

namespace jali {

namespace {

struct Source {
    Region region{};
    int peer = -1, packet = -1; // of a message, if it is one
    bool message() const { return peer >= 0; }
};

// An instruction before its waits are added.
struct Draft {
    Source to;
    std::vector<Source> from;
    std::size_t bytes = 0;
    int divide_by = 1;
    Mark mark;
    bool sends() const { return to.message(); }
    bool only_receives() const { return from.size() == 1 && from[0].message() && !to.message(); }
};

bool overlap(const Region& a, const Region& b) {
    return a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

bool equal(const Region& a, const Region& b) {
    return a.buffer == b.buffer && a.offset == b.offset && a.bytes == b.bytes;
}

bool writes(const Draft& draft, const Region& region) {
    return !draft.to.message() && overlap(draft.to.region, region);
}

class Compiler {
  public:
    // Of these steps of the schedule.
    Compiler(const Schedule& schedule, std::span<const Step* const> steps, int ranks, int rank,
             const Pieces& pieces, const DeviceProgramParameters& parameters)
        : schedule_(schedule), steps_(steps), parameters_(parameters), pieces_(pieces) {
        program_.ranks = ranks;
        program_.rank = rank;
        program_.sent.assign(ranks, 0);
        program_.received.assign(ranks, 0);
    }

    DeviceProgram compile() {
        draft();
        order_stages();
        receive_where_needed();
        send_where_made();
        check_overlaps();
        choose_wire();
        write();
        return std::move(program_);
    }

  private:
    void draft() {
        for (const Step* one : steps_) {
            const Step& step = *one;
            Draft d;
            d.mark = step.mark;
            if (const auto* receive = std::get_if<Receive>(&step.action)) {
                if ((d.bytes = receive->into.bytes) == 0) continue;
                d.to.region = receive->into;
                d.from = {Source{{}, receive->from, program_.received[receive->from]++}};
                drafts_.push_back(std::move(d));
            } else if (const auto* send = std::get_if<Send>(&step.action)) {
                if ((d.bytes = send->from.bytes) == 0) continue;
                d.to = Source{{}, send->to, program_.sent[send->to]++};
                d.from = {Source{send->from}};
                drafts_.push_back(std::move(d));
            } else if (const auto* copy = std::get_if<Copy>(&step.action)) {
                for (const CopySpec& spec : copy->specs) {
                    if (spec.rows)
                        throw PlanError("device program: a copy by a list of rows in " + step.name);
                    add(d, spec.to, {spec.from}, 1);
                }
            } else if (const auto* reduce = std::get_if<Reduce>(&step.action)) {
                take(reduce->how);
                for (const ReduceSpec& spec : reduce->specs)
                    add(d, spec.into, spec.from, reduce->how.divide_by);
            } else {
                throw PlanError("device program: " + step.name + " is no step of a collective");
            }
        }
    }

    void add(Draft d, const Region& into, const std::vector<Region>& from, int divide_by) {
        if ((d.bytes = into.bytes) == 0) return;
        d.to.region = into;
        for (const Region& region : from) d.from.push_back(Source{region});
        d.divide_by = divide_by;
        if (from.size() == 1 && divide_by == 1 && equal(into, from[0])) return;
        drafts_.push_back(std::move(d));
    }

    void take(const Reduction& how) {
        if (how.user)
            throw PlanError("an operation of the user (" + how.user->name() +
                            ") runs on the host; give arrays in host memory, or a named operation");
        if (program_.combines && (how.type != program_.how.type || how.operation != program_.how.operation))
            throw PlanError("a program for a device combines in one way; this composition has both " +
                            std::string(name_of(program_.how.operation)) + " and " +
                            std::string(name_of(how.operation)));
        program_.combines = true;
        program_.how = how;
    }

    // Sends first, if they need nothing of their stage and the queues have room for all of it; whatever else
    // is done is done meanwhile. Ranks begin with the one after them, so that not all begin with the same.
    void order_stages() {
        for (std::size_t begin = 0, end; begin < drafts_.size(); begin = end) {
            end = begin + 1;
            while (end < drafts_.size() && drafts_[end].mark.stage == drafts_[begin].mark.stage &&
                   drafts_[end].mark.chunk == drafts_[begin].mark.chunk)
                ++end;
            if (most_messages(begin, end) > parameters_.slotted.slots) continue;
            std::vector<Draft> first, rest;
            std::vector<char> stays(program_.ranks, 0); // messages to one rank keep their order
            for (std::size_t k = begin; k < end; ++k) {
                Draft& d = drafts_[k];
                bool moves = d.sends() && stays[d.to.peer] == 0;
                for (const Draft& before : rest)
                    for (const Source& s : d.from)
                        moves = moves && (s.message() || !writes(before, s.region));
                if (d.sends() && !moves) stays[d.to.peer] = 1;
                (moves ? first : rest).push_back(std::move(d));
            }
            const int n = program_.ranks, me = program_.rank;
            std::stable_sort(first.begin(), first.end(), [&](const Draft& a, const Draft& b) {
                return (a.to.peer - me + n) % n < (b.to.peer - me + n) % n;
            });
            for (auto run = rest.begin(); run != rest.end();) {
                const auto stop =
                    std::find_if(run, rest.end(), [](const Draft& d) { return !d.only_receives(); });
                std::stable_sort(run, stop, [&](const Draft& a, const Draft& b) {
                    return (me - a.from[0].peer + n) % n < (me - b.from[0].peer + n) % n;
                });
                run = stop == rest.end() ? stop : stop + 1;
            }
            const auto next = std::move(first.begin(), first.end(), drafts_.begin() + begin);
            std::move(rest.begin(), rest.end(), next);
        }
    }

    std::int64_t most_messages(std::size_t begin, std::size_t end) const {
        std::vector<std::int64_t> to(program_.ranks, 0), from(program_.ranks, 0);
        std::int64_t most = 0;
        for (std::size_t k = begin; k < end; ++k) {
            if (drafts_[k].sends()) most = std::max(most, ++to[drafts_[k].to.peer]);
            for (const Source& s : drafts_[k].from)
                if (s.message()) most = std::max(most, ++from[s.peer]);
        }
        return most;
    }

    bool is_scratch(const Region& region) const {
        return region.buffer + 1 == static_cast<int>(schedule_.buffers().size());
    }

    // The only user of a temporary region's contents; -1 if there is none or several.
    int only_user(std::size_t maker) const {
        const Region& made = drafts_[maker].to.region;
        if (!is_scratch(made)) return -1;
        int user = -1;
        for (std::size_t k = 0; k < drafts_.size(); ++k) {
            if (k == maker) continue;
            if (writes(drafts_[k], made)) return -1;
            for (const Source& s : drafts_[k].from) {
                if (s.message() || !overlap(s.region, made)) continue;
                if (user >= 0 || !equal(s.region, made)) return -1;
                user = static_cast<int>(k);
            }
        }
        return user;
    }

    // A message that only one instruction of its stage uses is read by it where it arrived.
    void receive_where_needed() {
        for (std::size_t k = 0; k < drafts_.size();) {
            const Draft& d = drafts_[k];
            const int user = d.only_receives() ? only_user(k) : -1;
            if (user < 0 || drafts_[user].mark.stage != d.mark.stage ||
                drafts_[user].mark.chunk != d.mark.chunk ||
                messages_of_stage(k) > parameters_.slotted.slots) {
                ++k;
                continue;
            }
            const Source message = d.from[0];
            const Region made = d.to.region;
            for (Source& s : drafts_[user].from)
                if (!s.message() && equal(s.region, made)) s = message;
            drafts_.erase(drafts_.begin() + static_cast<std::ptrdiff_t>(k));
        }
    }

    std::int64_t messages_of_stage(std::size_t of) const {
        const Mark& mark = drafts_[of].mark;
        std::size_t begin = of, end = of + 1;
        const auto same = [&](std::size_t k) {
            return drafts_[k].mark.stage == mark.stage && drafts_[k].mark.chunk == mark.chunk;
        };
        while (begin > 0 && same(begin - 1)) --begin;
        while (end < drafts_.size() && same(end)) ++end;
        return most_messages(begin, end);
    }

    // A result that is only sent next is written directly to the message.
    void send_where_made() {
        for (std::size_t k = 0; k + 1 < drafts_.size(); ++k) {
            Draft &d = drafts_[k], &next = drafts_[k + 1];
            if (d.sends() || d.from.size() < 2 || !next.sends() || only_user(k) != static_cast<int>(k) + 1)
                continue;
            d.to = next.to;
            d.mark = next.mark;
            drafts_.erase(drafts_.begin() + static_cast<std::ptrdiff_t>(k) + 1);
        }
    }

    // Slices of two regions are the same bytes only where the regions are.
    void check_overlaps() const {
        struct Use {
            Region region;
            bool written;
        };
        std::vector<Use> uses;
        for (const Draft& d : drafts_) {
            for (const Source& s : d.from)
                if (!s.message()) uses.push_back({s.region, false});
            if (!d.to.message()) uses.push_back({d.to.region, true});
        }
        std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
            return std::tuple(a.region.buffer, a.region.offset, a.region.bytes) <
                   std::tuple(b.region.buffer, b.region.offset, b.region.bytes);
        });
        for (std::size_t i = 0; i < uses.size(); ++i) {
            for (std::size_t j = i + 1; j < uses.size() && overlap(uses[i].region, uses[j].region); ++j) {
                if ((!uses[i].written && !uses[j].written) || equal(uses[i].region, uses[j].region)) continue;
                throw PlanError(
                    "on a device, pieces of a composition must be equal or disjoint where one of them "
                    "is written; in buffer '" +
                    schedule_.buffers()[uses[i].region.buffer].name + "' bytes " + text(uses[i].region) +
                    " and " + text(uses[j].region) + " overlap in part; cut them at the same places");
            }
        }
    }

    static std::string text(const Region& r) {
        return std::to_string(r.offset) + " to " + std::to_string(r.offset + r.bytes);
    }

    void choose_wire() {
        const std::int64_t longest = pieces_.longest;
        const std::int64_t wanted =
            (longest + parameters_.bytes_per_channel - 1) / parameters_.bytes_per_channel;
        program_.channels = static_cast<int>(std::clamp<std::int64_t>(wanted, 1, parameters_.most_channels));
        const std::int64_t below =
            pieces_.combined ? parameters_.flagged_below_combining : parameters_.flagged_below;
        const bool flagged =
            longest <= below && longest <= program_.channels * parameters_.flagged.slot_bytes;
        program_.wire = flagged ? Wire::flagged : Wire::slotted;
        const DeviceQueues& queues = flagged ? parameters_.flagged : parameters_.slotted;
        const std::int64_t at_once = program_.channels * queues.slot_bytes;
        program_.iterations = std::max<std::int64_t>(1, (longest + at_once - 1) / at_once);
        if (!flagged) return;
        for (int r = 0; r < program_.ranks; ++r) {
            // slots are freed by halves of the queue
            if (std::max(program_.sent[r], program_.received[r]) > queues.slots / 2)
                throw PlanError(
                    "a plan with " + std::to_string(std::max(program_.sent[r], program_.received[r])) +
                    " messages between two devices; one launch takes " + std::to_string(queues.slots / 2) +
                    " of theirs, take an algorithm with fewer");
        }
    }

    std::int64_t chunk(std::size_t bytes) const {
        const std::int64_t slices = program_.iterations * program_.channels;
        const std::int64_t each = (static_cast<std::int64_t>(bytes) + slices - 1) / slices;
        return (each + 15) / 16 * 16;
    }

    DeviceOperand operand(const Source& s) const {
        if (s.message()) return {0, ~s.peer, s.packet};
        return {static_cast<std::int64_t>(s.region.offset), s.region.buffer, 0};
    }

    void write() {
        const bool slotted = program_.wire == Wire::slotted;
        std::int64_t most = 0;
        for (int r = 0; r < program_.ranks; ++r)
            most = std::max<std::int64_t>({most, program_.sent[r], program_.received[r]});
        while (slotted && 2 * most <= parameters_.slotted.slots &&
               program_.leads < static_cast<std::int64_t>(drafts_.size()) &&
               plain_send(drafts_[program_.leads]))
            ++program_.leads;
        std::vector<DeviceAction> pending;
        std::vector<std::vector<char>> read(program_.ranks); // messages from each rank
        std::vector<std::int32_t> freed(program_.ranks, 0);
        for (int r = 0; r < program_.ranks; ++r) read[r].assign(program_.received[r], 0);
        const auto flush = [&](std::int32_t& first, std::int32_t& count) {
            first = static_cast<std::int32_t>(program_.actions.size());
            count = static_cast<std::int32_t>(pending.size());
            program_.actions.insert(program_.actions.end(), pending.begin(), pending.end());
            pending.clear();
        };
        std::size_t roomy = 0; // sends before this one have room
        for (std::size_t k = 0; k < drafts_.size(); ++k) {
            const Draft& d = drafts_[k];
            DeviceInstruction instruction{};
            instruction.to = operand(d.to);
            instruction.bytes = static_cast<std::int64_t>(d.bytes);
            instruction.chunk = chunk(d.bytes);
            instruction.divide_by = d.divide_by;
            instruction.first_source = static_cast<std::int32_t>(program_.sources.size());
            instruction.sources = static_cast<std::int32_t>(d.from.size());
            instruction.first_wait = static_cast<std::int32_t>(program_.waits.size());
            for (const Source& s : d.from) {
                program_.sources.push_back(operand(s));
                if (slotted && s.message()) program_.waits.push_back({DeviceWait::arrival, s.peer, s.packet});
            }
            // the first of several consecutive sends waits for room for all of them
            if (slotted && d.sends() && k >= roomy) {
                roomy = plain_send(d) ? end_of_sends(k) : k + 1;
                for (std::size_t j = k; j < roomy; ++j)
                    program_.waits.push_back({DeviceWait::room, drafts_[j].to.peer, drafts_[j].to.packet});
            }
            instruction.waits = static_cast<std::int32_t>(program_.waits.size()) - instruction.first_wait;
            instruction.meets = instruction.waits > 0 ? 1 : 0;
            if (instruction.meets != 0) flush(instruction.first_action, instruction.actions);
            program_.instructions.push_back(instruction);
            if (slotted && d.sends()) {
                const bool ahead = static_cast<std::int64_t>(k) < program_.leads;
                pending.push_back({DeviceAction::announce, d.to.peer, d.to.packet, ahead ? 1 : 0});
            }
            for (const Source& s : d.from) {
                if (!s.message()) continue;
                read[s.peer][s.packet] = 1;
                std::int32_t& prefix = freed[s.peer];
                const std::int32_t before = prefix;
                while (prefix < program_.received[s.peer] && read[s.peer][prefix] != 0) ++prefix;
                if (slotted && prefix > before) free(pending, {DeviceAction::free, s.peer, prefix - 1});
            }
        }
        std::int32_t first = 0, count = 0;
        flush(first, count);
        program_.first_last_action = first;
        if (slotted) return;
        for (std::size_t k = 0; k < drafts_.size();) {
            const std::size_t first_of_round = k;
            for (++k; k < drafts_.size() && independent(first_of_round, k); ++k) {
            }
            program_.instructions[first_of_round].together = static_cast<std::int64_t>(k - first_of_round);
        }
    }

    // Whether a draft neither uses regions that the drafts from `first` on before it write, nor writes
    // regions that they use.
    bool independent(std::size_t first, std::size_t which) const {
        const auto conflict = [&](const Draft& writer, const Draft& other) {
            return (!other.to.message() && writes(writer, other.to.region)) ||
                   std::any_of(other.from.begin(), other.from.end(),
                               [&](const Source& s) { return !s.message() && writes(writer, s.region); });
        };
        return std::none_of(drafts_.begin() + static_cast<std::ptrdiff_t>(first),
                            drafts_.begin() + static_cast<std::ptrdiff_t>(which), [&](const Draft& d) {
                                return conflict(d, drafts_[which]) || conflict(drafts_[which], d);
                            });
    }

    // Numbers of read messages ascend, so the last one covers all.
    static void free(std::vector<DeviceAction>& pending, const DeviceAction& action) {
        for (DeviceAction& other : pending)
            if (other.kind == action.kind && other.peer == action.peer) return void(other = action);
        pending.push_back(action);
    }

    // Sends from `begin` on that may wait for room together. They are announced afterwards, so there must be
    // no more for one rank than its queue takes: the next would wait for room for ever.
    std::size_t end_of_sends(std::size_t begin) const {
        std::vector<std::int64_t> to(program_.ranks, 0);
        std::size_t end = begin;
        while (end < drafts_.size() && plain_send(drafts_[end]) &&
               ++to[drafts_[end].to.peer] <= parameters_.slotted.slots)
            ++end;
        return end;
    }

    static bool plain_send(const Draft& d) {
        return d.sends() &&
               std::none_of(d.from.begin(), d.from.end(), [](const Source& s) { return s.message(); });
    }

    const Schedule& schedule_;
    std::span<const Step* const> steps_;
    const DeviceProgramParameters& parameters_;
    Pieces pieces_;
    DeviceProgram program_;
    std::vector<Draft> drafts_;
};

} // namespace

bool DeviceStage::apart() const {
    std::vector<Region> sent, received;
    for (const TransportMessages& of : messages)
        for (const StageMessage& m : of.messages) (m.sends ? sent : received).push_back(m.region);
    const auto meets = [](const DeviceOperand& o, std::int64_t bytes, const std::vector<Region>& regions) {
        return std::ranges::any_of(regions, [&](const Region& r) {
            const auto begin = static_cast<std::int64_t>(r.offset);
            return r.buffer == o.where && o.offset < begin + static_cast<std::int64_t>(r.bytes) &&
                   begin < o.offset + bytes;
        });
    };
    const auto is_message = [](const DeviceOperand& o) { return o.where < 0; };
    if (std::ranges::any_of(program.sources, is_message)) return false;
    return std::ranges::none_of(program.instructions, [&](const DeviceInstruction& i) {
        const auto sources = std::span(program.sources).subspan(i.first_source, i.sources);
        return is_message(i.to) || meets(i.to, i.bytes, sent) || meets(i.to, i.bytes, received) ||
               std::ranges::any_of(
                   sources, [&](const DeviceOperand& source) { return meets(source, i.bytes, received); });
    });
}

std::vector<DeviceStage> compile_for_device(const Schedule& schedule, int ranks, int rank,
                                            const Pieces& pieces, const DeviceProgramParameters& parameters,
                                            std::span<const int> transports) {
    const bool one_stage =
        std::ranges::all_of(transports, [](int transport) { return transport == by_kernel; });
    const auto& steps = schedule.steps();
    std::vector<DeviceStage> stages;
    std::vector<const Step*> own;
    for (std::size_t begin = 0, end; begin < steps.size() || stages.empty(); begin = end) {
        end = begin;
        while (end < steps.size() && (one_stage || (steps[end].mark.stage == steps[begin].mark.stage &&
                                                    steps[end].mark.chunk == steps[begin].mark.chunk)))
            ++end;
        std::map<int, std::vector<StageMessage>> messages_of;
        own.clear();
        for (std::size_t k = begin; k < end; ++k) {
            const auto* send = std::get_if<Send>(&steps[k].action);
            const auto* receive = std::get_if<Receive>(&steps[k].action);
            const int transport = send != nullptr      ? transports[send->library]
                                  : receive != nullptr ? transports[receive->library]
                                                       : by_kernel;
            if (transport == by_kernel) {
                own.push_back(&steps[k]);
                continue;
            }
            const StageMessage message = send != nullptr ? StageMessage{send->from, send->to, true}
                                                         : StageMessage{receive->into, receive->from, false};
            if (message.region.bytes > 0) messages_of[transport].push_back(message);
        }
        DeviceStage& stage = stages.emplace_back();
        for (auto& [transport, messages] : messages_of)
            stage.messages.push_back({transport, std::move(messages)});
        stage.program = Compiler(schedule, own, ranks, rank, pieces, parameters).compile();
    }
    return stages;
}

Pieces pieces_of(const Composition& composition) {
    Pieces pieces;
    for (const auto& step : composition.steps())
        for (const Primitive& primitive : step) {
            pieces.longest = std::max(pieces.longest, primitive.count);
            pieces.combined = pieces.combined || primitive.kind == Primitive::Kind::reduction;
        }
    pieces.longest *= static_cast<std::int64_t>(size_of(composition.type()));
    return pieces;
}

std::string DeviceProgram::describe() const {
    const auto operand = [](const DeviceOperand& o) {
        return o.where >= 0 ? "buffer " + std::to_string(o.where) + " + " + std::to_string(o.offset)
                            : "message " + std::to_string(o.packet) + " of rank " + std::to_string(~o.where);
    };
    std::string text = std::to_string(channels) + (channels == 1 ? " channel, " : " channels, ") +
                       std::to_string(iterations) + (iterations == 1 ? " iteration, " : " iterations, ") +
                       (wire == Wire::flagged ? "flagged" : "slotted") + " messages\n";
    for (const DeviceInstruction& i : instructions) {
        if (i.together > 0 && &i != instructions.data()) text += "  then\n";
        text += "  " + operand(i.to) + " =";
        for (std::int32_t s = 0; s < i.sources; ++s)
            text += (s > 0 ? ", " : " ") + operand(sources[i.first_source + s]);
        text += " (" + std::to_string(i.bytes) + " bytes";
        if (i.sources > 1) text += ", " + std::string(name_of(how.operation));
        if (i.divide_by != 1) text += ", divided by " + std::to_string(i.divide_by);
        text += i.waits > 0 ? ", waits)\n" : ")\n";
    }
    return text;
}

} // namespace jali
