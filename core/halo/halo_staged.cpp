// Host-staged: packed here, brought to pinned memory of the host, sent as messages, and brought to the
// ghosts.
#include "halo/halo_packed.hpp"
#include "transport/carriers.hpp"
#include "transport/host_messages.hpp"

namespace jali {

namespace {

class Staged : public PackedHere<HaloCarrier> {
  public:
    explicit Staged(HaloMessages& halo)
        : PackedHere(halo), packed_(halo.gpu, false), arrived_(halo.gpu, false),
          send_here_(halo.gpu->allocate_pinned(halo.send_bytes, "halo messages sent")),
          receive_here_(halo.gpu->allocate_pinned(halo.receive_bytes, "halo messages received")) {}

    void begin() override { arrived_.wait(); } // pinned memory is free again
    void carry(const HaloStep& step, void* stream) override {
        if (step.actions.size() > 1) refuse(step);
        if (step.has(HaloAction::fetch)) {
            fetch(stream);
        } else if (step.has(HaloAction::message)) {
            message(stream);
        } else if (step.has(HaloAction::bring)) {
            bring(stream);
            arrived_.record(stream);
        } else {
            refuse(step);
        }
    }

  private:
    void fetch(void* stream) {
        const DeviceSpan span(*halo_.gpu, stream, Phase::transport, "copy to the host",
                              watched() ? halo_.sent() : Work{});
        for (const HaloMessages::Message& message : halo_.messages)
            if (message.send_bytes > 0)
                halo_.gpu->copy_out(send_here_.data() + message.send_offset,
                                    send_.address() + message.send_offset, message.send_bytes, stream);
    }
    void message(void* stream) {
        packed_.record(stream);
        HostMessages between(*halo_.communicator);
        for (const HaloMessages::Message& message : halo_.messages)
            between.receive(receive_here_.data() + message.receive_offset, message.receive_bytes,
                            message.from, message.slab);
        {
            const HostSpan span(Phase::wait, "device");
            packed_.wait();
        }
        const HostSpan span(Phase::transport, "messages between hosts", watched() ? halo_.sent() : Work{});
        for (const HaloMessages::Message& message : halo_.messages)
            between.send(send_here_.data() + message.send_offset, message.send_bytes, message.to,
                         message.slab);
        between.wait("a halo exchange between devices");
    }
    void bring(void* stream) {
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

constexpr HaloMove moves[] = {{HaloAction::pack, HaloTime::first},
                              {HaloAction::fetch, HaloTime::first},
                              {HaloAction::message, HaloTime::behind_bulk},
                              {HaloAction::bring, HaloTime::behind_bulk}};

std::unique_ptr<HaloCarrier> make(HaloMessages& halo) {
    return std::make_unique<Staged>(halo);
}

} // namespace

const HaloTransport halos_by_staging{
    {host_staged}, "packed here, sent as messages by way of pinned host memory",
    moves,         {},
    nullptr,       nullptr,
    "the host",    make};

} // namespace jali
