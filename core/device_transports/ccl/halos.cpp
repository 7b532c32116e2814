// The vendor's library, NCCL or RCCL: packed here, sent and received in groups on the stream, straight into
// the neighbour's ghosts.
//
// Its messages between two ranks have no tags: they match by their order, which is that of slabs and fields.
#include "device_transports/device_transports.hpp"
#include "halo/halo_transport.hpp"
#include "peers/ccl_operations.hpp"

namespace jali {

namespace {

class Library : public HaloConnection {
  public:
    explicit Library(HaloOnDevice& halo)
        : HaloConnection(halo), operations_(CclGroup::shared(*halo.communicator, halo.gpu)) {}

    // At their first message two ranks are connected, for which the host waits.
    void warm_up(const Batch& batch, void* stream) override { carry(batch, stream); }
    void carry(const Batch& batch, void* stream) override {
        if (!batch.has(StepRole::exchange)) refuse(batch);
        std::vector<CclMessage> messages;
        std::int64_t bytes = 0;
        batch.for_each(schedule(), StepRole::exchange, [&](const Step& step) {
            const auto [sends, signals, peer, tag, library] = *envelope_of(step);
            const Region region = region_of_message(step);
            messages.push_back({halo_.at(region), region.bytes, peer, sends});
            if (sends) bytes += static_cast<std::int64_t>(region.bytes);
        });
        const DeviceSpan span(*halo_.gpu, stream, Phase::transport, "send and receive", {0, bytes, bytes, 0});
        operations_.exchange(messages, stream);
    }

  private:
    CclOperations operations_;
};

constexpr HaloMove moves[] = {{StepRole::pack, HaloTime::first},
                              {StepRole::exchange, HaloTime::first_by_stage}};

std::unique_ptr<HaloConnection> make(HaloOnDevice& halo) {
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
