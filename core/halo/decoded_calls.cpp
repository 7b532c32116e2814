#include "halo/halo_kernels.hpp"
#include "halo/recorded_calls.hpp"
#include "transport/message_kernels.hpp"
#include "transport/peer_memory.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <tuple>

namespace jali {

namespace {

using Kind = DriverCall::Kind;

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
    a ^= b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2);
    return a * 0xff51afd7ed558ccdu;
}

class Decoder {
  public:
    explicit Decoder(RecordedCalls& recorded)
        : launch_(recorded), d_(recorded.definition != nullptr ? *recorded.definition : no_launch()),
          memory_(recorded.memory) {
        moments_.rank = recorded.rank;
        const auto add = [&](FieldStorage* field) {
            if (std::find(fields_.begin(), fields_.end(), field) == fields_.end()) fields_.push_back(field);
        };
        for (const auto& [index, field] : d_.patches) add(field.get());
        for (const auto& [field, parities] : d_.writes) add(field.get());
        for (const auto& apart : d_.apart) add(apart.field.get());
        for (const HaloRequest& request : launch_.requests) {
            add(request.field.get());
            if (const HaloProducer* producer = request.field->producer())
                for (const auto& [index, source] : producer->sources) add(source.get());
        }
    }

    RankMoments run() {
        for (const DriverCall& call : launch_.calls) decode(call);
        for (const Passage& p : moments_.passages)
            if (p.closed < 0) throw ScheduleError("'" + at(p.moment).name + "' is never waited for");
        return std::move(moments_);
    }

  private:
    static const LaunchDefinition& no_launch() {
        static const LaunchDefinition none;
        return none;
    }

    // ---- moments, and what they follow -----------------------------------------------------------------

    Moment& at(int moment) { return moments_.moments[moment]; }
    int add(std::string name, std::vector<std::int32_t> after) {
        std::sort(after.begin(), after.end());
        after.erase(std::unique(after.begin(), after.end()), after.end());
        Moment moment;
        moment.name = std::move(name) + " (run " + std::to_string(run_ + 1) + ")";
        moment.after = std::move(after);
        moments_.moments.push_back(std::move(moment));
        return static_cast<int>(moments_.moments.size()) - 1;
    }
    // On a stream: after what is on it, what it waits for, and what the host has waited for.
    int begin(std::string name, void* stream) {
        std::vector<std::int32_t> after = streams_[stream];
        after.insert(after.end(), host_.begin(), host_.end());
        const int moment = add(std::move(name), std::move(after));
        streams_[stream] = {moment};
        return moment;
    }
    int end(std::string name, void* stream, std::vector<std::int32_t> after) {
        const int moment = add(std::move(name), std::move(after));
        streams_[stream] = {moment};
        return moment;
    }
    int of_host(std::string name, std::vector<std::int32_t> after) {
        after.insert(after.end(), host_.begin(), host_.end());
        const int moment = add(std::move(name), std::move(after));
        host_ = {moment};
        return moment;
    }

    // ---- memory ----------------------------------------------------------------------------------------

