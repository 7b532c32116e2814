#include "halo/halo_slots.hpp"

#include <algorithm>
#include <cstring>

namespace jali {

std::shared_ptr<HaloPad> pad_for(const HaloMessages& halo) {
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

SlotCarrier::SlotCarrier(HaloMessages& halo, HaloChannel channel)
    : HaloCarrier(halo), channel_(channel), pad_(pad_for(halo)),
      their_offsets_(halo.layout->slabs().size(), -1) {
    std::vector<std::int64_t> mine(their_offsets_);
    for (const HaloMessages::Message& message : halo_.messages)
        mine[message.slab] = static_cast<std::int64_t>(message.receive_offset);
    const char* what = "places of halo messages";
    const auto all = halo_.communicator->all_gather(std::as_bytes(std::span(mine)), what);
    for (std::size_t r = 0; r < all.size(); ++r)
        check_bytes(all[r], mine.size() * sizeof mine[0], static_cast<int>(r), what);
    for (const HaloMessages::Message& message : halo_.messages)
        std::memcpy(&their_offsets_[message.slab],
                    all[message.to].data() + message.slab * sizeof(std::int64_t), sizeof(std::int64_t));
    pad_->reserve(channel_, halo_.receive_bytes);
}

std::vector<std::uint64_t> SlotCarrier::addresses() const {
    std::vector<std::uint64_t> all{pad_->slot_bytes(channel_)};
    for (int r = 0; r < halo_.communicator->size(); ++r) all.push_back(pad_->slot(channel_, r));
    return all;
}

GpuAddress SlotCarrier::slot_of(const HaloMessages::Message& message) const {
    return pad_->slot(channel_, message.to) + static_cast<GpuAddress>(their_offsets_[message.slab]);
}

PackMessage SlotCarrier::words_of(const HaloMessages::Message& message) const {
    return pad_words_of(*pad_, channel_, message, halo_.communicator->rank());
}

void SlotCarrier::make_tables() {
    const int me = halo_.communicator->rank();
    std::vector<ReceiveSection> sections;
    std::vector<HaloJob> jobs;
    stages_.assign(halo_.stages.size(), {});
    halo_.for_each([&](std::size_t s, std::size_t number, const HaloMessages::Message& message) {
        if (stages_[s].jobs == 0) stages_[s].first_job = static_cast<std::int64_t>(jobs.size());
        for (const HaloMessages::Part& part : message.parts) {
            const std::size_t bytes = halo_.receive_bytes_of(part);
            stages_[s].jobs +=
                deal_out(jobs, sections.size(), number, bytes, halo_.receive_bytes, halo_blocks);
            sections.push_back({pad_->slot(channel_, me) + message.receive_offset + part.receive_offset,
                                HaloMessages::ghosts_of(part), static_cast<std::int64_t>(bytes),
                                pad_->arrived(channel_, me, message.slab)});
        }
    });
    std::vector<GpuAddress> senders; // everybody may send in another exchange
    for (int r = 0; r < halo_.communicator->size(); ++r) senders.push_back(pad_->credit(channel_, r, me));
    const auto upload = [&](const auto& rows) {
        return halo_.gpu->upload(rows.data(), rows.size() * sizeof rows[0], "halo tables");
    };
    sections_ = upload(sections);
    jobs_ = upload(jobs);
    sender_count_ = static_cast<std::int64_t>(senders.size());
    senders_ = upload(senders);
}

void SlotCarrier::carry(const HaloStep& step, void* stream) {
    if (!step.has(HaloAction::wait) || !step.has(HaloAction::place)) refuse(step);
    const auto s = static_cast<std::size_t>(step.stage);
    const Stage& stage = stages_[s];
    ReceiveArguments arguments{sections_.address(),
                               jobs_.address() + stage.first_job * sizeof(HaloJob),
                               stage.jobs,
                               static_cast<std::int64_t>(pad_->slot_bytes(channel_)),
                               pad_->epoch(channel_),
                               halo_.retired_word(halo_.messages.size() + s),
                               senders_.address(),
                               sender_count_,
                               step.has(HaloAction::offer),
                               pad_->watch()};
    const DeviceSpan span(*halo_.gpu, stream, Phase::unpack, "await and place",
                          watched() ? halo_.received(s) : Work{});
    halo_.gpu->launch(halo_.gpu->builtin("receive_halos"),
                      static_cast<unsigned>(std::max<std::int64_t>(1, stage.jobs)), halo_blocks.threads,
                      arguments, stream, Urgency::first);
}

} // namespace jali
