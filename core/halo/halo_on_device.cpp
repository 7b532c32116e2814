#include "halo/halo_on_device.hpp"

#include <algorithm>

namespace jali {

namespace {

constexpr std::size_t bytes_per_thread = 64; // of a message, until the most blocks are reached

Work moved(std::size_t bytes) {
    const auto n = static_cast<std::int64_t>(bytes);
    return {0, n, n, 0};
}

} // namespace

std::int64_t deal_out(std::vector<HaloJob>& jobs, std::size_t item, std::size_t message, std::size_t bytes,
                      std::size_t all_bytes, const HaloBlocks& blocks) {
    if (bytes == 0) return 0;
    const std::size_t at_once = bytes_per_thread * blocks.threads;
    const std::size_t wanted = (bytes + at_once - 1) / at_once;
    const std::size_t share = (blocks.most * bytes + all_bytes - 1) / all_bytes;
    const auto turns = static_cast<std::int32_t>(std::min(wanted, share));
    for (std::int32_t turn = 0; turn < turns; ++turn)
        jobs.push_back({static_cast<std::int32_t>(item), static_cast<std::int32_t>(message), turn, turns});
    return turns;
}

Work HaloOnDevice::sent() const {
    std::size_t bytes = 0;
    for (const Message& message : messages) bytes += message.send_bytes;
    return moved(bytes);
}

Work HaloOnDevice::received(int stage) const {
    std::size_t bytes = 0;
    for (const Message& message : messages)
        if (stage < 0 || message.stage == stage) bytes += message.receive_bytes;
    return moved(bytes);
}

} // namespace jali
