// Messages between the devices of two ranks that are made once and started again and again.
//
// A communicator has one DeviceMessages for a device: the transports that its ranks found to be open, when
// they made it together. A message concerns two ranks alone. When an end is made it tells the other one, over
// the host, what it is, which entry of message_transport.hpp it takes and what the transport wants known;
// ends of the same ranks and tag meet in the order in which they were made, at the first start at the latest.
#pragma once

#include "device_transports/message_transport.hpp"

#include <array>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace jali {

class ConnectedRanks;
class DeviceMessage;
struct RecordedCalls;

class DeviceMessages {
  public:
    // Collective; says so to ranks that come to something else. Throws MessageError where an entry is named
    // for all messages that these devices have not.
    DeviceMessages(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator);
    DeviceMessages(const DeviceMessages&) = delete;

    const std::shared_ptr<Gpu>& gpu() const { return ranks_.gpu; }
    int rank() const { return ranks_.communicator->rank(); }
    int size() const { return ranks_.communicator->size(); }
    // Why messages with that rank cannot go by the entry of this name; empty if they can. Throws MessageError
    // for a name that is none.
    std::string why_not(const std::string& name, int peer) const { return why_not(entry_named(name), peer); }

    // Puts a start of each of these on a stream, or on jali's, in order with those of the arrays' owners.
    // Waits for ends that have not met, and for transports that want the host. Where first runs are proved,
    // the first one of these together is checked before. Throws MessageError, GpuError.
    void start(std::span<DeviceMessage* const> messages, std::optional<void*> stream);
    // What a start puts on streams, a line for each step. Waits for ends that have not met.
    std::string describe(std::span<DeviceMessage* const> messages);
    // What a start that is recorded in a graph needs done before, by both ranks of each message: its ends
    // meet, and transports connect them. Where first runs are proved it is checked; else no array changes.
    void warm_up(std::span<DeviceMessage* const> messages);

    // Proves that starts of these are in order, on all ranks that they connect: all of those call this, each
    // with the messages that it starts at once, and arrays that receive are filled. Throws ScheduleError on
    // all of them for what is not in order, MessageError where two do not start the same messages with each
    // other, and for messages of which nothing is noted.
    void check(std::span<DeviceMessage* const> messages);
    // What this rank gives to its driver in some starts of these, likewise.
    RecordedCalls record(std::span<DeviceMessage* const> messages);

  private:
    friend class DeviceMessage;
    struct TransportEntry {
        std::string name;
        const MessageTransport* transport;
        MessageConnection* connection; // null: there is none
        std::size_t first;             // entry of this transport
        std::string why_no_transport;  // the same on all ranks
    };
    // What one end announces to the other.
    struct Announcement {
        std::int64_t tag, bytes;
        GpuAddress address;
        std::int32_t sends, entry, named; // numbers of entries; -1: none
        char element[16], shape[80], why[800], trouble[400];
        struct {
            std::int32_t bytes;
            std::byte text[MessageEnd::most_announced];
        } by_entry[message_transport_count]; // for the first of each transport
    };
    // One that has been made, or is gone, and what its other end announces.
    struct Half {
        std::optional<Announcement> other;
    };
    struct Meeting {
        std::deque<Announcement> early; // whose other end has not been made here
        std::deque<std::shared_ptr<Half>> waiting;
    };
    struct UnderWay {
        std::unique_ptr<Announcement> announcement;
        std::unique_ptr<Request> request;
    };

    const TransportEntry& entry_named(const std::string& name) const;
    std::string why_not(const TransportEntry& entry, int peer) const;
    const TransportEntry& choose(const MessageArray& array, const TransportEntry* named,
                                 std::string& why) const;
    std::shared_ptr<Half> introduce(int peer, const Announcement& announcement);
    void deliver(int peer, const Announcement& announcement);
    const Announcement& announcement_for(const DeviceMessage& message);
    // Calls f(entry, ends) for the transports of these, which meet.
    template <class F>
    void for_each_connection(std::span<DeviceMessage* const> messages, F f);
    StreamProgram& program_of(std::span<DeviceMessage* const> messages);
    void put(std::span<DeviceMessage* const> messages, std::optional<void*> stream);

    // checked_messages.cpp
    void prove_once(std::span<DeviceMessage* const> messages, std::optional<void*> stream);
    ConnectedRanks connect(std::span<DeviceMessage* const> messages);
    void check(std::span<DeviceMessage* const> messages, const ConnectedRanks& ranks);
    RecordedCalls record(std::span<DeviceMessage* const> messages, const ConnectedRanks& ranks);

    MessageRanks ranks_;
    std::vector<std::shared_ptr<MessageConnection>> connections_;
    std::vector<TransportEntry> entries_;
    const TransportEntry* for_all_ = nullptr;
    int channels_ = 0;
    std::map<std::tuple<int, bool, std::int64_t>, Meeting>
        meetings_;                                 // other end: rank, whether it sends, tag
    std::map<int, std::deque<UnderWay>> expected_; // from a rank
    std::deque<UnderWay> announcing_;              // also of ends that are gone
    std::uint64_t starts_ = 0, made_ = 0;          // starts, messages
    // A start of these, in this order: by their numbers, which no later message has.
    struct Start {
        std::vector<std::uint64_t> messages;
        std::unique_ptr<StreamProgram> program;
    };
    static constexpr std::size_t most_programs = 64;
    std::list<Start> programs_; // those used last first
    std::vector<std::uint64_t> numbers_;
    std::set<std::set<std::uint64_t>> proved_; // messages that have been started together, by their numbers
    std::optional<GpuStream> beside_;
};

// One end, and the array that it sends or receives.
class DeviceMessage {
  public:
    // Tells the other end, also when it throws because this one cannot be made: GpuError, OutOfMemory.
    // `transport_name` names an entry, or is empty; on `owner_stream` whoever has the array goes on with it.
    // Throws MessageError for a name that is none.
    DeviceMessage(std::shared_ptr<DeviceMessages> all, const MessageArray& array, const std::string& element,
                  const std::string& shape, const std::string& transport_name, void* owner_stream);
    DeviceMessage(const DeviceMessage&) = delete;

    // Waits until the other end has been made too. Throws MessageError if the two do not fit.
    void meet();
    bool has_met() const { return end_ != nullptr; }

    const MessageArray& array() const { return array_; }
    // The sender's choice, when they have met.
    const std::string& transport_name() const { return entry_->name; }
    const MessageTransport& transport() const { return *entry_->transport; }
    const std::string& why() const { return why_; }
    GpuAddress sent_from() const { return sent_from_; } // the array's address at its sender
    const MessageEnd& end() const;                      // throws MessageError where they have not
    const std::shared_ptr<DeviceMessages>& all() const { return all_; }
    std::string describe() const;
    // Of a sender into the memory of a peer that has met: see MessageEnd. Throws MessageError for others.
    void copy_alone(void* stream) const;

  private:
    friend class DeviceMessages;
    using Ends = std::array<std::unique_ptr<MessageEnd>,
                            message_transport_count>; // by the first entry of the transport
    Ends make_ends();

    std::shared_ptr<DeviceMessages> all_;
    MessageArray array_;
    std::string element_, shape_, why_;
    const DeviceMessages::TransportEntry *named_ = nullptr, *entry_ = nullptr;
    void* owner_stream_;
    GpuAddress sent_from_ = 0;
    std::shared_ptr<DeviceMessages::Half> half_;
    Ends ends_; // until they have met
    std::unique_ptr<MessageEnd> end_;
    std::uint64_t start_ = 0; // the last one
    std::uint64_t number_;
};

} // namespace jali
