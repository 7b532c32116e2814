// Messages between two devices that reach each other's memory: the sender puts the bytes into the receiver's
// array.
//
// A message is made once and started again and again, on a stream, without the host; starts may be recorded
// in graphs. Both ends count them in device memory: a word of credit at the sender says for how many starts
// the receiver's array may be written, a word of data at the receiver how many have arrived. The bytes go by
// stores of a kernel, or by a copy engine between two small kernels. What two ranks tell each other before
// that is up to the caller, who passes it on.
#pragma once

#include "transport/signal_pad.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace jali {

// The ends of messages of one rank: which words of its signal pad they have. End n has word n of data, which
// its sender writes, or word n of credit, which its receiver writes, and two counts: of starts, and of blocks
// that are done.
class MessageEnds {
  public:
    // Collective over `communicator`, which hears of failures later.
    MessageEnds(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator);
    MessageEnds(const MessageEnds&) = delete;

    const std::shared_ptr<Gpu>& gpu() const { return pad_.gpu(); }
    int rank() const { return pad_.communicator()->rank(); }
    int size() const { return pad_.communicator()->size(); }
    // Empty if the memory of `rank` can be reached from here and ours from there, else why not.
    const std::string& why_not(int rank) const { return pad_.buffer().why_not(rank); }
    bool all_reached() const { return pad_.buffer().all_reached(); } // by all: the same on all ranks

    static constexpr int most_messages = 65536; // at once, of a rank

  private:
    friend class PeerMessage;
    enum Row { data, credit };
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
    GpuStream beside_; // says that copies have arrived while the next one runs
    GpuEvent fork_, join_;
    int fresh_ = 0;
    std::deque<int> free_;
    std::mutex mutex_; // a message may be dropped by any thread
    std::deque<Dropped> dropped_;
};

class PeerMessage {
  public:
    enum class Way { store, copy };

    // One end of a message: the sender's or the receiver's array. `told` goes to the other end, and what it
    // tells to meet(). Throws GpuError.
    PeerMessage(std::shared_ptr<MessageEnds> ends, int peer, bool sends, GpuAddress address,
                std::size_t bytes);
    ~PeerMessage();
    PeerMessage(const PeerMessage&) = delete;

    std::vector<std::byte> told() const;
    static constexpr std::size_t told_bytes = sizeof(MemoryHandle) + sizeof(std::int64_t);
    // `way` is the sender's choice. Throws GpuError where the receiver's array cannot be mapped.
    void meet(std::span<const std::byte> other, Way way);
    bool has_met() const { return other_ != 0; }
    // The receiver's array cannot be mapped by others: the message lands beside it and is copied.
    bool lands_beside() const { return landing_.size() > 0; }

    // Puts a start of each of these on a stream: first all arrays that receive are offered, then everything
    // is sent, then what follows on the stream waits for what arrives. So messages that go both ways cannot
    // wait for each other. All of one rank's ends, all met, each once.
    static void start(std::span<PeerMessage* const> messages, void* stream);

    // Of a sender: the bytes alone, by the copy engine, whatever the receiver does. For measurements.
    void copy_alone(void* stream) const;

    const MessageEnds& ends() const { return *ends_; }

  private:
    struct Launch;
    GpuAddress own_word() const { // that the other end writes
        return ends_->pad_.own_word(sends_ ? MessageEnds::credit : MessageEnds::data, number_);
    }
    GpuAddress starts() const { return ends_->pad_.epoch(2 * number_); }
    GpuAddress blocks_done() const { return ends_->pad_.epoch(2 * number_ + 1); }

    std::shared_ptr<MessageEnds> ends_;
    int peer_, number_;
    bool sends_;
    GpuAddress address_;
    std::size_t bytes_;
    Way way_ = Way::store;
    GpuMemory landing_;
    HandleExporter exporter_; // of what is written, at the receiver
    MappedMemory mapped_;     // the same, at the sender
    GpuAddress other_ = 0;    // the word at the other end
};

} // namespace jali