    static Stretch stretch(std::uint64_t address, std::uint64_t bytes) {
        const auto [space, begin] = name_of_memory(address);
        return {space, begin, begin + bytes};
    }
    int footprint(std::vector<Stretch> all) {
        std::erase_if(all, [](const Stretch& s) { return s.begin == s.end; });
        std::sort(all.begin(), all.end(), [](const Stretch& a, const Stretch& b) {
            return std::tie(a.space, a.begin) < std::tie(b.space, b.begin);
        });
        std::vector<Stretch> joined;
        for (const Stretch& s : all) {
            if (!joined.empty() && joined.back().space == s.space && s.begin <= joined.back().end) {
                joined.back().end = std::max(joined.back().end, s.end);
            } else {
                joined.push_back(s);
            }
        }
        moments_.footprints.push_back(std::move(joined));
        return static_cast<int>(moments_.footprints.size()) - 1;
    }
    // Sites of a field's storage lie in groups, packet by packet; each counts here as if its bytes lay
    // together, which names the same bytes of whole groups.
    int footprint_of_sites(std::uint64_t base, std::int64_t site_bytes, std::span<const std::int32_t> sites) {
        std::vector<std::int32_t> sorted(sites.begin(), sites.end());
        if (!std::is_sorted(sorted.begin(), sorted.end())) std::sort(sorted.begin(), sorted.end());
        std::vector<Stretch> all;
        const Stretch first = stretch(base, 0); // all of a field is one process's
        for (std::size_t k = 0; k < sorted.size();) {
            std::size_t last = k;
            while (last + 1 < sorted.size() && sorted[last + 1] <= sorted[last] + 1) ++last;
            all.push_back({first.space, first.begin + static_cast<std::uint64_t>(sorted[k] * site_bytes),
                           first.begin + static_cast<std::uint64_t>((sorted[last] + 1) * site_bytes)});
            k = last + 1;
        }
        return footprint(std::move(all));
    }
    template <class Row>
    std::vector<Row> rows(GpuAddress address, std::int64_t count) {
        std::vector<Row> found(static_cast<std::size_t>(count));
        if (count > 0)
            std::memcpy(static_cast<void*>(found.data()),
                        memory_.at(address, found.size() * sizeof(Row)).data(), found.size() * sizeof(Row));
        return found;
    }
    // A count in this rank's device memory, as the kernels before have left it; they are ordered like any
    // others that touch the same memory.
    std::int64_t& count_at(GpuAddress address) {
        const auto found = counts_.find(address);
        return found != counts_.end()
                   ? found->second
                   : counts_.emplace(address, rows<std::int64_t>(address, 1)[0]).first->second;
    }
    std::int64_t read_count(int moment, GpuAddress address) {
        at(moment).reads.push_back(footprint({stretch(address, sizeof(std::int64_t))}));
        return count_at(address);
    }
    void set_count(int moment, GpuAddress address, std::int64_t value) {
        at(moment).writes.push_back(footprint({stretch(address, sizeof value)}));
        count_at(address) = value;
    }
    void wait(int moment, GpuAddress word, std::int64_t value) {
        const auto [space, address] = name_of_memory(word);
        at(moment).waits.push_back({space, address, value});
        if (known_.insert(word).second)
            moments_.words.push_back({space, address, rows<std::int64_t>(word, 1)[0]});
    }
    void signal(int moment, GpuAddress word, std::int64_t value) {
        const auto [space, address] = name_of_memory(word);
        at(moment).signals.push_back({space, address, value});
    }

    // ---- sites -----------------------------------------------------------------------------------------

    static std::int64_t number_of(const Layout& layout, std::span<const std::int64_t> global) {
        std::int64_t number = 0;
        for (int d = layout.ndim() - 1; d >= 0; --d)
            number = number * layout.partition().global_extents()[d] + global[d];
        return number;
    }
    static std::int64_t number_of_block(const Layout& layout, std::int64_t block) {
        std::int64_t index = layout.box_site(block, 0);
        std::array<std::int64_t, 8> site; // a lattice has no more dimensions
        for (int d = 0; d < layout.ndim(); ++d) {
            site[d] = layout.origin()[d] + index % layout.extents()[d];
            index /= layout.extents()[d];
        }
        return number_of(layout, site);
    }
    int list_of_blocks(const Layout& layout, std::span<const std::int32_t> blocks, const void* key) {
        const auto [found, fresh] = lists_.emplace(std::pair(key, blocks.size()), 0);
        if (!fresh) return found->second;
        std::vector<std::int64_t> numbers;
        for (std::int32_t block : blocks) {
            if (block < 0 || block >= layout.nblocks())
                throw ScheduleError("a list of sites names site " + std::to_string(block) + " of " +
                                    std::to_string(layout.nblocks()));
            numbers.push_back(number_of_block(layout, block));
        }
        moments_.sites.push_back(std::move(numbers));
        return found->second = static_cast<int>(moments_.sites.size()) - 1;
    }
    // Of what is no field: all of it is one site.
    int list_of_one() {
        const auto [found, fresh] = lists_.emplace(std::pair(nullptr, 1), 0);
        if (!fresh) return found->second;
        moments_.sites.push_back({0});
        return found->second = static_cast<int>(moments_.sites.size()) - 1;
    }
    // Those of a slab's ghosts of one parity, in their order.
    int list_of_ghosts(const Layout& layout, const Slab& slab, int parity) {
        const auto [found, fresh] = ghost_lists_.emplace(std::tuple(&layout, slab.number, parity), 0);
        if (!fresh) return found->second;
        std::vector<std::int64_t> numbers(static_cast<std::size_t>(slab.count[parity]));
        const int ndim = layout.ndim();
        std::vector<std::int64_t> c(static_cast<std::size_t>(ndim), 0), global(c);
        for (std::int32_t ghost : slab.place) {
            const std::int64_t k = ghost - slab.first[parity];
            if (k >= 0 && k < slab.count[parity]) {
                for (int d = 0; d < ndim; ++d) {
                    const std::int64_t extent = layout.partition().global_extents()[d];
                    global[d] = (layout.origin()[d] + slab.box.ghost_origin[d] + c[d]) % extent;
                    if (global[d] < 0) global[d] += extent;
                }
                numbers[static_cast<std::size_t>(k)] = number_of(layout, global);
            }
            for (int d = 0; d < ndim && ++c[d] == slab.box.extents[d]; ++d) c[d] = 0;
        }
        moments_.sites.push_back(std::move(numbers));
        return found->second = static_cast<int>(moments_.sites.size()) - 1;
    }

