// Remote write: the pack kernel stores into the neighbour's ghosts.
//
// The packing launch gives the senders credit for this rank's ghosts and, if no other work has to be in
// between, waits for the arrival as well.
#include "device_transports/device_transports.hpp"
#include "device_transports/halo_slots.hpp"

#include <algorithm>

namespace jali {

namespace {

constexpr unsigned await_threads = 64;
constexpr HaloChannel channel = HaloChannel::ghosts;

class RemoteWrite : public HaloConnection {
  public:
    explicit RemoteWrite(HaloOnDevice& halo) : HaloConnection(halo), pad_(pad_for(halo)) {
        const auto& first = halo_.layout->first_ghosts(*halo_.communicator);
        for (HaloMessages::Message& message : halo_.messages)
            for (const HaloMessages::Part& part : message.parts)
                message.their_ghosts.push_back(first[message.to][2 * message.slab + part.parity]);
        begin();
    }

    void begin() override {
        for (const auto& field : halo_.fields) field->map_ghosts(*halo_.communicator);
    }
    PackMessage words_of(const HaloMessages::Message& message) const override {
        return pad_words_of(*pad_, channel, message, halo_.communicator->rank());
    }

    void make_tables() override {
        std::vector<GpuAddress> opened, awaited;
        stages_.assign(static_cast<std::size_t>(halo_.stages()), {});
        const int me = halo_.communicator->rank();
        for (const Batch& batch : halo_.steps.batches) {
            batch.for_each(schedule(), StepRole::grant_credit, [&](const Step& step) {
                const GpuAddress opens = pad_->credit(channel, std::get<Signal>(step.action).to, me);
                if (std::find(opened.begin(), opened.end(), opens) == opened.end()) opened.push_back(opens);
            });
            const auto first = static_cast<std::int64_t>(awaited.size());
            batch.for_each(schedule(), StepRole::wait, [&](const Step& step) {
                awaited.push_back(pad_->arrived(channel, me, std::get<Wait>(step.action).tag));
            });
            const auto words = static_cast<std::int64_t>(awaited.size()) - first;
            if (words > 0) stages_[batch.stage] = {first, words};
        }
        opened_ = halo_.upload(opened);
        opened_count_ = static_cast<std::int64_t>(opened.size());
        awaited_ = halo_.upload(awaited);
    }
    // A launch that waits does so for the words of its stage; with the last stage the exchange ends.
    void prepare(PackArguments& arguments, const Batch& batch) const override {
        arguments.epoch = pad_->epoch(channel);
        arguments.watch = pad_->watch();
        arguments.opened = opened_.address();
        arguments.opened_count = opened_count_;
        arguments.last = batch.has(StepRole::wait) && is_last(batch);
        if (!batch.has(StepRole::wait)) return;
        arguments.awaited = awaited_of(batch);
        arguments.awaited_count = stages_[batch.stage].words;
    }
    void carry(const Batch& batch, void* stream) override {
        if (!batch.has(StepRole::wait)) refuse(batch);
        ArrivalArguments arguments{awaited_of(batch), stages_[batch.stage].words, pad_->epoch(channel),
                                   is_last(batch), pad_->watch()};
        const DeviceSpan span(*halo_.gpu, stream, Phase::unpack, "await");
        halo_.gpu->launch(halo_.gpu->builtin("await_halos"), 1, await_threads, arguments, stream,
                          LaunchPriority::first);
    }
    void end(void* stream) override { pad_->note_exchange(stream); }

  private:
    struct Stage {
        std::int64_t first = 0, words = 0;
    };
    bool is_last(const Batch& batch) const { return batch.stage + 1 == halo_.stages(); }
    GpuAddress awaited_of(const Batch& batch) const {
        return awaited_.address() + stages_[batch.stage].first * sizeof(GpuAddress);
    }

    std::shared_ptr<HaloPad> pad_;
    std::vector<Stage> stages_;
    GpuMemory opened_, awaited_; // words: at this rank's senders, of arrival
    std::int64_t opened_count_ = 0;
};

constexpr HaloMove moves[] = {
    {StepRole::grant_credit, HaloTime::first}, {StepRole::pack, HaloTime::first},
    {StepRole::await_credit, HaloTime::first}, {StepRole::put, HaloTime::first},
    {StepRole::signal, HaloTime::first},       {StepRole::wait, HaloTime::by_stage}};
constexpr Fusion fusions[] = {
    {"packing puts", set_of({StepRole::grant_credit, StepRole::pack, StepRole::await_credit, StepRole::put,
                             StepRole::signal})}};

std::unique_ptr<HaloConnection> make(HaloOnDevice& halo) {
    return std::make_unique<RemoteWrite>(halo);
}

} // namespace

const HaloTransport halos_by_remote_write{{remote_write},
                                          "the pack kernel stores into the neighbour's ghosts",
                                          moves,
                                          fusions,
                                          &halos_by_staging,
                                          &halos_by_buffered_write,
                                          "ghosts",
                                          make};

} // namespace jali
