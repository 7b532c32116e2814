// A communicator over any means that carries bytes between two ranks.
//
// A CustomTransport is the minimum of a transport: send, receive, test. The other parts of a Communicator
// (splitting, collectives, notices of failures and departures, timeouts of waits) are built from such
// messages here, so that a new transport is one small file. Threads, MPI and shared memory implement more
// themselves, since their own ways are faster.
#pragma once

#include "messaging/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace jali {

class CustomTransport {
  public:
    virtual ~CustomTransport() = default;

    virtual std::string name() const = 0; // in errors, and as Communicator::transport()
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual bool of_processes() const { return false; } // as Communicator::can_share_memory()

    // Messages between two ranks with the same tag arrive in the order sent, others in any. Any number may be
    // pending; a message may arrive before its receive is started, and is kept. Neither call waits.
    virtual std::unique_ptr<Request> send(const void* data, std::size_t bytes, int to, std::uint64_t tag) = 0;
    // At most `most` bytes; the message carries its own length.
    virtual std::unique_ptr<Request> receive(void* data, std::size_t most, int from, std::uint64_t tag) = 0;
    // Makes progress; returns the size of a complete message, of which a receive has stored `most` bytes at
    // most. Throws RankFailure where the other rank cannot be reached any more.
    virtual std::optional<std::size_t> test(Request& request) = 0;
};

// Not collective. The transport and its ranks are this communicator's own from now on. `threads` are used by
// one thread at a time, as with every communicator.
std::shared_ptr<Communicator> make_custom_communicator(std::shared_ptr<CustomTransport> custom_transport);

} // namespace jali
