// GPU-aware MPI: packed here, sent by an MPI library that takes addresses of devices, into the neighbour's
// ghosts.
#include "device_transports/device_transports.hpp"
#include "halo/halo_transport.hpp"

namespace jali {

namespace {

class GpuAwareMpi : public HaloConnection {
  public:
    explicit GpuAwareMpi(HaloOnDevice& halo) : HaloConnection(halo), packed_(halo.gpu, false) {}

    void carry(const Batch& batch, void* stream) override {
        if (!batch.has(StepRole::message)) refuse(batch);
        packed_.record(stream);
        HostMessages between(*halo_.communicator);
        {
            const HostSpan span(Phase::wait, "device");
            packed_.wait(); // earlier uses of the ghosts are then complete, too
        }
        const HostSpan span(Phase::transport, "messages between devices", watched() ? halo_.sent() : Work{});
        for (const bool sends : {false, true}) start(between, sends, batch);
        between.wait("a halo exchange between devices");
    }

  private:
    GpuEvent packed_;
};

constexpr HaloMove moves[] = {{StepRole::pack, HaloTime::first}, {StepRole::message, HaloTime::behind_bulk}};

std::unique_ptr<HaloConnection> make(HaloOnDevice& halo) {
    return std::make_unique<GpuAwareMpi>(halo);
}

} // namespace

const HaloTransport halos_by_gpu_aware_mpi{
    {gpu_aware_mpi}, "packed here, sent by an MPI library that takes addresses of devices",
    moves,           {},
    nullptr,         nullptr,
    "MPI",           make,
};

} // namespace jali
