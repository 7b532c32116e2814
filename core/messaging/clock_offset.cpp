#include "messaging/clock_offset.hpp"

#include <chrono>
#include <cstdlib>
#include <cstring>

namespace jali {

namespace {

constexpr int rounds = 32;

std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void pass(Communicator& communicator, bool sending, int peer, std::int64_t& value) {
    std::unique_ptr<Request> request = sending ? communicator.send(&value, sizeof value, peer, 0)
                                               : communicator.receive(&value, sizeof value, peer, 0);
    communicator.wait({&request, 1}, "comparing clocks");
}

// Rank 0 sends a request, the other rank replies with its time; the fastest round trip counts.
ClockOffset compare(Communicator& communicator, int other) {
    ClockOffset best;
    std::int64_t quickest = -1;
    for (int round = 0; round < rounds; ++round) {
        std::int64_t asked = now(), theirs = 0;
        pass(communicator, true, other, asked);
        pass(communicator, false, other, theirs);
        const std::int64_t answered = now();
        if (quickest >= 0 && answered - asked >= quickest) continue;
        quickest = answered - asked;
        best = {theirs - (asked + quickest / 2), quickest / 2};
    }
    if (std::llabs(best.nanoseconds) <= best.uncertainty) best.nanoseconds = 0;
    return best;
}

void answer(Communicator& communicator) {
    for (int round = 0; round < rounds; ++round) {
        std::int64_t time = 0;
        pass(communicator, false, 0, time);
        time = now();
        pass(communicator, true, 0, time);
    }
}

} // namespace

std::vector<ClockOffset> clock_offsets(Communicator& ranks) {
    ranks.barrier("comparing clocks");
    const auto apart = ranks.duplicate(); // no message of the program is taken for one of these
    Communicator& communicator = *apart;
    std::vector<ClockOffset> offsets(communicator.size());
    for (int other = 1; other < communicator.size(); ++other) {
        if (communicator.rank() == 0) offsets[other] = compare(communicator, other);
        if (communicator.rank() == other) answer(communicator);
    }
    const auto reported = communicator.broadcast(std::as_bytes(std::span(offsets)), 0, "comparing clocks");
    check_bytes(reported, offsets.size() * sizeof offsets[0], 0, "comparing clocks");
    std::memcpy(offsets.data(), reported.data(), reported.size());
    return offsets;
}

} // namespace jali
