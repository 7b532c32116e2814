// Messages between two devices that reach each other's memory: the sender puts the bytes into the receiver's
// array.
//
// Starts are on a stream, without the host, and may be recorded in graphs. Both ends count them in device
// memory: a credit word at the sender counts the starts for which the receiver's array may be written, a data
// word at the receiver the arrived ones. The bytes are stored by a kernel, or copied by a copy engine between
// two small kernels, as the sender chooses. An array that each start may change (address 0 when its end is
// made) is copied from a landing buffer.
#pragma once

#include "device_transports/message_transport.hpp"
#include "peers/signal_pad.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace jali {

class MappedMessage;

// Assigns words of a rank's signal pad to the ends of its messages. End n has data word n, which its sender
// writes, or credit word n, which its receiver writes, and two counts: of starts, and of finished blocks.
class MappedMessages : public MessageConnection, public std::enable_shared_from_this<MappedMessages> {
  public:
    explicit MappedMessages(const MessageRanks& ranks); // collective

    std::string why_not(int peer) const override { return pad_.buffer().why_not(peer); }
    bool reaches_all() const override { return pad_.buffer().all_reached(); }
    std::unique_ptr<MessageEnd> make(const MessageArray& array) override;
    // First credit is granted for all arrays that receive, then all messages are sent, then later work on the
    // stream waits for their arrival. All ends are matched, each is listed once.
    void begin(StreamProgram& program, Ends ends) override;

    static constexpr int most_messages = 65536; // at once, of a rank

  private:
    friend class MappedMessage;
    struct Launch;
    enum Row { data, credit };
    int rank() const { return pad_.communicator()->rank(); }
    // Numbers of ends: fresh ones first, then those that have been free for longest, so that a late write
    // does not reach a new message.
    int take_end(int peer);
    void clear_dropped(); // dropped ends are free again when the device has passed their event

    struct Dropped {
        int number;
        MappedMemory mapped; // work on a stream may still write it
        GpuMemory landing;
        std::unique_ptr<GpuEvent> passed;
    };

    std::vector<int> peers_; // by the number of the end
    SignalPad pad_;
    int fresh_ = 0;
    std::deque<int> free_;
    std::mutex mutex_; // a message may be dropped by any thread
    std::deque<Dropped> dropped_, cleared_;
};

class MappedMessage : public MessageEnd {
  public:
    MappedMessage(std::shared_ptr<MappedMessages> ends, const MessageArray& array); // throws GpuError
    ~MappedMessage() override;

    std::vector<std::byte> announcement() const override;
    // Throws GpuError where the receiver's array cannot be mapped.
    void meet(std::span<const std::byte> other, const MessageTransport& by) override;
    bool lands_beside() const override { return landing_.size() > 0; }
    bool copy_alone(void* stream) const override;

  private:
    friend class MappedMessages;
    GpuAddress own_word() const { // that the other end writes
        return ends_->pad_.own_word(array.sends ? MappedMessages::credit : MappedMessages::data, number_);
    }
    GpuAddress starts() const { return ends_->pad_.epoch(2 * number_); }
    GpuAddress blocks_done() const { return ends_->pad_.epoch(2 * number_ + 1); }

    std::shared_ptr<MappedMessages> ends_;
    int number_;
    bool stored_ = true; // by a kernel, not by a copy engine
    GpuMemory landing_;
    HandleExporter exporter_; // of the written memory, at the receiver
    MappedMemory mapped_;     // the same, at the sender
    GpuAddress other_ = 0;    // the word at the other end
};

// One connection for all transports that write to the memory of a peer: a start of several messages is then
// one launch.
std::shared_ptr<MessageConnection> make_mapped_messages(const MessageRanks& ranks);

} // namespace jali
