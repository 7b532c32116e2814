// The effects of launches of the halo kernels (prelude/builtin.hpp), and of a site function's kernel.
#include "halo/footprint.hpp"
#include "halo/halo_kernels.hpp"
#include "halo/recorded_launch.hpp"
#include "schedule/call_decoder.hpp"
#include "sum/binned.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

namespace jali {

namespace {

class LaunchKernels : public KernelFamily {
  public:
    LaunchKernels(CallDecoder& decoder, const RecordedLaunch& launch)
        : decoder_(decoder), launch_(launch), d_(*launch.definition) {
        const auto add = [&](FieldStorage* field) {
            if (std::find(fields_.begin(), fields_.end(), field) == fields_.end()) fields_.push_back(field);
        };
        for (const auto& [index, field] : d_.patches) add(field.get());
        for (const auto& [field, parities] : d_.writes) add(field.get());
        for (const auto& indirect : d_.indirect) add(indirect.field.get());
        for (const HaloRequest& request : launch_.requests) {
            add(request.field.get());
            if (const HaloProducer* producer = request.field->producer())
                for (const auto& [index, source] : producer->sources) add(source.get());
        }
        for (const FieldStorage* field : fields_) record_parts(*field);
    }

    bool launch(const DriverCall& call) override {
        if (d_.layout && call.function == d_.gpu_kernel.handle) {
            compute(call);
        } else if (d_.layout && call.function == d_.with_halos.function.handle && call.function != nullptr) {
            compute_with_halos(call);
        } else if (call.name == "pack_halos" || call.name == "gather_halos") {
            pack(call, call.name == "pack_halos");
        } else if (call.name == "await_halos") {
            await_halos(call);
        } else if (call.name == "await_slots") {
            await_slots(call);
        } else if (call.name == "signal_halos") {
            signal_halos(call);
        } else if (call.name == "receive_halos") {
            receive_halos(call);
        } else {
            return produce(call);
        }
        return true;
    }

    void mark(bool begins, int, std::vector<Stretch>& touched) override {
        if (!begins) check_computed();
        computed_.clear();
        touched.insert(touched.end(), results_.begin(), results_.end());
        for (const FieldStorage* field : fields_)
            if (field->producer() == nullptr)
                touched.push_back(decoder_.stretch(field->owned_address(), field->owned_bytes()));
    }

  private:
    // ---- sites -----------------------------------------------------------------------------------------

