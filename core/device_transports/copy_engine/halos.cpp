// Copy engine: packed here, copied into the slot at the neighbour between two small launches on the same
// stream. The first waits until the neighbour has unpacked the slot's previous message.
#include "device_transports/device_transports.hpp"
#include "device_transports/halo_slots.hpp"

namespace jali {

namespace {

class CopyEngine : public SlotConnection {
  public:
    explicit CopyEngine(HaloOnDevice& halo) : SlotConnection(halo, HaloChannel::copied_slots) {}

    void make_tables() override {
        SlotConnection::make_tables();
        std::vector<PackMessage> words;
        for (const HaloMessages::Message& message : halo_.messages) words.push_back(words_of(message));
        words_ = halo_.upload(words);
    }
    void carry(const Batch& batch, void* stream) override {
        if (batch.has(StepRole::unpack)) return SlotConnection::carry(batch, stream);
        if (batch.roles.size() > 1) refuse(batch);
        Gpu& gpu = *halo_.gpu;
        const auto count = static_cast<std::int64_t>(halo_.messages.size());
        if (batch.has(StepRole::await_credit)) {
            AwaitArguments await{words_.address(), count, pad_->epoch(channel_), pad_->watch()};
            const DeviceSpan span(gpu, stream, Phase::transport, "await buffers");
            gpu.launch(gpu.builtin("await_slots"), 1, halo_blocks.threads, await, stream,
                       LaunchPriority::first);
        } else if (batch.has(StepRole::put)) {
            const DeviceSpan span(gpu, stream, Phase::transport, "copy", watched() ? halo_.sent() : Work{});
            batch.for_each(schedule(), StepRole::put, [&](const Step& step) {
                for (const CopySpec& spec : std::get<Copy>(step.action).specs)
                    gpu.copy(halo_.at(spec.to), halo_.at(spec.from), spec.to.bytes, stream);
            });
        } else if (batch.has(StepRole::signal)) {
            SignalArguments signal{words_.address(), count, pad_->epoch(channel_)};
            const DeviceSpan span(gpu, stream, Phase::transport, "signal");
            gpu.launch(gpu.builtin("signal_halos"), 1, halo_blocks.threads, signal, stream,
                       LaunchPriority::first);
        } else {
            refuse(batch);
        }
    }

  private:
    GpuMemory words_;
};

std::unique_ptr<HaloConnection> make(HaloOnDevice& halo) {
    return std::make_unique<CopyEngine>(halo);
}

} // namespace

const HaloTransport halos_by_copy_engine{
    {copy_engine.name, copy_engine.words, through_slots(copy_engine.traits), copy_engine.why_not},
    "packed here, copied into a buffer at the neighbour by a copy engine",
    slots_are_put,
    std::span(&unpacking_waits, 1),
    &halos_by_staging,
    nullptr,
    "buffers",
    make};

} // namespace jali