    // A field with the values that it has in this run.
    std::uint64_t label(const FieldStorage* field) const {
        const auto number = std::find(fields_.begin(), fields_.end(), field) - fields_.begin();
        return mixed(static_cast<std::uint64_t>(number) + 1, static_cast<std::uint64_t>(run_));
    }
    FieldStorage* field_at(GpuAddress address) const {
        for (FieldStorage* field : fields_)
            if (field->producer() == nullptr && address >= field->address() &&
                address < field->address() + std::max<std::size_t>(1, field->owned_bytes()))
                return field;
        throw ScheduleError("halos are packed from memory of no field of the launch");
    }

    // ---- kernels ---------------------------------------------------------------------------------------

    template <class Arguments>
    static Arguments arguments_of(const DriverCall& call) {
        Arguments arguments;
        if (call.arguments.size() != sizeof arguments)
            throw ScheduleError("kernel '" + call.name + "' got " + std::to_string(call.arguments.size()) +
                                " bytes of arguments, not " + std::to_string(sizeof arguments));
        std::memcpy(&arguments, call.arguments.data(), sizeof arguments);
        return arguments;
    }

    // Every item is dealt out to as many turns as its jobs say; how many jobs each message has.
    static std::vector<std::int64_t> check_jobs(const std::vector<HaloJob>& jobs, std::size_t messages,
                                                const std::string& kernel) {
        std::map<std::int32_t, std::set<std::int32_t>> turns;
        std::map<std::int32_t, std::int32_t> wanted;
        std::vector<std::int64_t> of_message(messages, 0);
        for (const HaloJob& job : jobs) {
            if (job.message < 0 || static_cast<std::size_t>(job.message) >= messages || job.item < 0)
                throw ScheduleError("a job of '" + kernel + "' is of no message");
            const auto [first, fresh] = wanted.emplace(job.item, job.turns);
            if (job.turn < 0 || job.turn >= job.turns || job.turns != first->second ||
                !turns[job.item].insert(job.turn).second)
                throw ScheduleError("the jobs of '" + kernel + "' deal an item out twice, or not alike");
            ++of_message[job.message];
        }
        for (const auto& [item, count] : wanted)
            if (static_cast<std::int32_t>(turns[item].size()) != count)
                throw ScheduleError("the jobs of '" + kernel + "' leave a part of an item out");
        return of_message;
    }

