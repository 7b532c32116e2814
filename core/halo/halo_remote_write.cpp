// Remote write: the pack kernel stores into the neighbour's ghosts.
//
// The launch that packs gives the senders credit for this rank's ghosts and, where nothing else has to come
// between, waits for what arrives as well.
#include "halo/halo_slots.hpp"
#include "transport/carriers.hpp"

#include <algorithm>

namespace jali {

namespace {

constexpr unsigned await_threads = 64;
constexpr HaloChannel channel = HaloChannel::ghosts;

class RemoteWrite : public HaloCarrier {
  public:
    explicit RemoteWrite(HaloMessages& halo) : HaloCarrier(halo), pad_(pad_for(halo)) {
        const auto& first = halo_.layout->first_ghosts(*halo_.communicator);
        for (HaloMessages::Message& message : halo_.messages)
            for (HaloMessages::Part& part : message.parts)
                part.their_ghost = first[message.to][2 * message.slab + part.parity];
        begin();
    }

    void begin() override {
        for (const auto& field : halo_.fields) field->map_ghosts(*halo_.communicator);
    }
    GpuAddress place_of(const HaloMessages::Message& message, const HaloMessages::Part& part) const override {
        return part.field->ghosts_of(message.to) + part.their_ghost * part.field->block_bytes();
    }
    PackMessage words_of(const HaloMessages::Message& message) const override {
        return pad_words_of(*pad_, channel, message, halo_.communicator->rank());
    }

    void make_tables() override {
        std::vector<GpuAddress> opened, awaited;
        stages_.assign(halo_.stages.size(), {});
        const int me = halo_.communicator->rank();
        halo_.for_each([&](std::size_t s, std::size_t, const HaloMessages::Message& message) {
            const GpuAddress opens = pad_->credit(channel, message.from, me);
            if (std::find(opened.begin(), opened.end(), opens) == opened.end()) opened.push_back(opens);
            if (message.receive_bytes == 0) return;
            if (stages_[s].words++ == 0) stages_[s].first = static_cast<std::int64_t>(awaited.size());
            awaited.push_back(pad_->arrived(channel, me, message.slab));
        });
        const auto upload = [&](const std::vector<GpuAddress>& words) {
            return halo_.gpu->upload(words.data(), words.size() * sizeof words[0], "halo tables");
        };
        opened_ = upload(opened);
        opened_count_ = static_cast<std::int64_t>(opened.size());
        awaited_ = upload(awaited);
    }
    // A launch that waits does so for the words of its stage; with the last stage the exchange ends.
    void prepare(PackArguments& arguments, const HaloStep& step) const override {
        arguments.epoch = pad_->epoch(channel);
        arguments.watch = pad_->watch();
        arguments.opened = opened_.address();
        arguments.opened_count = opened_count_;
        arguments.last = step.has(HaloAction::wait) && is_last(step);
        if (!step.has(HaloAction::wait)) return;
        arguments.awaited = awaited_of(step);
        arguments.awaited_count = stages_[step.stage].words;
    }
    void carry(const HaloStep& step, void* stream) override {
        if (!step.has(HaloAction::wait)) refuse(step);
        ArrivalArguments arguments{awaited_of(step), stages_[step.stage].words, pad_->epoch(channel),
                                   is_last(step), pad_->watch()};
        const DeviceSpan span(*halo_.gpu, stream, Phase::unpack, "await");
        halo_.gpu->launch(halo_.gpu->builtin("await_halos"), 1, await_threads, arguments, stream,
                          Urgency::first);
    }
    void end(void* stream) override { pad_->note_exchange(channel, stream); }

  private:
    struct Stage {
        std::int64_t first = 0, words = 0;
    };
    bool is_last(const HaloStep& step) const {
        return static_cast<std::size_t>(step.stage) + 1 == stages_.size();
    }
    GpuAddress awaited_of(const HaloStep& step) const {
        return awaited_.address() + stages_[step.stage].first * sizeof(GpuAddress);
    }

    std::shared_ptr<HaloPad> pad_;
    std::vector<Stage> stages_;
    GpuMemory opened_, awaited_; // words: of who sends to here, of arrival
    std::int64_t opened_count_ = 0;
};

constexpr HaloMove moves[] = {{HaloAction::offer, HaloTime::first},  {HaloAction::pack, HaloTime::first},
                              {HaloAction::admit, HaloTime::first},  {HaloAction::put, HaloTime::first},
                              {HaloAction::signal, HaloTime::first}, {HaloAction::wait, HaloTime::by_stage}};
constexpr HaloFusion fusions[] = {
    {"packing puts",
     set_of({HaloAction::offer, HaloAction::pack, HaloAction::admit, HaloAction::put, HaloAction::signal})}};

std::unique_ptr<HaloCarrier> make(HaloMessages& halo) {
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
