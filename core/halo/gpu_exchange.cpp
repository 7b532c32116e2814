#include "halo/gpu_exchange.hpp"
#include "device/timeline.hpp"
#include "halo/halo_kernels.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace jali {

namespace {

constexpr unsigned await_threads = 64;

} // namespace

GpuExchange::GpuExchange(std::shared_ptr<PlacedLayout> layout, const std::vector<HaloRequest>& requests,
                         const std::vector<char>& stale, const HaloPolicy& policy,
                         std::shared_ptr<Communicator> communicator,
                         const std::vector<std::pair<std::shared_ptr<FieldStorage>, int>>& written)
    : layout_(std::move(layout)), gpu_(layout_->gpu()), policy_(policy),
      communicator_(std::move(communicator)) {
    const std::string trouble = why_no_carrier(policy_.carrier, *layout_, communicator_);
    if (!trouble.empty()) throw GpuError("halo policy " + policy_.name + " is not possible here: " + trouble);
    make_messages(requests, stale);
    for (const Message& message : messages_)
        for (const Part& part : message.parts)
            for (const auto& [field, parities] : written)
                writes_packed_ |= field.get() == part.field && (parities >> part.parity & 1);
    before_ = std::make_unique<GpuEvent>(gpu_, false);
    packed_ = std::make_unique<GpuEvent>(gpu_, false);
    arrived_ = std::make_unique<GpuEvent>(gpu_, false);
    side_done_ = std::make_unique<GpuEvent>(gpu_, false);
    for (std::size_t s = 0; s + 1 < stages_.size(); ++s)
        stage_arrived_.push_back(std::make_unique<GpuEvent>(gpu_, false));
    if (!packs_into_receiver(policy_.carrier)) send_ = gpu_->allocate(send_bytes_, "halo messages sent");
    if (policy_.carrier == HaloCarrier::host_staged) {
        send_here_ = gpu_->allocate_pinned(send_bytes_, "halo messages sent");
        receive_here_ = gpu_->allocate_pinned(receive_bytes_, "halo messages received");
    } else if (policy_.carrier == HaloCarrier::library) {
        ccl_ = CclCommunicator::shared(*communicator_, gpu_);
    } else if (policy_.carrier == HaloCarrier::remote_write) {
        for (std::size_t k = 0; k < requests.size(); ++k) {
            FieldStorage* field = requests[k].field.get();
            const bool sent = stale[2 * k] || stale[2 * k + 1];
            if (sent && std::find(mapped_.begin(), mapped_.end(), field) == mapped_.end()) {
                mapped_.push_back(field);
                kept_.push_back(requests[k].field);
            }
        }
        agree_on_ghosts();
    } else if (uses_slots(policy_.carrier)) {
        agree_on_places(policy_.carrier == HaloCarrier::copy_engine ? HaloChannel::copied_slots
                                                                    : HaloChannel::stored_slots);
    }
    retired_ =
        gpu_->allocate((messages_.size() + stages_.size() + 1) * sizeof(std::int64_t), "halo counters");
    gpu_->fill(retired_.address(), 0, retired_.size());
}

GpuExchange::~GpuExchange() {
    // The bulk's stream may still use what goes now, where an exchange was interrupted: memory returns to a
    // pool that only jali's own stream takes from.
    try {
        gpu_->make_current();
        side_done_->let_wait(gpu_->stream());
    } catch (...) {
        return; // the device is lost, and said so
    }
}

