// Buffered write: the pack kernel stores into a slot at the neighbour, which places it.
#include "carriers/carriers.hpp"
#include "carriers/halo_slots.hpp"

namespace jali {

namespace {

class BufferedWrite : public SlotCarrier {
  public:
    explicit BufferedWrite(HaloOnDevice& halo) : SlotCarrier(halo, HaloChannel::stored_slots) {}

    void prepare(PackArguments& arguments, const Batch&) const override {
        arguments.epoch = pad_->epoch(channel_);
        arguments.watch = pad_->watch();
        arguments.slot_bytes = pad_->stride(channel_);
    }
};

constexpr Fusion fusions[] = {{"packing puts", set_of({Deed::pack, Deed::admit, Deed::put, Deed::signal})},
                              slots_are_placed};

std::unique_ptr<HaloCarrier> make(HaloOnDevice& halo) {
    return std::make_unique<BufferedWrite>(halo);
}

} // namespace

const HaloTransport halos_by_buffered_write{
    {"buffered-write", remote_write.words, through_slots(remote_write.traits), remote_write.why_not},
    "the pack kernel stores into a buffer at the neighbour, which places it",
    slots_are_put,
    fusions,
    &halos_by_staging,
    nullptr,
    "buffers",
    make};

} // namespace jali