    // Sites of a field's storage lie in groups, packet by packet. Accesses to a list of sites are recorded as
    // if the bytes of each site were contiguous, which covers the same bytes of whole groups; so are
    // contents. Sites of a part of a message have its groups for themselves, including the free room of the
    // last: all of it is touched.
    Stretch groups_at(GpuAddress address, std::int64_t sites, std::int64_t site_bytes) {
        constexpr std::int64_t group = LocalLayout::device_group;
        return decoder_.stretch(address,
                                static_cast<std::uint64_t>((sites + group - 1) / group * group * site_bytes));
    }
    static Stretch held_in(const Stretch& groups, std::int64_t sites, std::int64_t site_bytes) {
        return {groups.space, groups.begin, groups.begin + static_cast<std::uint64_t>(sites * site_bytes)};
    }
    // The sites that a field owns, and the ghosts of each slab.
    void record_parts(const FieldStorage& field) {
        if (field.producer() == nullptr)
            decoder_.part_of_memory(field.owned_address(), field.owned_bytes(), field.label());
        if (field.lacks_ghosts()) return;
        const Layout& layout = *field.layout();
        for (const Slab& slab : layout.slabs()) {
            const std::int64_t ghosts =
                layout.whole_groups(slab.count[0]) + layout.whole_groups(slab.count[1]);
            decoder_.part_of_memory(field.address_of_ghost(layout.first_ghost() + slab.first[0]),
                                    static_cast<std::uint64_t>(ghosts) * field.block_bytes(),
                                    "ghosts of " + field.label() + " in slab " + std::to_string(slab.number));
        }
    }
    int footprint_of_blocks(const FieldStorage& field, std::int64_t site_bytes,
                            const TouchedSites::Blocks& blocks) {
        std::vector<Stretch> all;
        const Stretch whole = decoder_.stretch(field.owned_address(), 0); // all of a field is one process's
        const std::int64_t begin = field.first_owned();
        for (const auto& [first, last] : blocks)
            all.push_back({whole.space,
                           whole.begin + static_cast<std::uint64_t>((first - begin) * site_bytes),
                           whole.begin + static_cast<std::uint64_t>((last - begin) * site_bytes)});
        return decoder_.footprint(std::move(all));
    }
    int footprint_of_sites(const FieldStorage& field, std::int64_t site_bytes,
                           std::vector<std::int32_t> sites) {
        std::sort(sites.begin(), sites.end());
        TouchedSites::Blocks blocks;
        for (const std::int32_t site : sites) {
            if (blocks.empty() || site > blocks.back().second) blocks.emplace_back(site, site);
            blocks.back().second = site + 1;
        }
        return footprint_of_blocks(field, site_bytes, blocks);
    }
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
        decoder_.events().sites.push_back(std::move(numbers));
        return found->second = static_cast<int>(decoder_.events().sites.size()) - 1;
    }
    // Those of a slab's ghosts of one parity, in their order.
    int list_of_ghosts(const Layout& layout, const Slab& slab, int parity) {
        const auto [found, fresh] = ghost_lists_.emplace(std::tuple(&layout, slab.number, parity), 0);
        if (!fresh) return found->second;
        std::vector<std::int64_t> numbers(static_cast<std::size_t>(slab.count[parity]));
        const int ndim = layout.ndim();
        std::vector<std::int64_t> c(static_cast<std::size_t>(ndim), 0), global(c);
        for (std::int32_t ghost : slab.ghost_block) {
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
        decoder_.events().sites.push_back(std::move(numbers));
        return found->second = static_cast<int>(decoder_.events().sites.size()) - 1;
    }

    // A field with the values that it has in this run.
    std::uint64_t label(const FieldStorage* field) const {
        const auto number = std::find(fields_.begin(), fields_.end(), field) - fields_.begin();
        return mixed(static_cast<std::uint64_t>(number) + 1, static_cast<std::uint64_t>(decoder_.runs()));
    }
    // That has this block; the address alone may be that of two, each with the sites of one parity.
    FieldStorage* field_at(GpuAddress address, std::int64_t block) const {
        for (FieldStorage* field : fields_)
            if (field->producer() == nullptr && address == field->address() &&
                block >= field->first_owned() && block < field->owned_end())
                return field;
        throw ScheduleError("halos are packed from memory of no field of the launch");
    }

    // ---- kernels ---------------------------------------------------------------------------------------

    // Checks that the jobs of every item are its turns, each once; returns how many jobs each message has.
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
        const auto a = decoder_.arguments_of<PackArguments>(call);
        const int start = decoder_.begin(call.name, call.stream);
        const std::int64_t epoch = remote ? decoder_.read_count(start, a.epoch) : 0;
        std::vector<std::int32_t> packed = pack_messages(call, a, remote, start, epoch);
        const int done = decoder_.end(call.name + ": end", call.stream, std::move(packed));
        if (!remote || a.last == 0) return;
        for (GpuAddress word : decoder_.entries<GpuAddress>(a.awaited, a.awaited_count))
            decoder_.wait(done, word, epoch + 1);
        decoder_.writes(done, {word(a.retired, static_cast<std::size_t>(a.count))}); // counts messages
        decoder_.set_count(done, a.epoch, epoch + 1);
    }