    void pack(const DriverCall& call, bool remote) {
        const auto a = arguments_of<PackArguments>(call);
        const int start = begin(call.name, call.stream);
        const std::int64_t epoch = remote ? read_count(start, a.epoch) : 0;
        const auto messages = rows<PackMessage>(a.messages, a.count);
        const auto jobs = rows<HaloJob>(a.jobs, a.job_count);
        const auto of_message = check_jobs(jobs, messages.size(), call.name);
        std::map<std::int32_t, std::set<std::int32_t>> items; // of messages
        std::int32_t parts_count = 0;
        for (const HaloJob& job : jobs) {
            items[job.message].insert(job.item);
            parts_count = std::max(parts_count, job.item + 1);
        }
        const auto parts = rows<PackPart>(a.parts, parts_count);

        for (GpuAddress word : rows<GpuAddress>(a.opened, a.opened_count)) signal(start, word, epoch + 1);
        std::vector<std::int32_t> packed{start};
        std::int64_t busy = 0;
        for (std::size_t m = 0; m < messages.size(); ++m) {
            const PackMessage& message = messages[m];
            if (of_message[m] == 0) continue;
            ++busy;
            if (remote && of_message[m] != message.jobs)
                throw ScheduleError("'" + call.name + "' announces message " + std::to_string(m) + " after " +
                                    std::to_string(message.jobs) + " of " + std::to_string(of_message[m]) +
                                    " jobs");
            const std::string name = call.name + ", message " + std::to_string(m);
            const int reads = add(name + ": load", {start}), writes = add(name + ": store", {reads});
            const auto& of_it = items[static_cast<std::int32_t>(m)];
            for (auto item = of_it.begin(); item != of_it.end();)
                pack_part(call.name, parts, item, of_it.end(), (epoch & 1) * a.slot_bytes, reads, writes);
            if (remote) {
                if (message.room != 0) wait(writes, message.room, epoch + message.ahead);
                signal(writes, message.arrived, epoch + 1);
            }
            packed.push_back(writes);
        }
        const bool last = remote && a.last != 0;
        const int done = end(call.name + ": end", call.stream, std::move(packed));
        if (!last) return;
        if (busy != a.busy)
            throw ScheduleError("'" + call.name + "' ends after " + std::to_string(a.busy) + " of " +
                                std::to_string(busy) + " messages");
        for (GpuAddress word : rows<GpuAddress>(a.awaited, a.awaited_count)) wait(done, word, epoch + 1);
        set_count(done, a.epoch, epoch + 1);
    }

    // One part: its sections follow each other in the table, and fill a group together.
    template <class Item>
    void pack_part(const std::string& kernel, const std::vector<PackPart>& parts, Item& item, Item last,
                   std::int64_t slot, int reads, int writes) {
        const PackPart first = parts[*item];
        const std::int64_t group = PlacedLayout::device_group;
        const std::int64_t site_bytes = first.group_bytes / group;
        std::int64_t filled = 0; // bytes of a group
        while (filled < first.group_bytes) {
            if (item == last) throw ScheduleError("'" + kernel + "' leaves a section of a part out");
            const PackPart& p = parts[*item++];
            if (p.sites != first.sites || p.count != first.count || p.group_bytes != first.group_bytes ||
                p.field != first.field + filled || p.to != first.to + filled)
                throw ScheduleError("'" + kernel + "' packs sections of a part that do not fit together");
            filled += p.packets * p.packet_bytes * group;
        }
        const auto bytes = static_cast<std::uint64_t>(first.count * site_bytes);
        const Stretch to = stretch(first.to + static_cast<std::uint64_t>(slot), bytes);
        at(writes).writes.push_back(footprint({to}));
        if (first.sites == 0) { // items, as their producer left them
            const Stretch from = stretch(first.field, bytes);
            at(reads).reads.push_back(footprint({from}));
            at(writes).moves.push_back({to, from});
            return;
        }
        const FieldStorage* field = field_at(first.field);
        const auto sites = rows<std::int32_t>(first.sites, first.count);
        const int list = list_of_blocks(*field->layout(), sites, reinterpret_cast<const void*>(first.sites));
        at(reads).reads.push_back(footprint_of_sites(field->address(), site_bytes, sites));
        at(writes).holds.push_back({to, label(field), list, 0, site_bytes});
    }

