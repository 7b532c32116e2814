// GPU-aware MPI: packed here, sent by an MPI library that takes addresses of devices, into the neighbour's
// ghosts.
#include "halo/halo_packed.hpp"
#include "transport/carriers.hpp"
#include "transport/host_messages.hpp"

namespace jali {

namespace {

class GpuAwareMpi : public PackedHere<HaloCarrier> {
  public:
    explicit GpuAwareMpi(HaloMessages& halo) : PackedHere(halo), packed_(halo.gpu, false) {}

    void make_tables() override { pieces_ = halo_.pieces(send_.address()); }
    void carry(const HaloStep& step, void* stream) override {
        if (!step.has(HaloAction::message)) refuse(step);
        packed_.record(stream);
        HostMessages between(*halo_.communicator);
        {
            const HostSpan span(Phase::wait, "device");
            packed_.wait(); // and what used the ghosts before is done as well
        }
        const HostSpan span(Phase::transport, "messages between devices", watched() ? halo_.sent() : Work{});
        for (const auto& of_stage : pieces_)
            for (const HaloMessages::Piece& piece : of_stage)
                between.receive(reinterpret_cast<void*>(piece.to), piece.receive_bytes, piece.sender,
                                piece.slab);
        for (const auto& of_stage : pieces_)
            for (const HaloMessages::Piece& piece : of_stage)
                between.send(reinterpret_cast<const void*>(piece.from), piece.send_bytes, piece.receiver,
                             piece.slab);
        between.wait("a halo exchange between devices");
    }

  private:
    GpuEvent packed_;
    std::vector<std::vector<HaloMessages::Piece>> pieces_;
};

constexpr HaloMove moves[] = {{HaloAction::pack, HaloTime::first},
                              {HaloAction::message, HaloTime::behind_bulk}};

std::unique_ptr<HaloCarrier> make(HaloMessages& halo) {
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
