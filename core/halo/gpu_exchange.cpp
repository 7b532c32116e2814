#include "halo/gpu_exchange.hpp"
#include "device/timeline.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace jali {

namespace {

// Whether blocks of the computation's kernel do it.
bool by_roles(const Batch& batch) {
    return batch.roles.size() > 1 && batch.has_any(set_of({StepRole::bulk, StepRole::boundary}));
}

// Threads of a block where no multiprocessor would have a second one: numbers of few sites come faster by
// many.
constexpr int small_block = 64;

} // namespace

GpuExchange::GpuExchange(std::shared_ptr<LocalLayout> layout, const std::vector<HaloRequest>& requests,
                         const std::vector<char>& stale, const HaloPolicy& policy,
                         std::shared_ptr<Communicator> communicator,
                         const std::vector<std::pair<std::shared_ptr<FieldStorage>, int>>& written)
    : policy_(policy), halo_(std::move(layout), requests, stale, policy.per_direction) {
    halo_.gpu = halo_.layout->gpu();
    halo_.communicator = std::move(communicator);
    const std::string trouble = why_no_halo_policy(policy_, *halo_.layout, *halo_.communicator);
    if (!trouble.empty()) throw GpuError("halo policy " + policy_.name + " is not possible here: " + trouble);
    for (HaloMessages::Message& message : halo_.messages) {
        message.goes_by = message.comes_by = policy_.transport;
        for (const HaloMessages::Part& part : message.parts)
            for (const auto& [field, parities] : written)
                writes_packed_ |= field.get() == part.field && (parities >> part.parity & 1);
    }
    // of a field that is packed in one parity and written in the other steps, which know whole fields, say
    // nothing
    for (const auto& [field, parities] : written)
        if (writes_packed_ ||
            std::find(halo_.fields.begin(), halo_.fields.end(), field) == halo_.fields.end())
            written_.push_back(field.get());
    halo_.retired = halo_.gpu->allocate((halo_.messages.size() + static_cast<std::size_t>(stages()) + 2) *
                                            sizeof(std::int64_t),
                                        "halo counters");
    halo_.gpu->fill(halo_.retired.address(), 0, halo_.retired.size());
    if (policy_.in_kernel()) {
        all_packed_ = halo_.gpu->allocate(sizeof(std::int64_t), "halo counters");
        halo_.gpu->fill(all_packed_.address(), 0, all_packed_.size());
    }
    connection_ = policy_.transport->make(halo_);
    make_program(HaloShape{.stages = stages(), .produces = halo_.produced_bytes > 0});
    allocate();
}

void GpuExchange::allocate() {
    const auto bytes_of = [&](HaloBuffer::Of of) { return halo_.steps.bytes_of(of); };
    if (const auto bytes = bytes_of(HaloBuffer::Of::items)) items_ = halo_.gpu->allocate(bytes, "halo items");
    if (const auto bytes = bytes_of(HaloBuffer::Of::packed))
        packed_ = halo_.gpu->allocate(bytes, "halo messages sent");
    if (const auto bytes = bytes_of(HaloBuffer::Of::staged))
        staged_ = halo_.gpu->allocate_pinned(bytes, "halo messages sent");
    if (const auto bytes = bytes_of(HaloBuffer::Of::received))
        received_ = halo_.gpu->allocate_pinned(bytes, "halo messages received");
}

GpuAddress GpuExchange::address_of(const HaloBuffer& buffer) const {
    switch (buffer.of) {
    case HaloBuffer::Of::owned:
        return buffer.field->address();
    case HaloBuffer::Of::ghosts:
        return buffer.field->address_of_ghost(halo_.layout->first_ghost());
    case HaloBuffer::Of::their_ghosts:
        return buffer.field->ghosts_of(buffer.rank);
    case HaloBuffer::Of::items:
        return items_.address();
    case HaloBuffer::Of::packed:
        return packed_.address();
    case HaloBuffer::Of::staged:
        return reinterpret_cast<GpuAddress>(staged_.data());
    case HaloBuffer::Of::received:
        return reinterpret_cast<GpuAddress>(received_.data());
    case HaloBuffer::Of::slot:
        return connection_->slot_of(halo_.communicator->rank());
    case HaloBuffer::Of::their_slot:
        return connection_->slot_of(buffer.rank);
    }
    throw std::logic_error("halo: a buffer of no kind");
}