    void await_halos(const DriverCall& call) {
        const auto a = arguments_of<ArrivalArguments>(call);
        const int moment = begin(call.name, call.stream);
        const std::int64_t epoch = read_count(moment, a.epoch);
        for (GpuAddress word : rows<GpuAddress>(a.awaited, a.count)) wait(moment, word, epoch + 1);
        if (a.last != 0) set_count(moment, a.epoch, epoch + 1);
    }
    void await_slots(const DriverCall& call) {
        const auto a = arguments_of<AwaitArguments>(call);
        const int moment = begin(call.name, call.stream);
        const std::int64_t epoch = read_count(moment, a.epoch);
        for (const PackMessage& m : rows<PackMessage>(a.messages, a.count))
            wait(moment, m.room, epoch + m.ahead);
    }
    void signal_halos(const DriverCall& call) {
        const auto a = arguments_of<SignalArguments>(call);
        const int moment = begin(call.name, call.stream);
        const std::int64_t epoch = read_count(moment, a.epoch);
        for (const PackMessage& m : rows<PackMessage>(a.messages, a.count))
            signal(moment, m.arrived, epoch + 1);
    }
    void receive_halos(const DriverCall& call) {
        const auto a = arguments_of<ReceiveArguments>(call);
        const int start = begin(call.name, call.stream);
        const std::int64_t epoch = read_count(start, a.epoch);
        const auto jobs = rows<HaloJob>(a.jobs, a.job_count);
        std::set<std::int32_t> items;
        std::int32_t messages = 0;
        for (const HaloJob& job : jobs) {
            items.insert(job.item);
            messages = std::max(messages, job.message + 1);
        }
        check_jobs(jobs, static_cast<std::size_t>(messages), call.name);
        const auto sections = rows<ReceiveSection>(a.sections, items.empty() ? 0 : *items.rbegin() + 1);
        std::vector<std::int32_t> placed{start};
        for (std::int32_t item : items) {
            const ReceiveSection& s = sections[item];
            const int moment = add(call.name + ", section " + std::to_string(item), {start});
            wait(moment, s.arrived, epoch + 1);
            const auto bytes = static_cast<std::uint64_t>(s.bytes);
            touch(moment, stretch(s.to, bytes),
                  stretch(s.from + static_cast<std::uint64_t>((epoch & 1) * a.slot_bytes), bytes));
            placed.push_back(moment);
        }
        const int done = end(call.name + ": end", call.stream, std::move(placed));
        if (a.last == 0) return;
        set_count(done, a.epoch, epoch + 1);
        for (GpuAddress word : rows<GpuAddress>(a.senders, a.senders_count)) signal(done, word, epoch + 1);
    }
    void pass_messages(const DriverCall& call) {
        const auto a = arguments_of<PassArguments>(call);
        const int start = begin(call.name, call.stream);
        std::vector<std::int32_t> passed{start};
        if ((a.steps & step_offer) != 0)
            for (std::int64_t m = 0; m < a.incoming; ++m)
                signal(start, a.in[m].ready, read_count(start, a.in[m].count) + 1);
        for (std::int64_t m = 0; m < a.outgoing; ++m) {
            const OutgoingMessage& message = a.out[m];
            const int moment = add(call.name + ", message " + std::to_string(m), {start});
            const std::int64_t number = read_count(start, message.count) + 1; // before it waits
            if ((message.deeds & deed_await) != 0) wait(moment, message.ready, number);
            if ((message.deeds & deed_put) != 0) {
                const auto bytes = static_cast<std::uint64_t>(message.bytes);
                touch(moment, stretch(message.to, bytes), stretch(message.from, bytes));
            }
            if ((message.deeds & deed_announce) != 0) {
                signal(moment, message.arrived, number);
                set_count(moment, message.count, number);
            }
            passed.push_back(moment);
        }
        const int done = end(call.name + ": end", call.stream, std::move(passed));
        if ((a.steps & step_take) != 0)
            for (std::int64_t m = 0; m < a.incoming; ++m) {
                const std::int64_t number = count_at(a.in[m].count) + 1;
                wait(done, a.in[m].arrived, number);
                set_count(done, a.in[m].count, number);
            }
    }
    void touch(int moment, const Stretch& to, const Stretch& from) {
        at(moment).reads.push_back(footprint({from}));
        at(moment).writes.push_back(footprint({to}));
        at(moment).moves.push_back({to, from});
    }

    static std::vector<std::uint64_t> numbers_of(const DriverCall& call) {
        std::vector<std::uint64_t> numbers(call.arguments.size() / sizeof(std::uint64_t));
        std::memcpy(numbers.data(), call.arguments.data(), numbers.size() * sizeof numbers[0]);
        return numbers;
    }

