// Messages between the devices of two ranks that are made once and started again and again.
//
// A communicator has one DeviceMessages for a device: the transports that its ranks found possible, when they
// made it together. A message involves two ranks only. A new end announces itself to the other end, over the
// host, with its entry of message_transport.hpp and the data of its transport; ends of the same ranks and tag
// are matched in the order in which they were made, at the first start at the latest.
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
    // Collective; ranks in another call get an error. Throws MessageError if the entry named for all messages
    // does not exist for these devices.
    DeviceMessages(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator);
    DeviceMessages(const DeviceMessages&) = delete;

    const std::shared_ptr<Gpu>& gpu() const { return ranks_.gpu; }
    int rank() const { return ranks_.communicator->rank(); }
    int size() const { return ranks_.communicator->size(); }
    // Why messages with that rank cannot use the entry of this name; empty if they can. Throws MessageError
    // for an unknown name.
    std::string why_not(const std::string& name, int peer) const { return why_not(entry_named(name), peer); }

    // Puts a start of each of these on a stream, or on jali's, in order with those of the arrays' owners.
    // Waits for unmatched ends, and for transports that need the host. Where first runs are proved, the first
    // start of these messages together is checked before. Throws MessageError, GpuError.
    void start(std::span<DeviceMessage* const> messages, std::optional<void*> stream);
    // The steps that a start puts on streams, a line for each. Waits for unmatched ends.
    std::string describe(std::span<DeviceMessage* const> messages);
    // Prepares a start that is to be recorded in a graph; called by both ranks of each message: ends are
    // matched, and transports connect them. Where first runs are proved it is checked; else no array changes.
    void warm_up(std::span<DeviceMessage* const> messages);

    // Proves that starts of these messages are in order, on all ranks that they connect: all these ranks call
    // it, each with the messages that it starts at once, and receiving arrays are filled. Throws
    // ScheduleError on all of them for an error of order, MessageError if two do not start the same messages
    // with each other, and for messages that are not recorded.
    void check(std::span<DeviceMessage* const> messages);
    // The driver calls of this rank in some starts of these, likewise.
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
    // The announcement of one end to the other.
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
    // An end, existing or destroyed, and the announcement of its other end.
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
    // Matches these ends and calls f(entry, ends) for each of their transports.
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
    std::deque<UnderWay> announcing_;              // also of destroyed ends
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
    // Notifies the other end, also when it throws because this one cannot be made: GpuError, OutOfMemory.
    // `transport_name` names an entry, or is empty; the owner of the array uses it on `owner_stream`. Throws
    // MessageError for an unknown name.
    DeviceMessage(std::shared_ptr<DeviceMessages> all, const MessageArray& array, const std::string& element,
                  const std::string& shape, const std::string& transport_name, void* owner_stream);
    DeviceMessage(const DeviceMessage&) = delete;

    // Waits until the other end has been made too. Throws MessageError if the two do not fit.
    void meet();
    bool has_met() const { return end_ != nullptr; }

    const MessageArray& array() const { return array_; }
    // The sender's choice, once matched.
    const std::string& transport_name() const { return entry_->name; }
    const MessageTransport& transport() const { return *entry_->transport; }
    const std::string& why() const { return why_; }
    GpuAddress sent_from() const { return sent_from_; } // the array's address at its sender
    const MessageEnd& end() const;                      // throws MessageError where they have not
    const std::shared_ptr<DeviceMessages>& all() const { return all_; }
    std::string describe() const;
    // For a matched sender into the memory of a peer: see MessageEnd. Throws MessageError for others.
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