    // The events at which messages are there, and that of their beginning.
    std::vector<std::int32_t> pack_messages(const DriverCall& call, const PackArguments& a, bool remote,
                                            int start, std::int64_t epoch) {
        const auto messages = decoder_.entries<PackMessage>(a.messages, a.count);
        const auto jobs = decoder_.entries<HaloJob>(a.jobs, a.job_count);
        const auto of_message = check_jobs(jobs, messages.size(), call.name);
        std::map<std::int32_t, std::set<std::int32_t>> items; // of messages
        std::int32_t parts_count = 0;
        for (const HaloJob& job : jobs) {
            items[job.message].insert(job.item);
            parts_count = std::max(parts_count, job.item + 1);
        }
        const auto parts = decoder_.entries<PackPart>(a.parts, parts_count);

        for (GpuAddress word : decoder_.entries<GpuAddress>(a.opened, a.opened_count))
            decoder_.signal(start, word, epoch + 1);
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
            const int reads = decoder_.add(name + ": load", {start}),
                      writes = decoder_.add(name + ": store", {reads});
            const auto& of_it = items[static_cast<std::int32_t>(m)];
            std::vector<Stretch> stored; // by part
            for (auto item = of_it.begin(); item != of_it.end();)
                stored.push_back(pack_part(call.name, parts, item, of_it.end(), (epoch & 1) * a.slot_bytes,
                                           reads, writes));
            if (!remote && messages_.insert(stored.front().begin).second) // the transport reads no more
                decoder_.part_of_memory(stored.front().begin, stored.back().end - stored.front().begin,
                                        "message " + std::to_string(m) + " as it was packed");
            if (remote) {
                if (message.credit != 0) decoder_.wait(writes, message.credit, epoch + message.ahead);
                decoder_.writes(writes, {word(a.retired, m)}); // counts jobs
                decoder_.signal(writes, message.arrived, epoch + 1);
                decoder_.at(writes).waiting = of_message[m];
            }
            packed.push_back(writes);
        }
        if (remote && a.last != 0 && busy != a.busy)
            throw ScheduleError("'" + call.name + "' ends after " + std::to_string(a.busy) + " of " +
                                std::to_string(busy) + " messages");
        return packed;
    }

    Stretch word(GpuAddress words, std::size_t number) {
        return decoder_.stretch(words + number * sizeof(std::int64_t), sizeof(std::int64_t));
    }

    // One part: its sections are consecutive in the table, and fill a group together. Returns the stored
    // bytes.
    template <class Item>
    Stretch pack_part(const std::string& kernel, const std::vector<PackPart>& parts, Item& item, Item last,
                      std::int64_t slot, int reads, int writes) {
        const PackPart first = parts[*item];
        const std::int64_t group = LocalLayout::device_group;
        const std::int64_t site_bytes = first.group_bytes / group;
        std::int64_t filled = 0; // bytes of a group
        while (filled < first.group_bytes) {
            if (item == last) throw ScheduleError("'" + kernel + "' leaves a section of a part out");
            const PackPart& p = parts[*item++];
            if (p.packet_bytes < 1 || p.packet_bytes > 16 || (p.packet_bytes & (p.packet_bytes - 1)) != 0)
                throw ScheduleError("'" + kernel + "' packs packets of " + std::to_string(p.packet_bytes) +
                                    " bytes");
            if (p.sites != first.sites || p.count != first.count || p.group_bytes != first.group_bytes ||
                p.row_bytes != first.row_bytes ||
                p.field != first.field + (first.row_bytes != 0 ? filled / group : filled) ||
                p.to != first.to + filled)
                throw ScheduleError("'" + kernel + "' packs sections of a part that do not fit together");
            filled += p.packets * p.packet_bytes * group;
        }
        const Stretch all = groups_at(first.to + static_cast<std::uint64_t>(slot), first.count, site_bytes);
        const Stretch to = held_in(all, first.count, site_bytes);
        decoder_.writes(writes, {all});
        if (first.sites == 0) { // items, as their producer left them
            const Stretch from = groups_at(first.field, first.count, site_bytes);
            decoder_.reads(reads, {from});
            decoder_.at(writes).moves.push_back({to, held_in(from, first.count, site_bytes)});
            return all;
        }
        const auto sites = decoder_.entries<std::int32_t>(first.sites, first.count);
        const FieldStorage* field = field_at(first.field, sites.empty() ? -1 : sites.front());
        if (site_bytes != field->site_bytes())
            throw ScheduleError("'" + kernel + "' packs sites of " + std::to_string(site_bytes) +
                                " bytes of '" + field->label() + "', which has " +
                                std::to_string(field->site_bytes()));
        if (first.row_bytes != (field->borrowed() ? site_bytes : 0))
            throw ScheduleError("'" + kernel + "' packs '" + field->label() + "' from rows of " +
                                std::to_string(first.row_bytes) + " bytes");
        const int list = list_of_blocks(*field->layout(), sites, reinterpret_cast<const void*>(first.sites));
        const auto [packed, fresh] =
            packed_.emplace(std::tuple(field, first.sites, first.count, site_bytes), 0);
        if (fresh) packed->second = footprint_of_sites(*field, site_bytes, sites);
        decoder_.at(reads).reads.push_back(packed->second);
        decoder_.at(writes).holds.push_back({to, label(field), list, 0, site_bytes});
        return all;
    }

