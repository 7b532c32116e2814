#include "halo/halo_pad.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace jali {

namespace {

constexpr std::size_t page = 4096;

std::vector<SignalWords> rows_of(int ranks, const std::function<int(std::int64_t)>& sender_of) {
    std::vector<SignalWords> rows;
    for (int channel = 0; channel < 3; ++channel) {
        rows.push_back({SignalWords::data, HaloPad::most_messages, "exchange", sender_of});
        rows.push_back(
            {SignalWords::credit, ranks, "exchange", [](std::int64_t by) { return static_cast<int>(by); }});
    }
    return rows;
}

} // namespace

HaloPad::HaloPad(std::shared_ptr<Gpu> gpu, const std::shared_ptr<Communicator>& communicator,
                 const std::function<int(std::int64_t slab)>& sender_of)
    : pad_(std::move(gpu), communicator, rows_of(communicator->size(), sender_of), 0, 3,
           "waited for its device, where halos of other ranks may be missing", "signal pad of halos") {
}

bool HaloPad::reserve(HaloChannel channel, std::size_t bytes) {
    Channel& c = channels_[static_cast<std::size_t>(channel)];
    const std::size_t largest = largest_on_ranks(*pad_.communicator(), bytes);
    if (c.slots && largest <= c.slot_bytes) return false;
    if (!c.slots) c.slots = std::make_unique<SymmetricBuffer>(pad_.gpu(), pad_.communicator());
    c.slot_bytes = (std::max({2 * c.slot_bytes, largest, page}) + page - 1) / page * page;
    c.slots->allocate(static_cast<std::size_t>(slots(channel)) * c.slot_bytes, 0, "slots of halos");
    return true;
}

} // namespace jali
