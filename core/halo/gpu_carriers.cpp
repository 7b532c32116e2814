// The carriers of GpuExchange that are libraries, and what each carrier takes. The devices' own are kernels
// and copies in gpu_exchange.cpp.
#include "device/timeline.hpp"
#include "halo/gpu_exchange.hpp"

#include <optional>

namespace jali {

std::string why_no_carrier(HaloCarrier carrier, PlacedLayout& layout,
                           const std::shared_ptr<Communicator>& communicator) {
    switch (carrier) {
    case HaloCarrier::messages:
        break;
    case HaloCarrier::ghosts:
    case HaloCarrier::copy:
    case HaloCarrier::store:
        return layout.why_no_mailbox(*communicator);
    case HaloCarrier::ccl:
        return CclCommunicator::why_not(*communicator, layout.gpu());
    case HaloCarrier::direct:
        return communicator->why_not_from_devices(layout.gpu()->kind());
    }
    return "";
}

void GpuExchange::carry_staged(void* stream) {
    const GpuApi& api = gpu_->api();
    std::vector<std::unique_ptr<Request>> requests;
    for (const Message& message : messages_)
        if (message.receive_bytes > 0)
            requests.push_back(communicator_->receive(receive_here_.data() + message.receive_offset,
                                                      message.receive_bytes, message.from, message.slab));
    {
        const HostSpan span(Phase::wait, "device");
        packed_->wait();
    }
    std::optional<HostSpan> messages(std::in_place, Phase::transport, "messages between hosts",
                                     watched() ? sent() : Work{});
    for (const Message& message : messages_)
        if (message.send_bytes > 0)
            requests.push_back(communicator_->send(send_here_.data() + message.send_offset,
                                                   message.send_bytes, message.to, message.slab));
    communicator_->wait(requests, "a halo exchange between devices");
    messages.reset();
    const DeviceSpan span(*gpu_, stream, Phase::unpack, "copy to the device",
                          watched() ? received(stages_.size() - 1) : Work{});
    for (const Message& message : messages_) {
        for (const Part& part : message.parts) {
            const std::size_t bytes = layout_->whole_groups(part.receive_count) * part.field->block_bytes();
            if (bytes > 0)
                api.check(api.copy_in(part.field->address_of_ghost(part.ghost),
                                      receive_here_.data() + message.receive_offset + part.receive_offset,
                                      bytes, stream),
                          "copying halos to the device");
        }
    }
}

// Messages between two ranks have no tags: they match by their order, which is that of slabs and fields.
void GpuExchange::carry_by_ccl(void* stream) {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
        std::optional<DeviceSpan> span(std::in_place, *gpu_, stream, Phase::transport, "send and receive",
                                       watched() ? carried(stages_[s]) : Work{});
        ccl_->group_start();
        try {
            for (const Piece& piece : stages_[s].pieces) {
                ccl_->send(piece.from, piece.send_bytes, DataType::uint8, piece.receiver, stream);
                ccl_->receive(piece.to, piece.receive_bytes, DataType::uint8, piece.sender, stream);
            }
        } catch (...) {
            ccl_->group_drop();
            throw;
        }
        ccl_->group_end();
        span.reset();
        if (s < stage_arrived_.size()) stage_arrived_[s]->record(stream);
    }
}

void GpuExchange::carry_directly() {
    std::vector<std::unique_ptr<Request>> requests;
    {
        const HostSpan span(Phase::wait, "device");
        packed_->wait(); // and what used the ghosts before is done as well
    }
    const HostSpan span(Phase::transport, "messages between devices", watched() ? sent() : Work{});
    for (const Stage& stage : stages_)
        for (const Piece& piece : stage.pieces)
            if (piece.receive_bytes > 0)
                requests.push_back(communicator_->receive(reinterpret_cast<void*>(piece.to),
                                                          piece.receive_bytes, piece.sender, piece.slab));
    for (const Stage& stage : stages_)
        for (const Piece& piece : stage.pieces)
            if (piece.send_bytes > 0)
                requests.push_back(communicator_->send(reinterpret_cast<const void*>(piece.from),
                                                       piece.send_bytes, piece.receiver, piece.slab));
    communicator_->wait(requests, "a halo exchange between devices");
}

} // namespace jali