    // Whether this is the launch of a halo item's producer.
    bool produce(const DriverCall& call) {
        const auto numbers = numbers_of(call);
        for (const HaloRequest& request : launch_.requests) {
            const HaloProducer* producer = request.field->producer();
            if (producer == nullptr || producer->gpu_kernel.handle != call.function ||
                numbers.size() != 2 + producer->parameters.size())
                continue;
            bool same = true;
            for (const auto& [index, source] : producer->sources)
                same &= numbers[2 + index] == source->address();
            std::vector<char> filled_in(producer->parameters.size(), 0);
            std::fill_n(filled_in.begin(), 8, 1);
            for (const auto& [index, source] : producer->sources) filled_in[index] = 1;
            filled_in[producer->output_parameter] = 1;
            for (std::size_t k = 0; k < filled_in.size(); ++k)
                same &= filled_in[k] || numbers[2 + k] == producer->parameters[k];
            if (!same) continue;
            const int moment = begin(call.name, call.stream);
            const auto count = static_cast<std::int64_t>(numbers[1]);
            const auto sites = rows<std::int32_t>(numbers[2], count);
            const Layout& layout = *request.field->layout();
            for (const auto& [index, source] : producer->sources)
                at(moment).reads.push_back(footprint_of_sites(
                    source->address(), static_cast<std::int64_t>(source->block_bytes()), sites));
            const auto site_bytes = static_cast<std::int64_t>(request.field->block_bytes());
            const Stretch to = stretch(numbers[2 + producer->output_parameter],
                                       static_cast<std::uint64_t>(count * site_bytes));
            at(moment).writes.push_back(footprint({to}));
            const int list = list_of_blocks(layout, sites, reinterpret_cast<const void*>(numbers[2]));
            at(moment).holds.push_back({to, label(request.field.get()), list, 0, site_bytes});
            return true;
        }
        return false;
    }

    // What the site function touches at some positions, by its compiler's word.
    struct Touched {
        std::vector<std::int32_t> positions;
        std::vector<std::int32_t> reads, writes;
        std::vector<std::pair<const HaloRequest*, int>> ghosts; // and the parity
    };
    const Touched& touched_at(std::uint64_t list, std::int64_t first, std::int64_t last) {
        const auto [found, fresh] = touched_.emplace(std::tuple(list, first, last), Touched{});
        Touched& touched = found->second;
        if (!fresh) return touched;
        const PlacedLayout& layout = *d_.layout;
        const auto n = static_cast<std::size_t>(layout.nblocks());
        std::vector<std::int32_t> positions = rows<std::int32_t>(list, list == 0 ? 0 : last);
        if (list == 0) {
            for (std::int64_t p = first; p < last; ++p) positions.push_back(static_cast<std::int32_t>(p));
        } else {
            positions.erase(positions.begin(), positions.begin() + first);
        }
        for (std::int32_t block : positions)
            if (block < 0 || static_cast<std::size_t>(block) >= n)
                throw ScheduleError("the kernel runs at site " + std::to_string(block) + " of " +
                                    std::to_string(n));
        touched.positions = positions;
        std::map<const FieldStorage*, std::vector<char>> read; // [block]
        for (const auto& [index, field] : d_.patches) {
            if (field->layout() != d_.layout || field->producer() != nullptr) continue;
            auto& of_field = read.try_emplace(field.get(), n, 0).first->second;
            for (std::int32_t block : positions) of_field[block] = 1;
        }
        std::set<std::pair<const HaloRequest*, int>> ghosts;
        for (const LaunchRead& r : d_.reads) {
            const auto table = d_.layout->neighbours(r.offset);
            std::vector<char>* of_field = nullptr;
            if (r.field->producer() == nullptr)
                of_field = &read.try_emplace(r.field.get(), n, 0).first->second;
            for (std::int32_t block : positions) {
                const std::int64_t there = layout.block_of_entry(table->entries[block]);
                const std::int64_t ghost = there - layout.first_ghost();
                if (ghost < 0) {
                    if (of_field != nullptr) (*of_field)[there] = 1;
                    continue;
                }
                const Slab& slab = layout.slabs()[layout.slab_of_ghost(ghost)];
                ghosts.insert({&request_of(*r.field, slab.number), slab.parity_of(ghost)});
            }
        }
        const auto sites_of = [&](const FieldStorage& field, const std::vector<char>& there) {
            std::vector<std::int32_t> sites;
            for (std::size_t block = 0; block < n; ++block)
                if (there[block]) sites.push_back(static_cast<std::int32_t>(block));
            return footprint_of_sites(field.address(), static_cast<std::int64_t>(field.block_bytes()), sites);
        };
        for (const auto& [field, there] : read) touched.reads.push_back(sites_of(*field, there));
        for (const auto& [field, parities] : d_.writes) {
            if (field->layout() != d_.layout) {
                touched.writes.push_back(footprint({stretch(field->address(), field->owned_bytes())}));
                continue;
            }
            std::vector<char> there(n, 0);
            for (std::int32_t block : positions)
                there[block] = layout.c_order() || (parities >> (block >= layout.even_blocks()) & 1);
            touched.writes.push_back(sites_of(*field, there));
        }
        for (const LaunchApart& apart : d_.apart) {
            touched.reads.push_back(footprint({stretch(apart.field->address(), apart.field->owned_bytes())}));
            for (const HaloRequest& request : launch_.requests)
                if (request.field == apart.field)
                    for (int parity = 0; parity < 2; ++parity) ghosts.insert({&request, parity});
        }
        touched.ghosts.assign(ghosts.begin(), ghosts.end());
        return touched;
    }
    // All sites of the domain, each once.
    void check_computed() const {
        if (!d_.layout) return;
        std::vector<int> wanted(computed_.size(), 0);
        if (d_.domain.blocks.empty()) {
            std::fill(wanted.begin() + d_.domain.begin, wanted.begin() + d_.domain.end, 1);
        } else {
            for (std::int32_t block : d_.domain.blocks) wanted[static_cast<std::size_t>(block)] = 1;
        }
        for (std::size_t block = 0; block < wanted.size(); ++block)
            if (computed_[block] != wanted[block])
                throw ScheduleError("run " + std::to_string(run_ + 1) + " computes site " +
                                    std::to_string(block) + " " + std::to_string(computed_[block]) +
                                    " times, not " + std::to_string(wanted[block]));
    }
    const HaloRequest& request_of(const FieldStorage& field, int slab) const {
        for (const HaloRequest& request : launch_.requests)
            if (request.field.get() == &field && request.slab == slab) return request;
        throw ScheduleError("the kernel reads ghosts of '" + field.label() + "' that it does not ask for");
    }

