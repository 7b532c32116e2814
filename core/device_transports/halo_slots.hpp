// Transports that use a layout's pad (halo_pad.hpp), and those of them that go through slots at the receiver.
#pragma once

#include "halo/halo_pad.hpp"
#include "halo/halo_transport.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace jali {

// Of a transport, where its bytes go through slots at the receiver.
constexpr TransportTraits through_slots(TransportTraits traits) {
    traits.buffered = true;
    return traits;
}

// Collective at first. Throws LayoutError, on all ranks, where the layout has more slabs than the pad words.
std::shared_ptr<HaloPad> pad_for(const HaloOnDevice& halo);

// The words of a message that rank `me` sends.
PackMessage pad_words_of(const HaloPad& pad, HaloChannel channel, const HaloMessages::Message& message,
                         int me);

// Messages arrive in slots of this rank, and a launch unpacks them; with the last stage they may be written
// again.
constexpr HaloMove slots_are_put[] = {{StepRole::pack, HaloTime::first},
                                      {StepRole::await_credit, HaloTime::first},
                                      {StepRole::put, HaloTime::first},
                                      {StepRole::signal, HaloTime::first},
                                      {StepRole::wait, HaloTime::by_stage},
                                      {StepRole::unpack, HaloTime::by_stage},
                                      {StepRole::grant_credit, HaloTime::with_last_stage}};
constexpr Fusion unpacking_waits{"placing waits",
                                 set_of({StepRole::wait, StepRole::unpack, StepRole::grant_credit})};
class SlotConnection : public HaloConnection {
  public:
    SlotConnection(HaloOnDevice& halo, HaloChannel channel);                           // collective
    GpuAddress slot_of(int rank) const override { return pad_->slot(channel_, rank); } // the first
    std::vector<std::uint64_t> addresses() const override { return {pad_->slot_bytes(channel_)}; }
    PackMessage words_of(const HaloMessages::Message& message) const override;
    void make_tables() override;
    void carry(const Batch& batch, void* stream) override; // waits and unpacks
    void end(void* stream) override { pad_->note_exchange(stream); }

  protected:
    HaloChannel channel_;
    std::shared_ptr<HaloPad> pad_;

  private:
    struct Stage {
        std::int64_t first_job = 0, jobs = 0;
    };
    std::vector<Stage> stages_;
    GpuMemory sections_, jobs_, senders_; // words of all possible senders
    std::int64_t sender_count_ = 0;
};

} // namespace jali
