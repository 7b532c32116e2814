// Host-staged: packed here, brought to pinned memory of the host, sent as messages, and brought to the
// ghosts.
#include "halo/halo_packed.hpp"
#include "transport/carriers.hpp"
#include "transport/host_messages.hpp"

#include <optional>

namespace jali {

namespace {

class Staged : public PackedHere<HaloCarrier> {
  public:
    explicit Staged(HaloMessages& halo)
        : PackedHere(halo), packed_(halo.gpu, false), arrived_(halo.gpu, false),
          send_here_(halo.gpu->allocate_pinned(halo.send_bytes, "halo messages sent")),
          receive_here_(halo.gpu->allocate_pinned(halo.receive_bytes, "halo messages received")) {}

    void begin() override { arrived_.wait(); } // pinned memory is free again
    bool carry(void* stream, const Arrived&) override {
        {
            const DeviceSpan span(*halo_.gpu, stream, Phase::transport, "copy to the host",
                                  watched() ? halo_.sent() : Work{});
            for (const HaloMessages::Message& message : halo_.messages)
                if (message.send_bytes > 0)
                    halo_.gpu->copy_out(send_here_.data() + message.send_offset,
                                        send_.address() + message.send_offset, message.send_bytes, stream);
        }
        packed_.record(stream);
        return false;
    }
    void carry_by_host(void* stream) override {
        HostMessages between(*halo_.communicator);
        for (const HaloMessages::Message& message : halo_.messages)
            between.receive(receive_here_.data() + message.receive_offset, message.receive_bytes,
                            message.from, message.slab);
        {
            const HostSpan span(Phase::wait, "device");
            packed_.wait();
        }
        std::optional<HostSpan> messages(std::in_place, Phase::transport, "messages between hosts",
                                         watched() ? halo_.sent() : Work{});
        for (const HaloMessages::Message& message : halo_.messages)
            between.send(send_here_.data() + message.send_offset, message.send_bytes, message.to,
                         message.slab);
        between.wait("a halo exchange between devices");
        messages.reset();
        place(stream);
        arrived_.record(stream);
    }

  private:
    void place(void* stream) {
        const DeviceSpan span(*halo_.gpu, stream, Phase::unpack, "copy to the device",
                              watched() ? halo_.received() : Work{});
        for (const HaloMessages::Message& message : halo_.messages)
            for (const HaloMessages::Part& part : message.parts)
                if (const std::size_t bytes = halo_.receive_bytes_of(part); bytes > 0)
                    halo_.gpu->copy_in(HaloMessages::ghosts_of(part),
                                       receive_here_.data() + message.receive_offset + part.receive_offset,
                                       bytes, stream);
    }

    GpuEvent packed_, arrived_;
    PinnedMemory send_here_, receive_here_;
};

std::unique_ptr<HaloCarrier> make(HaloMessages& halo) {
    return std::make_unique<Staged>(halo);
}

} // namespace

const HaloTransport halos_by_staging{
    {host_staged}, "packed here, sent as messages by way of pinned host memory",
    false,         nullptr,
    nullptr,       "the host",
    make,
};

} // namespace jali
