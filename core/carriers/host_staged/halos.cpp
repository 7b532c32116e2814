// Host-staged: packed here, brought to pinned memory of the host, sent as messages, and brought to the
// ghosts.
#include "carriers/carriers.hpp"
#include "halo/halo_transport.hpp"

namespace jali {

namespace {

class Staged : public HaloCarrier {
  public:
    explicit Staged(HaloOnDevice& halo)
        : HaloCarrier(halo), packed_(halo.gpu, false), arrived_(halo.gpu, false) {}

    void begin() override { arrived_.wait(); } // pinned memory is free again
    void carry(const Batch& batch, void* stream) override {
        if (batch.deeds.size() > 1) refuse(batch);
        if (batch.has(Deed::fetch)) {
            const DeviceSpan span(*halo_.gpu, stream, Phase::transport, "copy to the host",
                                  watched() ? halo_.sent() : Work{});
            for_each_copy(batch, Deed::fetch, [&](const CopySpec& spec) {
                halo_.gpu->copy_out(host(spec.to), halo_.at(spec.from), spec.to.bytes, stream);
            });
        } else if (batch.has(Deed::message)) {
            message(batch, stream);
        } else if (batch.has(Deed::bring)) {
            const DeviceSpan span(*halo_.gpu, stream, Phase::unpack, "copy to the device",
                                  watched() ? halo_.received(-1) : Work{});
            for_each_copy(batch, Deed::bring, [&](const CopySpec& spec) {
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
    void for_each_copy(const Batch& batch, Deed deed, F f) const {
        batch.for_each(schedule(), deed, [&](const Step& step) {
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

constexpr HaloMove moves[] = {{Deed::pack, HaloTime::first},
                              {Deed::fetch, HaloTime::first},
                              {Deed::message, HaloTime::behind_bulk},
                              {Deed::bring, HaloTime::behind_bulk}};

std::unique_ptr<HaloCarrier> make(HaloOnDevice& halo) {
    return std::make_unique<Staged>(halo);
}

} // namespace

const HaloTransport halos_by_staging{
    {host_staged}, "packed here, sent as messages by way of pinned host memory",
    moves,         {},
    nullptr,       nullptr,
    "the host",    make};

} // namespace jali
