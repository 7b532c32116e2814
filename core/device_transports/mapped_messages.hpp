// Messages between two devices that reach each other's memory: the sender puts the bytes into the receiver's
// array.
//
// Starts are on a stream, without the host, and may be recorded in graphs. Both ends count them in device
// memory: a word of credit at the sender says for how many starts the receiver's array may be written, a word
// of data at the receiver how many have arrived. The bytes go by stores of a kernel, or by a copy engine
// between two small kernels, as the sender chooses. An array that each start may change (address 0 when its
// end is made) gets what lands beside it.
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

// Which words of a rank's signal pad the ends of its messages have. End n has word n of data, which its
// sender writes, or word n of credit, which its receiver writes, and two counts: of starts, and of blocks
// that are done.
class MappedMessages : public MessageConnection, public std::enable_shared_from_this<MappedMessages> {
  public:
    explicit MappedMessages(const MessageRanks& ranks); // collective

    std::string why_not(int peer) const override { return pad_.buffer().why_not(peer); }
    bool reaches_all() const override { return pad_.buffer().all_reached(); }
    std::unique_ptr<MessageEnd> make(const MessageArray& array) override;
    // First credit is granted for all arrays that receive, then everything is sent, then what follows on the
    // stream waits for what arrives. All of these have met, each stands here once.
    void begin(StreamProgram& program, Ends ends) override;

    static constexpr int most_messages = 65536; // at once, of a rank

  private:
    friend class MappedMessage;
    struct Launch;
    enum Row { data, credit };
    int rank() const { return pad_.communicator()->rank(); }
    // Numbers of ends: fresh ones first, then those that have been free for longest, so that nobody who
    // writes late meets a new message.
    int take_end(int peer);
    void clear_dropped(); // what was dropped is free again when the device has come by

    struct Dropped {
        int number;
        MappedMemory mapped; // may still be written by what is on a stream
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
    HandleExporter exporter_; // of what is written, at the receiver
    MappedMemory mapped_;     // the same, at the sender
    GpuAddress other_ = 0;    // the word at the other end
};

// Of all transports whose bytes are put into the memory of a peer: a start of several is then one launch.
std::shared_ptr<MessageConnection> make_mapped_messages(const MessageRanks& ranks);

} // namespace jali
