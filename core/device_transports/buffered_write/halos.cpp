// Buffered write: the pack kernel stores into a slot at the neighbour, which unpacks it.
#include "device_transports/device_transports.hpp"
#include "device_transports/halo_slots.hpp"

namespace jali {

namespace {

class BufferedWrite : public SlotConnection {
  public:
    explicit BufferedWrite(HaloOnDevice& halo) : SlotConnection(halo, HaloChannel::stored_slots) {}

    void prepare(PackArguments& arguments, const Batch&) const override {
        arguments.epoch = pad_->epoch(channel_);
        arguments.watch = pad_->watch();
        arguments.slot_bytes = pad_->stride(channel_);
    }
};

constexpr Fusion fusions[] = {
    {"packing puts", set_of({StepRole::pack, StepRole::await_credit, StepRole::put, StepRole::signal})},
    unpacking_waits};

std::unique_ptr<HaloConnection> make(HaloOnDevice& halo) {
    return std::make_unique<BufferedWrite>(halo);
}

} // namespace

const HaloTransport halos_by_buffered_write{
    {"buffered-write", remote_write.words, through_slots(remote_write.traits), remote_write.why_not},
    "the pack kernel stores into a buffer at the neighbour, which unpacks it",
    slots_are_put,
    fusions,
    &halos_by_staging,
    nullptr,
    "buffers",
    make};

} // namespace jali
