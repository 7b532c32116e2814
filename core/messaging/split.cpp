#include "messaging/split.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace jali {

Parts agree_on_parts(Communicator& communicator, int color, int key, std::span<const std::int64_t> kept,
                     std::int64_t number) {
    std::vector<std::int64_t> mine{color, key, number};
    mine.insert(mine.end(), kept.begin(), kept.end());
    Parts parts;
    std::vector<std::tuple<std::int64_t, int>> order;
    const auto all = communicator.all_gather(std::as_bytes(std::span(mine)), "a split or duplicate");
    for (int rank = 0; rank < communicator.size(); ++rank) {
        const std::size_t numbers = std::max<std::size_t>(all[rank].size() / sizeof(std::int64_t), 3);
        check_bytes(all[rank], numbers * sizeof(std::int64_t), rank, "a split");
        std::vector<std::int64_t> theirs(numbers);
        std::memcpy(theirs.data(), all[rank].data(), all[rank].size());
        if (color >= 0 && theirs[0] == color) order.emplace_back(theirs[1], rank);
        parts.largest = std::max(parts.largest, theirs[2]);
        parts.kept.insert(parts.kept.end(), theirs.begin() + 3, theirs.end());
    }
    std::sort(order.begin(), order.end());
    for (const auto& [their_key, rank] : order) {
        if (rank == communicator.rank()) parts.rank = static_cast<int>(parts.members.size());
        parts.members.push_back(rank);
    }
    std::sort(parts.kept.begin(), parts.kept.end());
    parts.kept.erase(std::unique(parts.kept.begin(), parts.kept.end()), parts.kept.end());
    return parts;
}

} // namespace jali
