// Remote write: the kernel of collectives stores into queues in the memory of peers.
#include "device_transports/device_transports.hpp"
#include "running/collective_queues.hpp"
#include "settings/notice.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace jali {

namespace {

// Former names of sizes. An entry may be removed one release after it was added.
constexpr std::pair<std::string_view, const char*> renamed[] = {{"lanes", "channels"},
                                                                {"bytes_per_lane", "bytes_per_channel"}};

// The current name of a size; an older one gives a warning.
std::string name_of_today(const std::string& name) {
    for (const auto& [old, today] : renamed) {
        if (name != old) continue;
        report_once("device_queues: '" + name + "' is called '" + today +
                    "'; the next release knows it only so");
        return today;
    }
    return name;
}

// The experiment `device_queues`, a list such as "channels=32,slot_bytes=65536"; must be the same on all
// ranks.
void read_parameters(DeviceProgramParameters& p) {
    std::string rest = settings().device_queues;
    std::int64_t channels = p.most_channels;
    const std::pair<const char*, std::int64_t*> known[] = {
        {"channels", &channels},
        {"bytes_per_channel", &p.bytes_per_channel},
        {"slot_bytes", &p.slotted.slot_bytes},
        {"slots", &p.slotted.slots},
        {"flagged_bytes", &p.flagged.slot_bytes},
        {"flagged_slots", &p.flagged.slots},
        {"flagged_below", &p.flagged_below},
        {"flagged_below_combining", &p.flagged_below_combining},
    };
    while (!rest.empty()) {
        const auto comma = std::min(rest.find(','), rest.size());
        const std::string item = rest.substr(0, comma);
        rest.erase(0, comma + 1);
        const auto equals = item.find('=');
        const std::string name = name_of_today(item.substr(0, equals));
        std::int64_t value = 0;
        try {
            if (equals != std::string::npos) value = std::stoll(item.substr(equals + 1));
        } catch (const std::exception&) {
        }
        bool found = false;
        for (const auto& [key, target] : known)
            if (name == key && value > 0) {
                *target = value;
                found = true;
            }
        const auto is_of = [&](const char* what) { return name.find(what) != std::string::npos; };
        if (!found || (is_of("_bytes") && value % 16 != 0) ||
            (is_of("slots") && (value & (value - 1)) != 0)) {
            std::string names;
            for (const auto& entry : known) names += (names.empty() ? "" : ", ") + std::string(entry.first);
            throw PlanError("device_queues: '" + item + "' is none of " + names +
                            ", each =<number>, bytes of slots in multiples of 16, slots a power of two");
        }
    }
    p.most_channels = static_cast<int>(channels);
}

} // namespace

CollectiveQueues::CollectiveQueues(const CollectiveRanks& ranks)
    : CollectiveConnection(collectives_by_remote_write, *ranks.gpu),
      order_(std::make_shared<StreamOrder>(ranks.gpu)) {
    Gpu& gpu = *ranks.gpu;
    const int size = ranks.control->size();
    if (size > most_ranks)
        throw GpuError("collectives through the memory of peers are for up to " + std::to_string(most_ranks) +
                       " ranks, not " + std::to_string(size));
    // with more ranks more messages are pending at once, and flags are polled for longer
    if (size > 2) parameters_.flagged_below_combining /= 2;
    if (size > 4) parameters_.slotted.slot_bytes = size <= 8 ? 65536 : 32768;
    read_parameters(parameters_);
    const DeviceQueues &slots = parameters_.slotted, &flags = parameters_.flagged;
    const std::int64_t channels = parameters_.most_channels, pairs = channels * size;
    const auto rank_of = [size](std::int64_t pair) { return static_cast<int>(pair % size); };
    const auto sender_in = [rank_of](std::int64_t of_pair) { // of words [channel][rank][so many]
        return [=](std::int64_t word) { return rank_of(word / of_pair); };
    };
    pad_ = std::make_unique<SignalPad>(
        ranks.gpu, ranks.control,
        std::vector<SignalWords>{
            {SignalWords::data, pairs * slots.slots, "message", sender_in(slots.slots)},
            {SignalWords::credit, pairs, "message", rank_of},
            {SignalWords::credit, pairs, "message", rank_of},
            {SignalWords::data, pairs * flags.slots, "message", sender_in(flags.slots),
             static_cast<std::size_t>(2 * flags.slot_bytes)},
        },
        static_cast<std::size_t>(pairs * slots.slots * slots.slot_bytes), 2 * 2 * pairs,
        "waited for its device, where a collective waits for other ranks", "collective queues",
        ranks.wanted.empty() ? SymmetricBuffer::Reach::all : SymmetricBuffer::Reach::some);
    std::string trouble;
    for (std::size_t r = 0; r < ranks.wanted.size() && trouble.empty(); ++r)
        if (ranks.wanted[r] != 0) trouble = pad_->buffer().why_not(static_cast<int>(r));
    if (!ranks.wanted.empty())
        trouble = first_reported(*ranks.control, trouble, "collective queues inside hosts");
    if (!trouble.empty()) throw GpuError(trouble);
    overflows_ = gpu.allocate(sizeof(std::int64_t), "collective counters");
    gpu.fill(overflows_.address(), 0, overflows_.size());
    std::vector<GpuAddress> bases = pad_->buffer().all(); // 0: not reached, and no message goes there
    bases[static_cast<std::size_t>(ranks.control->rank())] = pad_->buffer().mine();
    bases_ = gpu.upload(bases.data(), bases.size() * sizeof(GpuAddress), "collective tables");
}

std::int64_t CollectiveQueues::take_overflows() {
    std::int64_t count = 0;
    Gpu& gpu = *pad_->gpu();
    order_->before(gpu.stream());
    gpu.copy_out(&count, overflows_.address(), sizeof count);
    gpu.synchronize();
    if (count > 0) gpu.fill(overflows_.address(), 0, sizeof count);
    return count;
}

const CollectiveTransport collectives_by_remote_write{
    {remote_write},
    [](const CollectiveRanks& ranks) -> std::shared_ptr<CollectiveConnection> {
        return std::make_shared<CollectiveQueues>(ranks);
    },
    {.carries = "the memory of peers"}};

} // namespace jali
