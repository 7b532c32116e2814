#include "halo/gpu_exchange.hpp"
#include "device/timeline.hpp"

#include <algorithm>
#include <utility>

namespace jali {

namespace {

std::size_t aligned(std::size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

// Whether blocks of the computation's kernel do it.
bool by_roles(const HaloStep& step) {
    return step.actions.size() > 1 && step.has_any(set_of({HaloAction::bulk, HaloAction::boundary}));
}

} // namespace

GpuExchange::GpuExchange(std::shared_ptr<PlacedLayout> layout, const std::vector<HaloRequest>& requests,
                         const std::vector<char>& stale, const HaloPolicy& policy,
                         std::shared_ptr<Communicator> communicator,
                         const std::vector<std::pair<std::shared_ptr<FieldStorage>, int>>& written)
    : policy_(policy) {
    halo_.layout = std::move(layout);
    halo_.gpu = halo_.layout->gpu();
    halo_.communicator = std::move(communicator);
    const std::string trouble = why_no_halo_policy(policy_, *halo_.layout, *halo_.communicator);
    if (!trouble.empty()) throw GpuError("halo policy " + policy_.name + " is not possible here: " + trouble);
    make_messages(requests, stale);
    bool writes_packed = false;
    for (const Message& message : halo_.messages)
        for (const Part& part : message.parts)
            for (const auto& [field, parities] : written)
                writes_packed |= field.get() == part.field && (parities >> part.parity & 1);
    halo_.bulk_waits_for_packing = writes_packed && policy_.overlap;
    for (std::size_t k = 0; k < requests.size(); ++k) {
        const auto& field = requests[k].field;
        const bool sent = stale[2 * k] || stale[2 * k + 1];
        if (sent && std::find(halo_.fields.begin(), halo_.fields.end(), field) == halo_.fields.end())
            halo_.fields.push_back(field);
    }
    halo_.retired = halo_.gpu->allocate(
        (halo_.messages.size() + halo_.stages.size() + 2) * sizeof(std::int64_t), "halo counters");
    halo_.gpu->fill(halo_.retired.address(), 0, halo_.retired.size());
    if (policy_.in_kernel()) {
        all_packed_ = halo_.gpu->allocate(sizeof(std::int64_t), "halo counters");
        halo_.gpu->fill(all_packed_.address(), 0, all_packed_.size());
    }
    carrier_ = policy_.transport->make(halo_);
}

void GpuExchange::make_messages(const std::vector<HaloRequest>& requests, const std::vector<char>& stale) {
    const PlacedLayout& layout = *halo_.layout;
    std::vector<int> directions; // of the boundary stages, in order
    for (const Slab& slab : layout.slabs()) {
        Message message;
        message.slab = slab.number;
        message.from = slab.box.from;
        message.to = slab.box.to;
        for (std::size_t k = 0; k < requests.size(); ++k) {
            const auto& request = requests[k];
            if (request.slab != slab.number) continue;
            for (int parity = 0; parity < 2; ++parity) {
                if (!stale[2 * k + parity]) continue;
                FieldStorage* field = request.field.get();
                filled_.push_back({field, slab.number, parity, 0});
                if (slab.count[parity] == 0 && slab.send_count[parity] == 0) continue;
                Part part{};
                part.field = field;
                part.parity = parity;
                part.send_count = slab.send_count[parity];
                part.receive_count = slab.count[parity];
                part.send_sites = parity ? slab.send_count[0] : 0;
                part.ghost = layout.first_ghost() + slab.first[parity];
                part.send_offset = message.send_bytes;
                part.receive_offset = message.receive_bytes;
                message.send_bytes += halo_.send_bytes_of(part);
                message.receive_bytes += halo_.receive_bytes_of(part);
                message.parts.push_back(part);
            }
        }
        if (message.parts.empty()) continue;
        message.send_offset = halo_.send_bytes;
        message.receive_offset = halo_.receive_bytes;
        halo_.send_bytes += aligned(message.send_bytes);
        halo_.receive_bytes += aligned(message.receive_bytes);
        message.direction = slab.highest_direction();
        directions.push_back(message.direction);
        halo_.messages.push_back(std::move(message));
    }
    std::sort(directions.begin(), directions.end());
    directions.erase(std::unique(directions.begin(), directions.end()), directions.end());
    // a rank without a part in it goes through an exchange as well, so that all count alike
    if (!policy_.per_direction || directions.empty()) directions.assign(1, layout.ndim() - 1);
    for (int direction : directions) halo_.stages.emplace_back().direction = direction;
    std::stable_sort(halo_.messages.begin(), halo_.messages.end(),
                     [](const Message& a, const Message& b) { return a.direction < b.direction; });
    for (const Message& message : halo_.messages) {
        for (std::size_t s = 0; s < halo_.stages.size(); ++s) {
            if (message.direction > halo_.stages[s].direction) continue;
            ++halo_.stages[s].messages;
            break;
        }
    }
    // Producers write what they compute as fields of their own, from which it is packed.
    std::size_t produced = 0;
    for (Message& message : halo_.messages) {
        for (Part& part : message.parts) {
            if (part.field->producer() == nullptr) continue;
            part.produced = static_cast<std::int64_t>(produced);
            produced += aligned(halo_.send_bytes_of(part));
        }
    }
    if (produced > 0) produced_ = halo_.gpu->allocate(produced, "halo items");
}

void GpuExchange::produce_items(void* stream) {
    for (const Message& message : halo_.messages) {
        for (std::size_t next = 0; next < message.parts.size();) {
            const Part& part = message.parts[next++];
            const HaloProducer* producer = part.field->producer();
            if (producer == nullptr || part.send_count == 0) continue;
            // odd sites that follow the even ones without a gap are computed in the same launch
            std::int64_t count = part.send_count;
            const auto follows = [&](const Part& more) {
                return more.field == part.field && count % halo_.layout->group() == 0 &&
                       more.send_sites == part.send_sites + count &&
                       more.produced ==
                           part.produced + count * static_cast<std::int64_t>(part.field->block_bytes());
            };
            for (; next < message.parts.size() && follows(message.parts[next]); ++next)
                count += message.parts[next].send_count;
            std::vector<std::uint64_t> arguments(2 + producer->parameters.size());
            arguments[1] = static_cast<std::uint64_t>(count);
            std::uint64_t* parameters = arguments.data() + 2;
            std::copy(producer->parameters.begin(), producer->parameters.end(), parameters);
            fill_device_parameters(parameters, *halo_.layout);
            parameters[0] = halo_.layout->on_device(halo_.layout->slabs()[message.slab]) +
                            part.send_sites * sizeof(std::int32_t);
            for (const auto& [index, source] : producer->sources) parameters[index] = source->address();
            parameters[producer->output_parameter] = produced_.address() + part.produced;
            const std::int64_t blocks = (count + producer->threads - 1) / producer->threads;
            const DeviceSpan span(*halo_.gpu, stream, Phase::produce, part.field->label());
            halo_.gpu->launch(producer->gpu_kernel, static_cast<unsigned>(blocks),
                              static_cast<unsigned>(producer->threads), std::as_bytes(std::span(arguments)),
                              stream);
        }
    }
}

PackArguments GpuExchange::pack_arguments(const HaloStep& step) const {
    PackArguments arguments{};
    arguments.parts = parts_.address();
    arguments.messages = sends_.address();
    arguments.jobs = send_jobs_.address();
    arguments.count = static_cast<std::int64_t>(halo_.messages.size());
    arguments.job_count = send_job_count_;
    arguments.busy = std::count_if(halo_.messages.begin(), halo_.messages.end(),
                                   [](const Message& message) { return message.send_bytes > 0; });
    arguments.retired = halo_.retired_word(0);
    carrier_->prepare(arguments, step);
    return arguments;
}

void GpuExchange::pack(const HaloStep& step, void* stream) {
    const bool carries = step.has(HaloAction::put);
    const char* name = !carries                     ? "pack"
                       : step.has(HaloAction::wait) ? "pack, store and await"
                                                    : "pack and store";
    const DeviceSpan span(*halo_.gpu, stream, carries ? Phase::transport : Phase::pack, name,
                          watched() ? halo_.sent() : Work{});
    halo_.gpu->launch(halo_.gpu->builtin(carries ? "pack_halos" : "gather_halos"),
                      static_cast<unsigned>(std::max<std::int64_t>(1, send_job_count_)), pack_blocks_.threads,
                      pack_arguments(step), stream, Urgency::first);
}

// Blocks of the kernel pack, compute and wait. The waiting ones are the last, or of a launch that waits for
// nothing of this device.
void GpuExchange::run_in_kernel(const HaloStep& step, void* stream) {
    const auto [given, most_pack_blocks] = computation_->roles(step);
    HaloRoles roles = given;
    roles.pack = pack_arguments(step);
    roles.pack.last = 1; // what is packed is counted
    if (step.has(HaloAction::pack))
        roles.pack_blocks = std::clamp<std::int64_t>(send_job_count_, 1, most_pack_blocks);
    // what another launch packs is packed before this one
    roles.sites_wait = halo_.bulk_waits_for_packing && step.has(HaloAction::pack);
    roles.packed = all_packed_.address();
    roles.retired = halo_.retired_word(halo_.messages.size() + halo_.stages.size() + 1);
    // who looks at the count of exchanges must have done so before it grows
    if (step.has(HaloAction::wait) && step.stage + 1 == stages())
        roles.counted = roles.pack_blocks + roles.late_blocks + (roles.sites_wait ? roles.bulk_blocks : 0);
    computation_->launch(step, roles, stream);
}

void GpuExchange::prepare(HaloComputation& computation) {
    halo_.gpu->refuse_if_aborted();
    carrier_->begin();
    for (Filled& f : filled_) f.version = f.field->version(f.parity);
    make_tables();
    HaloShape shape;
    shape.stages = stages();
    shape.produces = produced_.size() > 0;
    shape.on = halo_switches();
    shape.has_bulk = shape.on.bulk && computation.has_bulk();
    shape.bulk_waits_for_packing = halo_.bulk_waits_for_packing;
    shape.boundary_fills = computation.boundary_fills();
    shape.kernel_has_roles = computation.has_roles();
    if (!program_ || shape != shape_) make_program(shape);
}

void GpuExchange::rehearse(HaloComputation& computation) {
    halo_.gpu->make_current();
    prepare(computation);
    for (const HaloStep& step : steps_) {
        if (by_roles(step)) computation.roles(step); // its kernel is compiled
        if (step.has(HaloAction::exchange)) carrier_->rehearse(step, halo_.gpu->stream());
    }
    if (policy_.overlap) halo_.layout->bulk_stream();
    mark_filled();
}

StreamProgram::Work GpuExchange::work_of(const HaloStep& step) {
    if (step.actions.empty() || step.has_any(set_of({HaloAction::begin, HaloAction::join}))) return {};
    if (by_roles(step)) return [this, &step](void* stream) { run_in_kernel(step, stream); };
    if (step.has(HaloAction::bulk)) return [this](void* stream) { computation_->bulk(stream); };
    if (step.has(HaloAction::boundary))
        return [this, stage = step.stage](void* stream) { computation_->boundary(stage, stream); };
    if (step.has(HaloAction::produce)) return [this](void* stream) { produce_items(stream); };
    if (step.has(HaloAction::pack)) return [this, &step](void* stream) { pack(step, stream); };
    return [this, &step](void* stream) { carrier_->carry(step, stream); };
}

void GpuExchange::make_program(const HaloShape& shape) {
    program_.reset(); // its work is that of the steps
    steps_ = halo_steps(policy_, shape);
    auto program = std::make_unique<StreamProgram>(halo_.gpu);
    for (const HaloStep& step : steps_) program->add(words_of(step), step.beside, step.needs, work_of(step));
    program_ = std::move(program);
    shape_ = shape;
}

// The exchange is on the device's own stream and goes first, and the bulk is beside it, so that a bulk which
// fills the device cannot keep the exchange from beginning.
void GpuExchange::run(HaloComputation& computation) {
    halo_.gpu->make_current();
    void* const main = halo_.gpu->stream();
    // What the host decides at each exchange would be decided once for all repetitions.
    if (!policy_.transport->traits.recordable && halo_.gpu->is_capturing(main))
        throw GpuError("halo policy " + policy_.name +
                       " cannot be recorded in a graph; use one of the remote-write or buffered-write "
                       "policies, or one of the vendor's library");
    prepare(computation);
    computation_ = &computation;
    void* const streams[] = {main, policy_.overlap ? halo_.layout->bulk_stream() : main};
    program_->run(streams);
    if (shape_.on.transport) carrier_->end(main);
    mark_filled();
    count();
}

void GpuExchange::make_tables() {
    std::vector<std::uint64_t> addresses = carrier_->addresses();
    for (const Message& message : halo_.messages) {
        for (const Part& part : message.parts) {
            addresses.push_back(part.field->address());
            addresses.push_back(HaloMessages::ghosts_of(part));
            addresses.push_back(carrier_->place_of(message, part));
        }
    }
    if (addresses == addresses_) return;
    addresses_.reset(); // until all tables are there
    const PlacedLayout& layout = *halo_.layout;
    pack_blocks_ = policy_.overlap && policy_.transport->traits.stores ? beside_bulk : halo_blocks;
    std::vector<PackPart> parts;
    std::vector<PackMessage> sends;
    std::vector<HaloJob> jobs;
    halo_.for_each([&](std::size_t, std::size_t number, const Message& message) {
        const GpuAddress sites = halo_.layout->on_device(layout.slabs()[message.slab]);
        PackMessage& send = sends.emplace_back(carrier_->words_of(message));
        for (const Part& part : message.parts) {
            const bool item = part.field->producer() != nullptr;
            const GpuAddress source = item ? produced_.address() + part.produced : part.field->address();
            const GpuAddress place = carrier_->place_of(message, part);
            const auto group = static_cast<std::int64_t>(layout.group());
            std::int64_t first = 0; // of a section, in every group
            for (const MemorySection& section : part.field->memory().sections) {
                const auto bytes = layout.whole_groups(part.send_count) * section.bytes();
                send.jobs += deal_out(jobs, parts.size(), number, static_cast<std::size_t>(bytes),
                                      halo_.send_bytes, pack_blocks_);
                parts.push_back({source + first, item ? 0 : sites + part.send_sites * sizeof(std::int32_t),
                                 part.send_count, section.units / section.packet_units,
                                 section.packet_bytes(), group * part.field->site_bytes(),
                                 part.field->borrowed() ? part.field->site_bytes() : 0, place + first});
                first += group * section.bytes();
            }
        }
    });
    const auto upload = [&](const auto& rows) {
        return halo_.gpu->upload(rows.data(), rows.size() * sizeof rows[0], "halo tables");
    };
    parts_ = upload(parts);
    sends_ = upload(sends);
    send_jobs_ = upload(jobs);
    send_job_count_ = static_cast<std::int64_t>(jobs.size());
    carrier_->make_tables();
    addresses_ = std::move(addresses);
}

void GpuExchange::mark_filled() {
    for (const Filled& f : filled_) f.field->set_held(f.slab, f.parity, f.version);
}

void GpuExchange::count() {
    HaloCounters total;
    for (const Filled& f : filled_) {
        ++f.field->counters.exchanged;
        ++total.exchanged;
    }
    for (const Message& message : halo_.messages) {
        if (message.send_bytes == 0) continue;
        ++total.messages;
        std::vector<FieldStorage*> seen;
        for (const Part& part : message.parts) {
            const auto bytes = part.send_count * static_cast<std::int64_t>(part.field->block_bytes());
            part.field->counters.bytes += bytes;
            total.bytes += bytes;
            if (std::find(seen.begin(), seen.end(), part.field) == seen.end()) {
                seen.push_back(part.field);
                ++part.field->counters.messages;
            }
        }
    }
    halo_.layout->counters.add(total);
    count_in_process(total);
}

} // namespace jali
