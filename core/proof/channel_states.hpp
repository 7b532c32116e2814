// The state of the queues of every channel of a rank, modulo whole turns: channels with equal states, on all
// ranks, behave the same in launches that treat them alike.
#pragma once

#include "running/collective_kernel.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace jali {

using ChannelState = std::vector<std::int64_t>;

// Of so many channels; the words are [channel][rank][2], [channel][rank] and [channel][rank][slot], the last
// empty if messages are flagged.
inline std::vector<ChannelState> channel_states(const CollectiveArguments& a, std::int64_t channels,
                                                std::span<const std::int64_t> numbers,
                                                std::span<const std::int64_t> freed,
                                                std::span<const std::int64_t> arrived) {
    std::vector<ChannelState> states(static_cast<std::size_t>(channels));
    for (std::int64_t c = 0; c < channels; ++c) {
        ChannelState& state = states[static_cast<std::size_t>(c)];
        for (std::int64_t pair = c * a.ranks; pair < (c + 1) * a.ranks; ++pair) {
            const std::int64_t sent = numbers[static_cast<std::size_t>(2 * pair)],
                               received = numbers[static_cast<std::size_t>(2 * pair + 1)];
            state.insert(state.end(), {sent & (a.slots - 1), received & (a.slots - 1),
                                       freed[static_cast<std::size_t>(pair)] - sent});
            for (std::int64_t s = 0; s < a.slots && !arrived.empty(); ++s)
                state.push_back(arrived[static_cast<std::size_t>(pair * a.slots + s)] - received);
        }
    }
    return states;
}

} // namespace jali