// The producers of an exchange run beside each other: all but the first begin without waiting for the one in
// front, and wait for it at their end, so that all have ended with the last one.
void GpuExchange::produce_items(void* stream) {
    std::uint64_t in_front = 0; // producers
    for (const HaloMessages::Message& message : halo_.messages) {
        for (std::size_t next = 0; next < message.parts.size();) {
            const HaloMessages::Part& part = message.parts[next++];
            const HaloProducer* producer = part.field->producer();
            if (producer == nullptr || part.send_count == 0) continue;
            // odd sites that follow the even ones without a gap are computed in the same launch
            std::int64_t count = part.send_count;
            const auto follows = [&](const HaloMessages::Part& more) {
                return more.field == part.field && count % halo_.layout->group() == 0 &&
                       more.send_sites == part.send_sites + count &&
                       more.produced ==
                           part.produced + static_cast<std::size_t>(count) * part.field->block_bytes();
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
            parameters[producer->output_parameter] = items_.address() + part.produced;
            parameters[2] = in_front++;
            const std::int64_t work = count * producer->members;
            const int threads =
                work <= small_block * halo_.gpu->multiprocessors() ? small_block : producer->threads;
            const std::int64_t blocks = (work + threads - 1) / threads;
            const DeviceSpan span(*halo_.gpu, stream, Phase::produce, part.field->label());
            halo_.gpu->launch(producer->gpu_kernel, static_cast<unsigned>(blocks),
                              static_cast<unsigned>(threads), std::as_bytes(std::span(arguments)), stream);
        }
    }
}

PackArguments GpuExchange::pack_arguments(const Batch& batch) const {
    PackArguments arguments{};
    arguments.parts = parts_.address();
    arguments.messages = sends_.address();
    arguments.jobs = send_jobs_.address();
    arguments.count = static_cast<std::int64_t>(halo_.messages.size());
    arguments.job_count = send_job_count_;
    arguments.busy = std::count_if(halo_.messages.begin(), halo_.messages.end(),
                                   [](const auto& message) { return message.send_bytes > 0; });
    arguments.retired = halo_.retired_word(0);
    connection_->prepare(arguments, batch);
    return arguments;
}

void GpuExchange::pack(const Batch& batch, void* stream) {
    const bool carries = batch.has(StepRole::put);
    const char* name = !carries                    ? "pack"
                       : batch.has(StepRole::wait) ? "pack, store and await"
                                                   : "pack and store";
    const DeviceSpan span(*halo_.gpu, stream, carries ? Phase::transport : Phase::pack, name,
                          watched() ? halo_.sent() : Work{});
    halo_.gpu->launch(halo_.gpu->builtin(carries ? "pack_halos" : "gather_halos"),
                      static_cast<unsigned>(std::max<std::int64_t>(1, send_job_count_)), pack_blocks_.threads,
                      pack_arguments(batch), stream, LaunchPriority::first);
}

// Blocks of the kernel pack, compute and wait. The waiting ones are the last, or of a launch that waits for
// nothing of this device.
void GpuExchange::run_in_kernel(const Batch& batch, void* stream) {
    const auto [given, resident_blocks] = computation_->roles(batch);
    HaloRoles roles = given;
    roles.pack = pack_arguments(batch);
    roles.pack.last = 1; // what is packed is counted
    // if another launch packs, it is complete before this one
    roles.sites_wait = writes_packed_ && policy_.overlap && batch.has(StepRole::pack);
    if (batch.has(StepRole::pack)) roles.deal_out(send_job_count_, resident_blocks);
    roles.packed = all_packed_.address();
    roles.retired = halo_.retired_word(halo_.messages.size() + static_cast<std::size_t>(stages()) + 1);
    // all blocks that read the count of exchanges must have read it before it grows
    if (batch.has(StepRole::wait) && batch.stage + 1 == stages()) roles.counted = roles.that_count();
    computation_->launch(batch, roles, stream);
}

void GpuExchange::prepare(HaloComputation& computation) {
    halo_.gpu->refuse_if_aborted();
    connection_->begin();
    halo_.note_versions();
    HaloShape shape;
    shape.stages = stages();
    shape.produces = halo_.produced_bytes > 0;
    shape.on = halo_switches();
    shape.has_bulk = shape.on.bulk && computation.has_bulk();
    shape.bulk_waits_for_packing = writes_packed_ && policy_.overlap;
    shape.boundary_fills = computation.boundary_fills();
    shape.kernel_has_roles = computation.has_roles();
    if (shape != shape_) make_program(shape);
    make_tables();
}

void GpuExchange::warm_up(HaloComputation& computation) {
    const CurrentGpu current(*halo_.gpu);
    prepare(computation);
    for (const Batch& batch : halo_.steps.batches) {
        if (by_roles(batch)) computation.roles(batch); // its kernel is compiled
        if (batch.has(StepRole::exchange)) connection_->warm_up(batch, halo_.gpu->stream());
    }
    if (policy_.overlap) halo_.layout->bulk_stream();
    halo_.mark_filled();
}

StreamProgram::Work GpuExchange::work_of(const Batch& batch) {
    if (batch.roles.empty()) return {};
    if (by_roles(batch)) return [this, &batch](void* stream) { run_in_kernel(batch, stream); };
    if (batch.has(StepRole::bulk)) return [this](void* stream) { computation_->bulk(stream); };
    if (batch.has(StepRole::boundary))
        return [this, stage = batch.stage](void* stream) { computation_->boundary(stage, stream); };
    if (batch.has(StepRole::produce)) return [this](void* stream) { produce_items(stream); };
    if (batch.has(StepRole::pack)) return [this, &batch](void* stream) { pack(batch, stream); };
    return [this, &batch](void* stream) { connection_->carry(batch, stream); };
}

void GpuExchange::make_program(const HaloShape& shape) {
    program_.reset(); // its steps refer to the batches; tables, which graphs may use, are kept
    halo_.steps = halo_schedule(halo_, policy_, shape, written_);
    auto program = std::make_unique<StreamProgram>(halo_.gpu);
    for (const Batch& batch : halo_.steps.batches)
        program->add(words_of(batch), batch.stream, batch.needs, work_of(batch));
    program_ = std::move(program);
    shape_ = shape;
}

// The exchange is on the device's own stream and goes first, and the bulk is beside it, so that a bulk which
// fills the device cannot keep the exchange from beginning.
void GpuExchange::run(HaloComputation& computation) {
    const CurrentGpu current(*halo_.gpu);
    void* const main = halo_.gpu->stream();
    // Decisions of the host at each exchange would be made once for all repetitions.
    if (!policy_.transport->traits.recordable && halo_.gpu->is_capturing(main))
        throw GpuError("halo policy " + policy_.name +
                       " cannot be recorded in a graph; use one of the remote-write, buffered-write or "
                       "copy-engine policies, or one of the vendor's library");
    prepare(computation);
    computation_ = &computation;
    void* const streams[] = {main, policy_.overlap ? halo_.layout->bulk_stream() : main};
    program_->run(streams);
    if (shape_.on.transport) connection_->end(main);
    halo_.mark_filled();
    halo_.count();
}

void GpuExchange::make_tables() {
    halo_.memory.clear();
    for (const HaloBuffer& buffer : halo_.steps.buffers) halo_.memory.push_back(address_of(buffer));
    std::vector<std::uint64_t> addresses = connection_->addresses();
    addresses.insert(addresses.end(), halo_.memory.begin(), halo_.memory.end());
    if (addresses == addresses_) return;
    addresses_.reset(); // until all tables are there
    const LocalLayout& layout = *halo_.layout;
    // the computing kernel chooses its own block size
    const bool beside = policy_.overlap && policy_.transport->traits.stores && !policy_.in_kernel();
    pack_blocks_ = beside ? beside_bulk : halo_blocks;
    std::vector<PackPart> parts;
    std::vector<PackMessage> sends;
    std::vector<HaloJob> jobs;
    for (const HaloMessages::Message& message : halo_.messages)
        sends.push_back(connection_->words_of(message));
    for (const HaloSchedule::Pack& pack : halo_.steps.packs) {
        const HaloMessages::Part& part = *pack.part;
        const bool item = part.field->producer() != nullptr;
        const Slab& slab = layout.slabs()[halo_.messages[pack.message].slab];
        const GpuAddress sites =
            item ? 0 : halo_.layout->on_device(slab) + part.send_sites * sizeof(std::int32_t);
        const auto group = static_cast<std::int64_t>(layout.group());
        const bool rows = part.field->borrowed(); // a section follows the one before it in every site
        std::int64_t first = 0;                   // of a section, in every group
        for (const MemorySection& section : part.field->memory().sections) {
            const auto bytes = layout.whole_groups(part.send_count) * section.bytes();
            sends[pack.message].jobs +=
                deal_out(jobs, parts.size(), static_cast<std::size_t>(pack.message),
                         static_cast<std::size_t>(bytes), halo_.send_bytes, pack_blocks_);
            parts.push_back({halo_.at(pack.from) + (rows ? first / group : first), sites, part.send_count,
                             section.units / section.packet_units, section.packet_bytes(),
                             group * part.field->site_bytes(), rows ? part.field->site_bytes() : 0,
                             halo_.at(pack.to) + first});
            first += group * section.bytes();
        }
    }
    parts_ = halo_.upload(parts);
    sends_ = halo_.upload(sends);
    send_jobs_ = halo_.upload(jobs);
    send_job_count_ = static_cast<std::int64_t>(jobs.size());
    connection_->make_tables();
    addresses_ = std::move(addresses);
}

} // namespace jali
