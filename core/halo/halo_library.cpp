// The vendor's library, NCCL or RCCL: packed here, sent and received in groups on the stream, straight into
// the neighbour's ghosts.
//
// Its messages between two ranks have no tags: they match by their order, which is that of slabs and fields.
#include "halo/halo_packed.hpp"
#include "transport/carriers.hpp"

namespace jali {

namespace {

class Library : public PackedHere<HaloCarrier> {
  public:
    explicit Library(HaloMessages& halo)
        : PackedHere(halo), ccl_(CclCommunicator::shared(*halo.communicator, halo.gpu)) {}

    // At their first message two ranks are connected, for which the host waits.
    void rehearse(const HaloStep& step, void* stream) override { carry(step, stream); }
    void make_tables() override { pieces_ = halo_.pieces(send_.address()); }
    void carry(const HaloStep& step, void* stream) override {
        if (!step.has(HaloAction::exchange)) refuse(step);
        const DeviceSpan span(*halo_.gpu, stream, Phase::transport, "send and receive",
                              watched() ? carried(step.stage) : Work{});
        std::vector<CclMessage> messages;
        for (const HaloMessages::Piece& piece : pieces_[step.stage]) {
            messages.push_back({piece.from, piece.send_bytes, piece.receiver, true});
            messages.push_back({piece.to, piece.receive_bytes, piece.sender, false});
        }
        ccl_->exchange(messages, stream);
    }

  private:
    Work carried(std::size_t stage) const {
        std::int64_t bytes = 0;
        for (const HaloMessages::Piece& piece : pieces_[stage])
            bytes += static_cast<std::int64_t>(piece.send_bytes);
        return {0, bytes, bytes, 0};
    }

    std::shared_ptr<CclCommunicator> ccl_;
    std::vector<std::vector<HaloMessages::Piece>> pieces_;
};

constexpr HaloMove moves[] = {{HaloAction::pack, HaloTime::first},
                              {HaloAction::exchange, HaloTime::first_by_stage}};

std::unique_ptr<HaloCarrier> make(HaloMessages& halo) {
    return std::make_unique<Library>(halo);
}

} // namespace

const HaloTransport halos_by_library{
    {vendors_library},
    "packed here, sent by the vendor's library straight into the neighbour's ghosts",
    moves,
    {},
    nullptr,
    nullptr,
    "the vendor's library",
    make};

} // namespace jali
