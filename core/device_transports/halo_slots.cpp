#include "device_transports/halo_slots.hpp"

#include <algorithm>
#include <cstring>

namespace jali {

std::shared_ptr<HaloPad> pad_for(const HaloOnDevice& halo) {
    if (halo.layout->slabs().size() > HaloPad::most_messages) // as many on every rank, so that all stop here
        throw LayoutError("halo: more than " + std::to_string(HaloPad::most_messages) +
                          " different ghost slabs of one lattice; use halo policy host-staged-overlap");
    return halo.layout->pad(halo.communicator);
}

PackMessage pad_words_of(const HaloPad& pad, HaloChannel channel, const HaloMessages::Message& message,
                         int me) {
    return {0, pad.arrived(channel, message.to, message.slab), pad.credit(channel, me, message.to),
            HaloPad::ahead(channel)};
}

SlotConnection::SlotConnection(HaloOnDevice& halo, HaloChannel channel)
    : HaloConnection(halo), channel_(channel), pad_(pad_for(halo)) {
    std::vector<std::int64_t> mine(halo_.layout->slabs().size(), -1);
    for (const HaloMessages::Message& message : halo_.messages)
        mine[message.slab] = static_cast<std::int64_t>(message.receive_offset);
    const char* what = "places of halo messages";
    const auto all = halo_.communicator->all_gather(std::as_bytes(std::span(mine)), what);
    for (std::size_t r = 0; r < all.size(); ++r)
        check_bytes(all[r], mine.size() * sizeof mine[0], static_cast<int>(r), what);
    for (HaloMessages::Message& message : halo_.messages) {
        std::int64_t theirs = -1;
        std::memcpy(&theirs, all[message.to].data() + message.slab * sizeof theirs, sizeof theirs);
        message.their_slot = static_cast<std::size_t>(theirs);
    }
    pad_->reserve(channel_, halo_.receive_bytes);
}

PackMessage SlotConnection::words_of(const HaloMessages::Message& message) const {
    return pad_words_of(*pad_, channel_, message, halo_.communicator->rank());
}

void SlotConnection::make_tables() {
    const int me = halo_.communicator->rank();
    std::vector<ReceiveSection> sections;
    std::vector<HaloJob> jobs;
    stages_.assign(static_cast<std::size_t>(halo_.stages()), {});
    std::size_t message = 0;
    for (const Batch& batch : halo_.steps.batches) {
        const auto first = static_cast<std::int64_t>(jobs.size());
        batch.for_each(schedule(), StepRole::unpack, [&](const Step& step) {
            const Step& arrival = schedule().steps()[step.parts[0].needs[0].step];
            const GpuAddress arrived = pad_->arrived(channel_, me, std::get<Wait>(arrival.action).tag);
            for (const CopySpec& spec : std::get<Copy>(step.action).specs) {
                deal_out(jobs, sections.size(), message, spec.to.bytes, halo_.receive_bytes, halo_blocks);
                sections.push_back({halo_.at(spec.from), halo_.at(spec.to),
                                    static_cast<std::int64_t>(spec.to.bytes), arrived});
            }
            ++message;
        });
        const auto of_stage = static_cast<std::int64_t>(jobs.size()) - first;
        if (of_stage > 0) stages_[batch.stage] = {first, of_stage};
    }
    std::vector<GpuAddress> senders; // any rank may send in another exchange
    for (int r = 0; r < halo_.communicator->size(); ++r) senders.push_back(pad_->credit(channel_, r, me));
    sections_ = halo_.upload(sections);
    jobs_ = halo_.upload(jobs);
    sender_count_ = static_cast<std::int64_t>(senders.size());
    senders_ = halo_.upload(senders);
}

void SlotConnection::carry(const Batch& batch, void* stream) {
    if (!batch.has(StepRole::wait) || !batch.has(StepRole::unpack)) refuse(batch);
    const Stage& stage = stages_[batch.stage];
    ReceiveArguments arguments{sections_.address(),
                               jobs_.address() + stage.first_job * sizeof(HaloJob),
                               stage.jobs,
                               pad_->stride(channel_),
                               pad_->epoch(channel_),
                               halo_.retired_word(halo_.messages.size() + batch.stage),
                               senders_.address(),
                               sender_count_,
                               batch.has(StepRole::grant_credit),
                               pad_->watch()};
    const DeviceSpan span(*halo_.gpu, stream, Phase::unpack, "await and unpack",
                          watched() ? halo_.received(batch.stage) : Work{});
    halo_.gpu->launch(halo_.gpu->builtin("receive_halos"),
                      static_cast<unsigned>(std::max<std::int64_t>(1, stage.jobs)), halo_blocks.threads,
                      arguments, stream, LaunchPriority::first);
}

} // namespace jali