    void compute(const DriverCall& call) {
        const auto numbers = numbers_of(call);
        const auto first = static_cast<std::int64_t>(numbers[0]),
                   last = static_cast<std::int64_t>(numbers[1]);
        const Touched& touched = touched_at(numbers[2], first, last);
        const int moment =
            begin("kernel '" + d_.cost.name + "' at " + std::to_string(last - first) + " sites", call.stream);
        for (std::int32_t block : touched.positions) ++computed_[static_cast<std::size_t>(block)];
        at(moment).reads = touched.reads;
        at(moment).writes = touched.writes;
        for (const auto& [request, parity] : touched.ghosts) {
            const FieldStorage& field = *request->field;
            const Layout& layout = *field.layout();
            const Slab& slab = layout.slabs()[request->slab];
            if (slab.count[parity] == 0 || (request->parities >> parity & 1) == 0) continue;
            const auto site_bytes = static_cast<std::int64_t>(field.block_bytes());
            const Stretch where = stretch(field.address_of_ghost(layout.first_ghost() + slab.first[parity]),
                                          static_cast<std::uint64_t>(slab.count[parity] * site_bytes));
            at(moment).reads.push_back(footprint({where}));
            at(moment).expects.push_back(
                {where, label(&field), list_of_ghosts(layout, slab, parity), 0, site_bytes});
        }
        if (d_.sums.count > 0 && !d_.sums.added_by_kernel) {
            std::vector<Stretch> all;
            for (int k = 0; k < d_.sums.count + d_.sums.labels; ++k)
                all.push_back(
                    stretch(numbers[4] + static_cast<std::uint64_t>(k) * numbers[5] * sizeof(double),
                            static_cast<std::uint64_t>(last - first) * sizeof(double)));
            results_.insert(results_.end(), all.begin(), all.end());
            at(moment).writes.push_back(footprint(std::move(all)));
        }
    }

    // ---- calls -----------------------------------------------------------------------------------------

    void launch(const DriverCall& call) {
        if (d_.layout && call.function == d_.gpu_kernel.handle) return compute(call);
        if (call.name == "pack_halos") return pack(call, true);
        if (call.name == "gather_halos") return pack(call, false);
        if (call.name == "await_halos") return await_halos(call);
        if (call.name == "await_slots") return await_slots(call);
        if (call.name == "signal_halos") return signal_halos(call);
        if (call.name == "receive_halos") return receive_halos(call);
        if (call.name == "pass_messages") return pass_messages(call);
        if (!produce(call)) throw ScheduleError("what kernel '" + call.name + "' touches is not known here");
    }

