// Copy engine: packed here, copied into a slot at the neighbour between two small launches on the same
// stream.
//
// The host chooses the slot, so exchanges cannot be recorded.
#include "halo/halo_packed.hpp"
#include "halo/halo_slots.hpp"
#include "transport/carriers.hpp"

namespace jali {

namespace {

class CopyEngine : public PackedHere<SlotCarrier> {
  public:
    explicit CopyEngine(HaloMessages& halo) : PackedHere(halo, HaloChannel::copied_slots) {}

    void make_tables() override {
        SlotCarrier::make_tables();
        std::vector<PackMessage> words;
        for (const HaloMessages::Message& message : halo_.messages) words.push_back(words_of(message));
        words_ = halo_.gpu->upload(words.data(), words.size() * sizeof words[0], "halo tables");
    }
    void carry(const HaloStep& step, void* stream) override {
        if (step.has(HaloAction::place)) return SlotCarrier::carry(step, stream);
        if (step.actions.size() > 1) refuse(step);
        Gpu& gpu = *halo_.gpu;
        const auto count = static_cast<std::int64_t>(halo_.messages.size());
        if (step.has(HaloAction::admit)) {
            AwaitArguments await{words_.address(), count, pad_->epoch(channel_), pad_->watch()};
            const DeviceSpan span(gpu, stream, Phase::transport, "await buffers");
            gpu.launch(gpu.builtin("await_slots"), 1, halo_blocks.threads, await, stream, Urgency::first);
        } else if (step.has(HaloAction::put)) {
            const DeviceSpan span(gpu, stream, Phase::transport, "copy", watched() ? halo_.sent() : Work{});
            const std::uint64_t slot = pad_->enqueued(channel_) % 2 * pad_->slot_bytes(channel_);
            for (const HaloMessages::Message& message : halo_.messages)
                if (message.send_bytes > 0)
                    gpu.copy(slot_of(message) + slot, send_.address() + message.send_offset,
                             message.send_bytes, stream);
        } else if (step.has(HaloAction::signal)) {
            SignalArguments signal{words_.address(), count, pad_->epoch(channel_)};
            const DeviceSpan span(gpu, stream, Phase::transport, "signal");
            gpu.launch(gpu.builtin("signal_halos"), 1, halo_blocks.threads, signal, stream, Urgency::first);
        } else {
            refuse(step);
        }
    }

  private:
    GpuMemory words_;
};

std::unique_ptr<HaloCarrier> make(HaloMessages& halo) {
    return std::make_unique<CopyEngine>(halo);
}

} // namespace

const HaloTransport halos_by_copy_engine{
    {copy_engine.name, copy_engine.words, through_slots(copy_engine.traits, false), copy_engine.why_not},
    "packed here, copied into a buffer at the neighbour by a copy engine",
    slots_are_put,
    std::span(&slots_are_placed, 1),
    &halos_by_staging,
    nullptr,
    "buffers",
    make};

} // namespace jali