    void await_halos(const DriverCall& call) {
        const auto a = decoder_.arguments_of<ArrivalArguments>(call);
        const int event = decoder_.begin(call.name, call.stream);
        const std::int64_t epoch = decoder_.read_count(event, a.epoch);
        for (GpuAddress word : decoder_.entries<GpuAddress>(a.awaited, a.count))
            decoder_.wait(event, word, epoch + 1);
        if (a.last != 0) decoder_.set_count(event, a.epoch, epoch + 1);
    }
    void await_slots(const DriverCall& call) {
        const auto a = decoder_.arguments_of<AwaitArguments>(call);
        const int event = decoder_.begin(call.name, call.stream);
        const std::int64_t epoch = decoder_.read_count(event, a.epoch);
        for (const PackMessage& m : decoder_.entries<PackMessage>(a.messages, a.count))
            decoder_.wait(event, m.credit, epoch + m.ahead);
    }
    void signal_halos(const DriverCall& call) {
        const auto a = decoder_.arguments_of<SignalArguments>(call);
        const int event = decoder_.begin(call.name, call.stream);
        const std::int64_t epoch = decoder_.read_count(event, a.epoch);
        for (const PackMessage& m : decoder_.entries<PackMessage>(a.messages, a.count))
            decoder_.signal(event, m.arrived, epoch + 1);
    }
    void receive_halos(const DriverCall& call) {
        const auto a = decoder_.arguments_of<ReceiveArguments>(call);
        const int start = decoder_.begin(call.name, call.stream);
        const std::int64_t epoch = decoder_.read_count(start, a.epoch);
        const auto jobs = decoder_.entries<HaloJob>(a.jobs, a.job_count);
        std::set<std::int32_t> items;
        std::int32_t messages = 0;
        for (const HaloJob& job : jobs) {
            items.insert(job.item);
            messages = std::max(messages, job.message + 1);
        }
        check_jobs(jobs, static_cast<std::size_t>(messages), call.name);
        const auto sections =
            decoder_.entries<ReceiveSection>(a.sections, items.empty() ? 0 : *items.rbegin() + 1);
        std::vector<std::int32_t> loads{start};
        for (std::int32_t item : items) {
            const ReceiveSection& s = sections[item];
            const int event = decoder_.add(call.name + ", section " + std::to_string(item), {start});
            decoder_.wait(event, s.arrived, epoch + 1);
            if (s.bytes % 16 != 0) // the kernel's unit
                throw ScheduleError("'" + call.name + "' places a section of " + std::to_string(s.bytes) +
                                    " bytes, not of whole units of 16");
            const auto bytes = static_cast<std::uint64_t>(s.bytes);
            decoder_.touch(
                event, decoder_.stretch(s.to, bytes),
                decoder_.stretch(s.from + static_cast<std::uint64_t>((epoch & 1) * a.slot_bytes), bytes));
            loads.push_back(event);
        }
        const int done = decoder_.end(call.name + ": end", call.stream, std::move(loads));
        decoder_.writes(done, {decoder_.stretch(a.retired, sizeof(std::int64_t))}); // counts blocks
        if (a.last == 0) return;
        decoder_.set_count(done, a.epoch, epoch + 1);
        for (GpuAddress word : decoder_.entries<GpuAddress>(a.senders, a.senders_count))
            decoder_.signal(done, word, epoch + 1);
    }
    // Whether this is the launch of a halo item's producer.
    bool produce(const DriverCall& call) {
        const auto numbers = decoder_.numbers_of(call);
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
            const int event = decoder_.begin(call.name, call.stream);
            const auto count = static_cast<std::int64_t>(numbers[1]);
            const auto sites = decoder_.entries<std::int32_t>(numbers[2], count);
            const Layout& layout = *request.field->layout();
            for (const auto& [index, source] : producer->sources)
                decoder_.at(event).reads.push_back(
                    footprint_of_sites(*source, static_cast<std::int64_t>(source->block_bytes()), sites));
            const auto site_bytes = static_cast<std::int64_t>(request.field->block_bytes());
            const Stretch to = groups_at(numbers[2 + producer->output_parameter], count, site_bytes);
            decoder_.writes(event, {to});
            const int list = list_of_blocks(layout, sites, reinterpret_cast<const void*>(numbers[2]));
            decoder_.at(event).holds.push_back(
                {held_in(to, count, site_bytes), label(request.field.get()), list, 0, site_bytes});
            return true;
        }
        return false;
    }

    struct Touched {
        const TouchedSites* sites = nullptr;
        std::vector<std::int32_t> reads, writes; // numbers of footprints
    };
    const Touched& touched_at(std::uint64_t list, std::int64_t first, std::int64_t last) {
        const auto [found, fresh] = touched_.emplace(std::tuple(list, first, last), Touched{});
        Touched& touched = found->second;
        if (!fresh) return touched;
        std::vector<std::int32_t> positions = decoder_.entries<std::int32_t>(list, list == 0 ? 0 : last);
        if (list == 0) {
            for (std::int64_t p = first; p < last; ++p) positions.push_back(static_cast<std::int32_t>(p));
        } else {
            positions.erase(positions.begin(), positions.begin() + first);
        }
        touched.sites = &launch_.touched_at(std::move(positions));
        const auto these = [&](const FieldStorage& field, const TouchedSites::Blocks& blocks) {
            return footprint_of_blocks(field, static_cast<std::int64_t>(field.block_bytes()), blocks);
        };
        const auto whole = [&](const FieldStorage& field) {
            return decoder_.footprint({decoder_.stretch(field.owned_address(), field.owned_bytes())});
        };
        const TouchedSites& sites = *touched.sites;
        for (const auto& [field, blocks] : sites.reads) touched.reads.push_back(these(*field, blocks));
        for (const FieldStorage* field : sites.all_read) touched.reads.push_back(whole(*field));
        for (const auto& [field, blocks] : sites.writes) touched.writes.push_back(these(*field, blocks));
        for (const FieldStorage* field : sites.all_written) touched.writes.push_back(whole(*field));
        return touched;
    }
    // All sites of the domain, each once.
    void check_computed() {
        if (!d_.layout || (!computed_.empty() && computed_ == right_)) return; // as a run before
        std::vector<int> counts(static_cast<std::size_t>(d_.layout->nblocks()), 0), wanted(counts);
        for (const TouchedSites* sites : computed_)
            for (std::int32_t block : sites->positions) ++counts[static_cast<std::size_t>(block)];
        if (d_.domain.blocks.empty()) {
            std::fill(wanted.begin() + d_.domain.begin, wanted.begin() + d_.domain.end, 1);
        } else {
            for (std::int32_t block : d_.domain.blocks) wanted[static_cast<std::size_t>(block)] = 1;
        }
        for (std::size_t block = 0; block < wanted.size(); ++block)
            if (counts[block] != wanted[block])
                throw ScheduleError("run " + std::to_string(decoder_.runs() + 1) + " computes site " +
                                    std::to_string(block) + " " + std::to_string(counts[block]) +
                                    " times, not " + std::to_string(wanted[block]));
        right_ = computed_;
    }

    void compute(const DriverCall& call) {
        const auto numbers = decoder_.numbers_of(call);
        const auto first = static_cast<std::int64_t>(numbers[0]),
                   last = static_cast<std::int64_t>(numbers[1]);
        compute_at(decoder_.begin(name_at(last - first), call.stream), numbers[2], first, last, numbers[4],
                   numbers[5]);
    }
    std::string name_at(std::int64_t sites) const {
        return "kernel '" + d_.cost.name + "' at " + std::to_string(sites) + " sites";
    }

    // One launch of blocks that pack, of others or the same that compute the bulk, and of others that wait
    // and compute the boundary. The blocks are in this order, so that blocks that others wait for get their
    // places.
    void compute_with_halos(const DriverCall& call) {
        HaloRoles a;
        if (call.arguments.size() < sizeof a + 6 * sizeof(std::uint64_t))
            throw ScheduleError("the kernel with halos is launched without roles");
        const std::size_t words = (call.arguments.size() - sizeof a) / sizeof(std::uint64_t);
        std::memcpy(static_cast<void*>(&a), call.arguments.data() + words * sizeof(std::uint64_t), sizeof a);
        std::vector<std::uint64_t> numbers(words);
        std::memcpy(numbers.data(), call.arguments.data(), words * sizeof(std::uint64_t));
        const bool packs = a.pack_blocks > 0, waits = a.late_blocks > 0;
        const auto bulk_first = static_cast<std::int64_t>(numbers[0]),
                   bulk_last = static_cast<std::int64_t>(numbers[1]);
        if (static_cast<std::int64_t>(call.blocks) != a.grid())
            throw ScheduleError("the kernel with halos has blocks without a role, or roles without blocks");
        if (a.first_bulk != a.pack_blocks && (a.first_bulk != 0 || a.sites_wait != 0))
            throw ScheduleError("the kernel with halos has blocks that pack and are part of the bulk's");
        if (a.sites_wait != 0 && packs && a.pack.last == 0)
            throw ScheduleError("the kernel with halos waits until all is packed, which nobody says");
        // in any order in which a device assigns places, one is the bulk's
        decoder_.wait_ahead(a.pack_blocks + a.late_blocks);
        const int start = decoder_.begin(d_.cost.name + " with halos", call.stream);
        const std::int64_t epoch = decoder_.read_count(start, a.pack.epoch);
        std::vector<std::int32_t> all{start}, packed;
        if (packs) {
            packed = pack_messages(call, a.pack, true, start, epoch);
            for (std::int32_t message : packed) {
                std::int64_t& waiting = decoder_.at(message).waiting;
                waiting = a.sites_wait != 0 ? call.blocks : std::min(waiting, a.pack_blocks);
            }
            all.insert(all.end(), packed.begin(), packed.end());
        }
        const auto after = [&] {
            std::vector<std::int32_t> before{start};
            if (a.sites_wait != 0) before.insert(before.end(), packed.begin(), packed.end());
            return before;
        };
        if (a.bulk_blocks > 0) {
            all.push_back(decoder_.add("bulk of " + name_at(bulk_last - bulk_first), after()));
            compute_at(all.back(), numbers[2], bulk_first, bulk_last, numbers[4], numbers[5]);
        }
        if (waits) {
            all.push_back(decoder_.add("boundary of " + name_at(a.end - a.begin), after()));
            const int late = all.back();
            decoder_.at(late).waiting = a.late_blocks;
            for (GpuAddress word : decoder_.entries<GpuAddress>(a.pack.awaited, a.pack.awaited_count))
                decoder_.wait(late, word, epoch + 1);
            if (a.end > a.begin)
                compute_at(late, a.blocks, a.begin, a.end, d_.sums.in_kernel_reduction ? numbers[4] : a.sums,
                           numbers[5]);
        }
        const int done = decoder_.end(d_.cost.name + " with halos: end", call.stream, std::move(all));
        if (packs) // counts messages, and signals that all are packed
            decoder_.writes(
                done, {word(a.pack.retired, static_cast<std::size_t>(a.pack.count)), word(a.packed, 0)});
        if (a.counted == 0) return;
        decoder_.writes(done, {word(a.retired, 0)});
        const std::int64_t checked = a.that_count();
        if (a.counted != checked)
            throw ScheduleError("the kernel with halos ends its exchange after " + std::to_string(a.counted) +
                                " of " + std::to_string(checked) + " blocks");
        decoder_.set_count(done, a.pack.epoch, epoch + 1);
    }

    // The accesses of the sites of a list, or of a range of blocks, at an event; and where their
    // contributions to sums are stored.
    void compute_at(int event, std::uint64_t list, std::int64_t first, std::int64_t last, std::uint64_t sums,
                    std::uint64_t stride) {
        const Touched& touched = touched_at(list, first, last);
        computed_.push_back(touched.sites);
        decoder_.at(event).reads = touched.reads;
        decoder_.at(event).writes = touched.writes;
        for (const auto& [request, parity] : touched.sites->ghosts) {
            const FieldStorage& field = *request->field;
            const Layout& layout = *field.layout();
            const Slab& slab = layout.slabs()[request->slab];
            if (slab.count[parity] == 0 || (request->parities >> parity & 1) == 0) continue;
            const auto site_bytes = static_cast<std::int64_t>(field.block_bytes());
            const Stretch where = groups_at(field.address_of_ghost(layout.first_ghost() + slab.first[parity]),
                                            slab.count[parity], site_bytes);
            decoder_.reads(event, {where});
            decoder_.at(event).expects.push_back({held_in(where, slab.count[parity], site_bytes),
                                                  label(&field), list_of_ghosts(layout, slab, parity), 0,
                                                  site_bytes});
        }
        if (d_.sums.in_kernel_reduction) { // launches add in any order: no other writes may occur meanwhile
            const auto words =
                static_cast<std::uint64_t>(d_.sums.nslices) * d_.sums.results() + d_.sums.groups();
            results_.push_back(decoder_.stretch(sums, words * BinnedSum::words * sizeof(std::int64_t)));
            decoder_.reads(event, {results_.back()});
        } else if (d_.sums.count > 0) {
            std::vector<Stretch> all;
            for (int k = 0; k < d_.sums.count + d_.sums.labels; ++k)
                all.push_back(decoder_.stretch(sums + static_cast<std::uint64_t>(k) * stride * sizeof(double),
                                               static_cast<std::uint64_t>(last - first) * sizeof(double)));
            results_.insert(results_.end(), all.begin(), all.end());
            decoder_.at(event).writes.push_back(decoder_.footprint(std::move(all)));
        }
    }

    CallDecoder& decoder_;
    const RecordedLaunch& launch_;
    const LaunchDefinition& d_;
    std::vector<FieldStorage*> fields_; // in an order that all ranks share
    std::map<std::pair<const void*, std::size_t>, int> lists_;
    std::map<std::tuple<const Layout*, int, int>, int> ghost_lists_;
    std::map<std::tuple<std::uint64_t, std::int64_t, std::int64_t>, Touched> touched_;
    std::map<std::tuple<const FieldStorage*, GpuAddress, std::int64_t, std::int64_t>, int>
        packed_; // footprints
    std::vector<Stretch> results_;
    std::set<std::uint64_t> messages_;                  // where those that are packed here begin
    std::vector<const TouchedSites*> computed_, right_; // in this run; in one that was right
};

} // namespace