void GpuExchange::produce_items(void* stream) {
    for (const Message& message : messages_) {
        for (std::size_t next = 0; next < message.parts.size();) {
            const Part& part = message.parts[next++];
            const HaloProducer* producer = part.field->producer();
            if (producer == nullptr || part.send_count == 0) continue;
            // odd sites that follow the even ones without a gap are computed in the same launch
            std::int64_t count = part.send_count;
            const auto follows = [&](const Part& more) {
                return more.field == part.field && count % layout_->group() == 0 &&
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
            fill_device_parameters(parameters, *layout_);
            parameters[0] =
                layout_->on_device(layout_->slabs()[message.slab]) + part.send_sites * sizeof(std::int32_t);
            for (const auto& [index, source] : producer->sources) parameters[index] = source->address();
            parameters[producer->output_parameter] = produced_.address() + part.produced;
            const std::int64_t blocks = (count + producer->threads - 1) / producer->threads;
            const DeviceSpan span(*gpu_, stream, Phase::produce, part.field->label());
            gpu_->launch(producer->gpu_kernel, static_cast<unsigned>(blocks),
                         static_cast<unsigned>(producer->threads), std::as_bytes(std::span(arguments)),
                         stream);
        }
    }
}

void GpuExchange::pack(void* stream) {
    PackArguments arguments{};
    arguments.parts = parts_.address();
    arguments.messages = sends_.address();
    arguments.jobs = send_jobs_.address();
    arguments.count = static_cast<std::int64_t>(messages_.size());
    arguments.job_count = send_job_count_;
    arguments.busy = std::count_if(messages_.begin(), messages_.end(),
                                   [](const Message& message) { return message.send_bytes > 0; });
    arguments.retired = retired_.address();
    const char* kernel = "gather_halos";
    if (packs_into_receiver(policy_.carrier)) {
        kernel = "pack_halos";
        arguments.epoch = pad_->epoch(channel_);
        arguments.watch = pad_->watch();
        arguments.slot_bytes = static_cast<std::int64_t>(pad_->slot_bytes(channel_));
    }
    if (policy_.carrier == HaloCarrier::remote_write) {
        arguments.opened = opened_.address();
        arguments.opened_count = opened_count_;
        arguments.awaited = awaited_.address();
        arguments.awaited_count = awaited_count_;
        arguments.last = ends_with_packing();
    }
    const bool remote = packs_into_receiver(policy_.carrier);
    const char* name = !remote ? "pack" : arguments.last ? "pack, store and await" : "pack and store";
    const DeviceSpan span(*gpu_, stream, remote ? Phase::transport : Phase::pack, name,
                          watched() ? sent() : Work{});
    gpu_->launch(gpu_->builtin(kernel), static_cast<unsigned>(std::max<std::int64_t>(1, send_job_count_)),
                 pack_blocks_.threads, arguments, stream, Urgency::first);
}

// The words of this stage have come, and with the last stage the exchange ends.
void GpuExchange::await_stage(std::size_t s, void* stream) {
    if (ends_with_packing()) return;
    const Stage& stage = stages_[s];
    ArrivalArguments arguments{awaited_.address() + stage.first_word * sizeof(GpuAddress), stage.words,
                               pad_->epoch(channel_), s + 1 == stages_.size(), pad_->watch()};
    const DeviceSpan span(*gpu_, stream, Phase::unpack, "await");
    gpu_->launch(gpu_->builtin("await_halos"), 1, await_threads, arguments, stream, Urgency::first);
}

void GpuExchange::receive_stage(std::size_t s, void* stream) {
    const Stage& stage = stages_[s];
    ReceiveArguments arguments{sections_.address(),
                               receive_jobs_.address() + stage.first_job * sizeof(HaloJob),
                               stage.jobs,
                               static_cast<std::int64_t>(pad_->slot_bytes(channel_)),
                               pad_->epoch(channel_),
                               retired_.address() + (messages_.size() + s) * sizeof(std::int64_t),
                               senders_.address(),
                               sender_count_,
                               s + 1 == stages_.size(),
                               pad_->watch()};
    const DeviceSpan span(*gpu_, stream, Phase::unpack, "await and place", watched() ? received(s) : Work{});
    gpu_->launch(gpu_->builtin("receive_halos"), static_cast<unsigned>(std::max<std::int64_t>(1, stage.jobs)),
                 halo_blocks.threads, arguments, stream, Urgency::first);
}

// The exchange is on the device's own stream and goes first, and the bulk is beside it, so that a bulk which
// fills the device cannot keep the exchange from beginning. The last part of the boundary is on the device's
// own stream as well, the others come behind the bulk, where they keep no exchange waiting.
void GpuExchange::run(const Bulk& bulk_if_any, const Boundary& boundary, bool boundary_fills) {
    const HaloSwitches on = halo_switches();
    void* const main = gpu_->stream();
    gpu_->make_current();
    // What the host decides at each exchange would be decided once for all repetitions.
    if (!can_be_recorded(policy_.carrier) && gpu_->is_capturing(main))
        throw GpuError("halo policy " + policy_.name +
                       " cannot be recorded in a graph; use one of the remote-write or buffered-write "
                       "policies, or one of the vendor's library");
    layout_->refuse_if_aborted();
    for (FieldStorage* field : mapped_) field->map_ghosts(*communicator_);
    for (Filled& f : filled_) f.version = f.field->version(f.parity);
    make_tables();
    if (policy_.carrier == HaloCarrier::host_staged) arrived_->wait(); // pinned memory is free again

    const bool beside = policy_.overlap && on.bulk && bulk_if_any;
    void* const side = beside ? layout_->bulk_stream() : main;
    const auto carried_by = [&](HaloCarrier carrier) { return on.transport && policy_.carrier == carrier; };

    if (beside && !writes_packed_) before_->record(main);
    if (on.pack) produce_items(main);
    // a kernel that stores into the receiver's memory is the transport as well
    if (packs_into_receiver(policy_.carrier) ? on.transport : on.pack) pack(main);
    if (beside && writes_packed_) before_->record(main);
    if (carried_by(HaloCarrier::library)) carry_by_ccl(main);
    if (carried_by(HaloCarrier::copy_engine)) copy_to_slots(main);
    if (carried_by(HaloCarrier::host_staged)) copy_to_host(main);
    if (carried_by(HaloCarrier::host_staged) || carried_by(HaloCarrier::gpu_aware_mpi)) packed_->record(main);
    if (beside) {
        before_->let_wait(side);
        bulk_if_any(side);
        side_done_->record(side);
    }
    if (carried_by(HaloCarrier::gpu_aware_mpi)) carry_directly();
    if (carried_by(HaloCarrier::host_staged)) {
        carry_staged(main);
        arrived_->record(main);
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
        if (carried_by(HaloCarrier::remote_write)) await_stage(s, main);
        if (on.transport && uses_slots(policy_.carrier)) receive_stage(s, main);
        const bool last = s + 1 == stages_.size();
        if (beside && !last) {
            if (!carried_by(HaloCarrier::library)) stage_arrived_[s]->record(main);
            stage_arrived_[s]->let_wait(side);
        }
        if (beside && last && !boundary_fills) side_done_->let_wait(main);
        if (on.boundary) boundary(static_cast<int>(s), last ? main : side);
        if (beside && !last) side_done_->record(side);
        if (beside && last && boundary_fills) side_done_->let_wait(main);
    }
    if (pad_ && on.transport) pad_->note_exchange(channel_, main);
    count();
}

void GpuExchange::copy_to_host(void* stream) {
    const DeviceSpan span(*gpu_, stream, Phase::transport, "copy to the host", watched() ? sent() : Work{});
    for (const Message& message : messages_)
        if (message.send_bytes > 0)
            gpu_->copy_out(send_here_.data() + message.send_offset, send_.address() + message.send_offset,
                           message.send_bytes, stream);
}

void GpuExchange::copy_to_slots(void* stream) {
    const DeviceSpan span(*gpu_, stream, Phase::transport, "copy", watched() ? sent() : Work{});
    AwaitArguments await{sends_.address(), static_cast<std::int64_t>(messages_.size()), pad_->epoch(channel_),
                         pad_->watch()};
    gpu_->launch(gpu_->builtin("await_slots"), 1, halo_blocks.threads, await, stream, Urgency::first);
    const std::uint64_t slot = pad_->enqueued(channel_) % 2 * pad_->slot_bytes(channel_);
    for (const Message& message : messages_)
        if (message.send_bytes > 0)
            gpu_->copy(pad_->slot(channel_, message.to) + slot + message.their_offset,
                       send_.address() + message.send_offset, message.send_bytes, stream);
    SignalArguments signal{sends_.address(), static_cast<std::int64_t>(messages_.size()),
                           pad_->epoch(channel_)};
    gpu_->launch(gpu_->builtin("signal_halos"), 1, halo_blocks.threads, signal, stream, Urgency::first);
}

Work GpuExchange::carried(const Stage& stage) const {
    std::size_t bytes = 0;
    for (const Piece& piece : stage.pieces) bytes += piece.send_bytes;
    const auto n = static_cast<std::int64_t>(bytes);
    return {0, n, n, 0};
}

Work GpuExchange::sent() const {
    std::size_t bytes = 0;
    for (const Message& message : messages_) bytes += message.send_bytes;
    const auto n = static_cast<std::int64_t>(bytes);
    return {0, n, n, 0};
}

// What the messages of this stage hold; where they do not arrive by stages, of all.
Work GpuExchange::received(std::size_t stage) const {
    const bool all = policy_.carrier == HaloCarrier::host_staged;
    std::size_t bytes = 0;
    for (const Message& message : messages_)
        if (all || message.direction <= stages_[stage].direction)
            if (all || stage == 0 || message.direction > stages_[stage - 1].direction)
                bytes += message.receive_bytes;
    const auto n = static_cast<std::int64_t>(bytes);
    return {0, n, n, 0};
}

void GpuExchange::count() {
    HaloCounters total;
    for (const Filled& f : filled_) {
        f.field->set_held(f.slab, f.parity, f.version);
        ++f.field->counters.exchanged;
        ++total.exchanged;
    }
    for (const Message& message : messages_) {
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
    layout_->counters.add(total);
    count_in_process(total);
}

} // namespace jali
