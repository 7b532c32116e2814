// Transports of messages between devices: entries, and the connection that an entry makes for all messages of
// a communicator on one device.
//
// A message has two ends, made once and started again and again (device_messages.hpp). The transport defines
// the announcements of two ends, and the work that a start of several puts on a stream; between entries that
// make the same connection the sender chooses, message by message. A new transport is a file with a transport
// and an entry, and the entry's name in the table of message_transport.cpp.
#pragma once

#include "device/stream_program.hpp"
#include "peers/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace jali {

struct MessageTransport;

// An array of this rank, and its destination or source.
struct MessageArray {
    int peer;
    std::int64_t tag;
    bool sends;
    GpuAddress address; // 0 while the end is made, if each start sets another (mapped_messages.hpp)
    std::size_t bytes;
};

// One end of a message, as its transport has it.
class MessageEnd {
  public:
    explicit MessageEnd(const MessageArray& array) : array(array) {}
    virtual ~MessageEnd() = default;
    MessageEnd(const MessageEnd&) = delete;

    // Sent to the other end: at most so many bytes.
    static constexpr std::size_t most_announced = 448;
    virtual std::vector<std::byte> announcement() const { return {}; }
    // Takes the announcement of the other end; the entry is the sender's choice. Throws GpuError.
    virtual void meet(std::span<const std::byte>, const MessageTransport&) {}

    // The array that receives cannot be written by others: the message lands beside it and is copied.
    virtual bool lands_beside() const { return false; }
    // Of a sender into the memory of a peer: the bytes alone, by the copy engine, whatever the receiver does.
    // For measurements. False: it is none.
    virtual bool copy_alone(void*) const { return false; }

    MessageArray array;
};

// Ends that do not fit, or are started as they must not be: the caller's mistake.
struct MessageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The parameters of a transport: `control` reports failures, `data` carries bytes, with a tag from `channel`
// for every receiving end.
struct MessageRanks {
    std::shared_ptr<Gpu> gpu;
    std::shared_ptr<Communicator> communicator, control, data;
    std::function<int()> channel;
};

class MessageConnection {
  public:
    virtual ~MessageConnection() = default;
    // Empty if messages can go to and come from this rank, else why not: the same on both.
    virtual std::string why_not(int) const { return ""; }
    virtual bool reaches_all() const { return true; } // every rank every other: the same on all ranks
    virtual std::unique_ptr<MessageEnd> make(const MessageArray& array) = 0;

    // Adds a start of these to a program, which runs as often as they start: on stream 0, with another one
    // beside it. In two parts: all transports begin before one ends, so that messages that go both ways
    // cannot wait for each other. All these ends exist whenever the program runs.
    using Ends = std::span<MessageEnd* const>;
    enum Stream { own, beside };
    virtual void begin(StreamProgram& program, Ends ends) = 0;
    virtual void end(StreamProgram&, Ends) {}
    // Performs the one-time work of the first start, which a recorded start cannot do, with other bytes.
    virtual void warm_up(Ends, void*) {}
    // Called after a failed start: work in progress must not access arrays any more.
    virtual void give_up() noexcept {}
};

// Which messages may take a transport.
struct MessageRules {
    std::size_t most_bytes = std::numeric_limits<std::size_t>::max(); // longer ones are for entries behind it
    bool costly = false;     // made only where those in front do not reach all ranks, or all name it
    bool to_oneself = false; // and to nobody else
    bool noted = true;       // in DriverRecord, so that they can be checked
};

struct MessageTransport : Transport {
    std::shared_ptr<MessageConnection> (*make)(const MessageRanks& ranks); // collective
    MessageRules rules = {};
};

extern const MessageTransport messages_to_oneself, messages_by_remote_write, messages_by_copy_engine,
    messages_by_library, messages_by_gpu_aware_mpi, messages_by_staging;

// In the order in which they are taken.
inline constexpr std::size_t message_transport_count = 6;
std::span<const MessageTransport* const, message_transport_count> message_transports();

} // namespace jali
