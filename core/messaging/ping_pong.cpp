#include "messaging/ping_pong.hpp"

#include <chrono>
#include <cstring>

namespace jali {

double ping_pong(Communicator& communicator, int peer, std::size_t bytes, int rounds) {
    const bool begins = communicator.rank() < peer;
    const auto mark = [](int rank, int round) { return static_cast<std::byte>(7 * rank + round + 1); };
    std::vector<std::byte> mine(bytes), theirs(bytes);
    const auto one_way = [&](bool sending, int round) {
        if (sending && bytes > 0) mine.front() = mine.back() = mark(communicator.rank(), round);
        std::unique_ptr<Request> request = sending ? communicator.send(mine.data(), bytes, peer, 0)
                                                   : communicator.receive(theirs.data(), bytes, peer, 0);
        communicator.wait({&request, 1}, "a ping-pong");
        if (!sending && bytes > 0 && (theirs.front() != mark(peer, round) || theirs.back() != theirs.front()))
            throw TransportError("a ping-pong of " + std::to_string(bytes) + " bytes with rank " +
                                 std::to_string(peer) + " brought wrong data");
    };
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < rounds; ++round) {
        one_way(begins, round);
        one_way(!begins, round);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / rounds / 2;
}

} // namespace jali
