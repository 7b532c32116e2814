// The carriers of GpuExchange that are libraries, and what each carrier takes. The devices' own are kernels
// and copies in gpu_exchange.cpp.
#include "device/driver_record.hpp"
#include "device/timeline.hpp"
#include "halo/gpu_exchange.hpp"

#include <optional>

namespace jali {

namespace {

// The communicator's messages of an exchange: all are waited for together.
class Messages {
  public:
    explicit Messages(Communicator& communicator) : communicator_(communicator) {}
    void receive(void* data, std::size_t bytes, int from, int tag) {
        if (bytes == 0) return;
        if (DriverRecord::on())
            DriverRecord::note({.kind = DriverCall::Kind::receive,
                                .to = reinterpret_cast<std::uint64_t>(data),
                                .bytes = bytes,
                                .peer = from,
                                .tag = tag});
        requests_.push_back(communicator_.receive(data, bytes, from, tag));
    }
    void send(const void* data, std::size_t bytes, int to, int tag) {
        if (bytes == 0) return;
        if (DriverRecord::on())
            DriverRecord::note({.kind = DriverCall::Kind::send,
                                .from = reinterpret_cast<std::uint64_t>(data),
                                .bytes = bytes,
                                .peer = to,
                                .tag = tag});
        requests_.push_back(communicator_.send(data, bytes, to, tag));
    }
    void wait() {
        if (DriverRecord::on()) DriverRecord::note({.kind = DriverCall::Kind::complete});
        communicator_.wait(requests_, "a halo exchange between devices");
    }

  private:
    Communicator& communicator_;
    std::vector<std::unique_ptr<Request>> requests_;
};

} // namespace

std::string why_no_carrier(HaloCarrier carrier, PlacedLayout& layout,
                           const std::shared_ptr<Communicator>& communicator) {
    switch (carrier) {
    case HaloCarrier::messages:
    case HaloCarrier::host_staged:
        break;
    case HaloCarrier::remote_write:
    case HaloCarrier::copy_engine:
    case HaloCarrier::buffered_write:
        return layout.why_no_pad(*communicator);
    case HaloCarrier::library:
        return CclCommunicator::why_not(*communicator, layout.gpu());
    case HaloCarrier::gpu_aware_mpi:
        return communicator->why_not_from_devices(layout.gpu()->kind());
    }
    return "";
}

void GpuExchange::carry_staged(void* stream) {
    Messages between(*communicator_);
    for (const Message& message : messages_)
        between.receive(receive_here_.data() + message.receive_offset, message.receive_bytes, message.from,
                        message.slab);
    {
        const HostSpan span(Phase::wait, "device");
        packed_->wait();
    }
    std::optional<HostSpan> messages(std::in_place, Phase::transport, "messages between hosts",
                                     watched() ? sent() : Work{});
    for (const Message& message : messages_)
        between.send(send_here_.data() + message.send_offset, message.send_bytes, message.to, message.slab);
    between.wait();
    messages.reset();
    const DeviceSpan span(*gpu_, stream, Phase::unpack, "copy to the device",
                          watched() ? received(stages_.size() - 1) : Work{});
    for (const Message& message : messages_) {
        for (const Part& part : message.parts) {
            const std::size_t bytes = layout_->whole_groups(part.receive_count) * part.field->block_bytes();
            if (bytes > 0)
                gpu_->copy_in(part.field->address_of_ghost(part.ghost),
                              receive_here_.data() + message.receive_offset + part.receive_offset, bytes,
                              stream);
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
    Messages between(*communicator_);
    {
        const HostSpan span(Phase::wait, "device");
        packed_->wait(); // and what used the ghosts before is done as well
    }
    const HostSpan span(Phase::transport, "messages between devices", watched() ? sent() : Work{});
    for (const Stage& stage : stages_)
        for (const Piece& piece : stage.pieces)
            between.receive(reinterpret_cast<void*>(piece.to), piece.receive_bytes, piece.sender, piece.slab);
    for (const Stage& stage : stages_)
        for (const Piece& piece : stage.pieces)
            between.send(reinterpret_cast<const void*>(piece.from), piece.send_bytes, piece.receiver,
                         piece.slab);
    between.wait();
}

} // namespace jali
