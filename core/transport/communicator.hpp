// A group of ranks: point-to-point messages and the few collectives that jali's control plane needs.
//
// The one interface between everything that moves bytes (halo exchange, sums, files) and whatever carries them
// (`thread`: virtual ranks of one process, `mpi`: any MPI library, `self`: one rank). A transport is one file.
// Every blocking call either returns or throws: a failure on any rank reaches the others as RankFailure with the
// first cause. It knows nothing of lattices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace jali {

// Another rank failed (or this one was told to stop); carries the first cause.
struct RankFailure : std::runtime_error {
    RankFailure(int rank, const std::string& cause)
        : std::runtime_error(cause), rank(rank) {}
    int rank; // where the first cause arose; -1 if unknown
};

// A message under way. Completed by Communicator::test or wait.
class Request {
public:
    virtual ~Request() = default;
};

class Communicator {
public:
    virtual ~Communicator() = default;

    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual const char* transport() const = 0; // "self", "thread" or "mpi"

    // Point to point. Messages between two ranks with the same tag arrive in the order sent; tags are 0..32767.
    // Buffers must stay alive and untouched (send) or unread (receive) until the request completes. A received
    // message must have exactly `bytes` bytes.
    virtual std::unique_ptr<Request> send(const void* data, std::size_t bytes, int to, int tag) = 0;
    virtual std::unique_ptr<Request> receive(void* data, std::size_t bytes, int from, int tag) = 0;
    virtual bool test(Request& request) = 0; // makes progress; throws RankFailure if a rank failed

    // Waits for all; throws RankFailure, or names `what` when nothing moved for the watchdog's time.
    virtual void wait(std::span<std::unique_ptr<Request>> requests, const std::string& what) = 0;

    // Collectives over all ranks, called in the same order everywhere.
    virtual void barrier() = 0;
    virtual void all_reduce_sum(std::span<std::int64_t> values) = 0; // exact, in place
    virtual std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) = 0;
    virtual std::vector<std::byte> broadcast(std::span<const std::byte> data, int root) = 0;

    // Tells every other rank that this one failed; they throw RankFailure at their next call or while waiting.
    virtual void fail(const std::string& cause) noexcept = 0;
    virtual void check() = 0; // throws RankFailure if some rank has failed
};

std::shared_ptr<Communicator> make_self_communicator();

} // namespace jali
