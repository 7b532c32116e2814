// Host-staged: packed here, copied to pinned memory of the host, sent as messages, and copied to the
// ghosts.
#include "device_transports/device_transports.hpp"
#include "halo/halo_transport.hpp"

namespace jali {

namespace {

class Staged : public HaloConnection {
  public:
    explicit Staged(HaloOnDevice& halo)
        : HaloConnection(halo), packed_(halo.gpu, false), arrived_(halo.gpu, false) {}

    void begin() override { arrived_.wait(); } // pinned memory is free again
    void carry(const Batch& batch, void* stream) override {
        if (batch.roles.size() > 1) refuse(batch);
        if (batch.has(StepRole::copy_to_host)) {
            const DeviceSpan span(*halo_.gpu, stream, Phase::transport, "copy to the host",
                                  watched() ? halo_.sent() : Work{});
            for_each_copy(batch, StepRole::copy_to_host, [&](const CopySpec& spec) {
                halo_.gpu->copy_out(host(spec.to), halo_.at(spec.from), spec.to.bytes, stream);
            });
        } else if (batch.has(StepRole::message)) {
            message(batch, stream);
        } else if (batch.has(StepRole::copy_to_device)) {
            const DeviceSpan span(*halo_.gpu, stream, Phase::unpack, "copy to the device",
                                  watched() ? halo_.received(-1) : Work{});
            for_each_copy(batch, StepRole::copy_to_device, [&](const CopySpec& spec) {
                halo_.gpu->copy_in(halo_.at(spec.to), host(spec.from), spec.to.bytes, stream);
            });
            arrived_.record(stream);
        } else {
            refuse(batch);
        }
    }

  private:
    std::byte* host(const Region& region) const { return reinterpret_cast<std::byte*>(halo_.at(region)); }
    template <class F>
    void for_each_copy(const Batch& batch, StepRole role, F f) const {
        batch.for_each(schedule(), role, [&](const Step& step) {
            for (const CopySpec& spec : std::get<Copy>(step.action).specs) f(spec);
        });
    }
    void message(const Batch& batch, void* stream) {
        packed_.record(stream);
        HostMessages between(*halo_.communicator);
        start(between, false, batch);
        {
            const HostSpan span(Phase::wait, "device");
            packed_.wait();
        }
        const HostSpan span(Phase::transport, "messages between hosts", watched() ? halo_.sent() : Work{});
        start(between, true, batch);
        between.wait("a halo exchange between devices");
    }

    GpuEvent packed_, arrived_;
};

constexpr HaloMove moves[] = {{StepRole::pack, HaloTime::first},
                              {StepRole::copy_to_host, HaloTime::first},
                              {StepRole::message, HaloTime::behind_bulk},
                              {StepRole::copy_to_device, HaloTime::behind_bulk}};

std::unique_ptr<HaloConnection> make(HaloOnDevice& halo) {
    return std::make_unique<Staged>(halo);
}

} // namespace

const HaloTransport halos_by_staging{
    {host_staged}, "packed here, sent as messages by way of pinned host memory",
    moves,         {},
    nullptr,       nullptr,
    "the host",    make};

} // namespace jali