std::unique_ptr<KernelFamily> RecordedLaunch::family(CallDecoder& decoder,
                                                     std::span<const DriverCall>) const {
    return std::make_unique<LaunchKernels>(decoder, *this);
}

const TouchedSites& RecordedLaunch::touched_at(std::vector<std::int32_t> positions) const {
    const std::lock_guard lock(mutex_);
    for (const TouchedSites& known : known_)
        if (known.positions == positions) return known;
    const SiteFootprint all = footprint_at(*definition, requests, positions);
    TouchedSites sites{std::move(positions), {}, {}, all.all_read, all.all_written, {}};
    const auto blocks_of = [](const std::vector<char>& there) {
        TouchedSites::Blocks blocks;
        for (auto at = there.begin(); (at = std::find(at, there.end(), 1)) != there.end();) {
            const auto last = std::find(at, there.end(), 0);
            blocks.emplace_back(at - there.begin(), last - there.begin());
            at = last;
        }
        return blocks;
    };
    for (const auto& [field, there] : all.reads) sites.reads.emplace_back(field, blocks_of(there));
    for (const auto& [field, there] : all.writes) sites.writes.emplace_back(field, blocks_of(there));
    sites.ghosts.assign(all.ghosts.begin(), all.ghosts.end());
    return known_.emplace_back(std::move(sites));
}

std::string RecordedLaunch::describe(const DriverCall& call) const {
    const bool with_halos = call.function == definition->with_halos.function.handle;
    if (call.function != definition->gpu_kernel.handle && !with_halos) return call.name;
    std::uint64_t range[2] = {};
    if (call.arguments.size() >= sizeof range) std::memcpy(range, call.arguments.data(), sizeof range);
    std::string text = definition->cost.name + " at " + std::to_string(range[1] - range[0]) + " sites";
    HaloRoles roles;
    if (!with_halos || call.arguments.size() < sizeof roles) return text;
    std::memcpy(static_cast<void*>(&roles), call.arguments.data() + call.arguments.size() - sizeof roles,
                sizeof roles);
    if (roles.late_blocks > 0) text += ", at " + std::to_string(roles.end - roles.begin) + " that wait";
    if (roles.pack_blocks > 0) text += ", with " + std::to_string(roles.pack_blocks) + " blocks that pack";
    return text;
}

} // namespace jali