    void transfer(const DriverCall& call, bool sends, int channel, int opened) {
        const int moment = add(std::string(name_of(call.kind)) + (sends ? " to rank " : " from rank ") +
                                   std::to_string(call.peer),
                               {opened});
        const Stretch where = stretch(sends ? call.from : call.to, call.bytes);
        (sends ? at(moment).reads : at(moment).writes).push_back(footprint({where}));
        moments_.passages.push_back({sends, call.peer, channel, call.tag, moment, opened, -1,
                                     static_cast<std::int64_t>(call.bytes), where});
        transfers_.push_back(moment);
    }
    void close(int channel, int closed) {
        for (Passage& p : moments_.passages)
            if (p.channel == channel && p.closed < 0) p.closed = closed;
        transfers_.clear();
    }

    void decode(const DriverCall& call) {
        switch (call.kind) {
        case Kind::launch:
            return launch(call);
        case Kind::copy:
            return touch(begin("copy", call.stream), stretch(call.to, call.bytes),
                         stretch(call.from, call.bytes));
        case Kind::fill:
            at(begin("fill", call.stream)).writes.push_back(footprint({stretch(call.to, call.bytes)}));
            return;
        case Kind::record: {
            auto& after = events_[call.event] = streams_[call.stream];
            after.insert(after.end(), host_.begin(), host_.end());
            return;
        }
        case Kind::let_wait: {
            const auto& event = events_[call.event]; // one that was recorded before has come
            auto& after = streams_[call.stream];
            after.insert(after.end(), event.begin(), event.end());
            return;
        }
        case Kind::host_waits:
            of_host("the host waits", call.event != nullptr ? events_[call.event] : streams_[call.stream]);
            return;
        case Kind::send:
        case Kind::receive:
            return transfer(call, call.kind == Kind::send, 0,
                            of_host(std::string("start of ") + name_of(call.kind), {}));
        case Kind::complete:
            return close(0, of_host("messages complete", transfers_));
        case Kind::ccl_send:
        case Kind::ccl_receive:
            if (group_ < 0) group_ = begin("group of the library", call.stream);
            return transfer(call, call.kind == Kind::ccl_send, 1, group_);
        case Kind::group_end: {
            if (group_ < 0) return;
            std::vector<std::int32_t> after = transfers_;
            after.push_back(group_);
            group_ = -1;
            return close(1, end("end of the library's group", call.stream, std::move(after)));
        }
        case Kind::mark: {
            if (call.name == "begin") {
                ++run_;
                if (d_.layout) computed_.assign(static_cast<std::size_t>(d_.layout->nblocks()), 0);
            } else {
                check_computed();
            }
            const int moment = begin(call.name + " of a run", call.stream);
            std::vector<Stretch> all = results_;
            for (const FieldStorage* field : fields_)
                if (field->producer() == nullptr)
                    all.push_back(stretch(field->address(), field->owned_bytes()));
            for (const CarriedArray& array : launch_.arrays) {
                const Stretch where = stretch(array.address, array.bytes);
                const Holding whole{where, mixed(array.label, static_cast<std::uint64_t>(run_)),
                                    list_of_one(), 0, static_cast<std::int64_t>(array.bytes)};
                if (array.sends && call.name == "begin") at(moment).holds.push_back(whole);
                if (!array.sends && call.name == "end") at(moment).expects.push_back(whole);
                all.push_back(where);
            }
            at(moment).writes.push_back(footprint(std::move(all)));
            return;
        }
        case Kind::refused:
            throw ScheduleError("what " + call.name + " touches is not known here");
        }
    }

    RecordedCalls& launch_;
    const LaunchDefinition& d_;
    SeenMemory& memory_;
    RankMoments moments_;
    std::vector<FieldStorage*> fields_; // in an order that all ranks share
    int run_ = -1, group_ = -1;
    std::map<void*, std::vector<std::int32_t>> streams_, events_; // what follows them follows these
    std::vector<std::int32_t> host_, transfers_;
    std::map<GpuAddress, std::int64_t> counts_;
    std::set<GpuAddress> known_;
    std::map<std::pair<const void*, std::size_t>, int> lists_;
    std::map<std::tuple<const Layout*, int, int>, int> ghost_lists_;
    std::map<std::tuple<std::uint64_t, std::int64_t, std::int64_t>, Touched> touched_;
    std::vector<Stretch> results_;
    std::vector<int> computed_; // [block]: how often, in this run
};

} // namespace

RankMoments RecordedCalls::decode() {
    return Decoder(*this).run();
}

} // namespace jali
