// GPU-aware MPI: messages of a stage go from device to device by an MPI library that takes their addresses.
// The host waits for the stream first, and for all of them together.
#include "device_transports/device_transports.hpp"
#include "peers/host_messages.hpp"
#include "running/collective_transport.hpp"

namespace jali {

namespace {

class GpuAwareMpi final : public CollectiveConnection {
  public:
    explicit GpuAwareMpi(const CollectiveRanks& ranks)
        : CollectiveConnection(collectives_by_gpu_aware_mpi, *ranks.gpu), data_(ranks.control->duplicate()),
          before_(ranks.gpu, false) {}

    void exchange(std::span<const StageMessage> messages, std::span<const GpuAddress> buffers,
                  void* stream) override {
        before_.record(stream);
        before_.wait();
        HostMessages between(*data_);
        for (const bool sends : {false, true})
            for (const StageMessage& m : messages)
                if (m.sends == sends)
                    between.start(sends, buffers[m.region.buffer] + m.region.offset, m.region.bytes, m.peer,
                                  0);
        between.wait("a collective between devices");
    }

  private:
    std::shared_ptr<Communicator> data_;
    GpuEvent before_;
};

} // namespace

const CollectiveTransport collectives_by_gpu_aware_mpi{
    {gpu_aware_mpi},
    [](const CollectiveRanks& ranks) -> std::shared_ptr<CollectiveConnection> {
        const std::string trouble = gpu_aware_mpi.why_not(ranks.gpu, *ranks.communicator);
        if (!trouble.empty()) throw GpuError(trouble);
        return std::make_shared<GpuAwareMpi>(ranks);
    },
    {.carries = "MPI", .costly = true}};

} // namespace jali
