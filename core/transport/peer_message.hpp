// Messages between two devices that reach each other's memory: the sender puts the bytes into the receiver's
// array.
//
// A message is made once and started again and again, on a stream, without the host; starts may be recorded
// in graphs. Both ends count them in device memory: a word at the sender says for how many starts the
// receiver's array may be written, a word at the receiver how many have arrived. The bytes go by stores of a
// kernel, or by a copy engine between two small kernels. What two ranks tell each other before that is up to
// the caller, who passes it on.
#pragma once

#include "transport/peer_memory.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace jali {

// What the messages of one rank share: words that other ranks write, how these are reached, and giving up.
class PeerPost {
  public:
    // Collective over `communicator`, which hears of failures later.
    PeerPost(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator);
    PeerPost(const PeerPost&) = delete;

    const std::shared_ptr<Gpu>& gpu() const { return gpu_; }
    int rank() const { return communicator_->rank(); }
    int size() const { return communicator_->size(); }
    // Empty if the memory of `rank` can be reached from here and ours from there, else why not.
    const std::string& why_not(int rank) const { return why_not_[rank]; }
    bool all_reached() const { return all_reached_; } // by all: the same on all ranks

    static constexpr int most_messages = 65536; // at once, of a rank

  private:
    friend class PeerMessage;
    // Numbers of places in the block of words: fresh ones first, then those that have been free for longest,
    // so that nobody who writes late meets a new message.
    int take_place();
    void clear_dropped(); // what was dropped is free again when the device has come by

    GpuAddress place(GpuAddress base, int number) const {
        return base + static_cast<GpuAddress>(number) * place_bytes;
    }
    static constexpr std::size_t place_bytes = 32; // what the other end says, count, blocks that are done

    struct Dropped {
        int number;
        MappedMemory mapped; // may still be written by what is on a stream
        GpuMemory landing;
        std::unique_ptr<GpuEvent> passed;
    };

    std::shared_ptr<Gpu> gpu_;
    std::shared_ptr<Communicator> communicator_;
    std::vector<std::string> why_not_;
    bool all_reached_ = false;
    std::string no_handle_type_; // between processes
    GpuMemory words_;
    std::vector<MemoryHandle> handles_; // of everybody's words
    std::vector<MappedMemory> mapped_;
    PeerWatch watch_;
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
    PeerMessage(std::shared_ptr<PeerPost> post, int peer, bool sends, GpuAddress address, std::size_t bytes);
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
    // wait for each other. All of one post, all met, each once.
    static void start(std::span<PeerMessage* const> messages, void* stream);

    // Of a sender: the bytes alone, by the copy engine, whatever the receiver does. For measurements.
    void copy_alone(void* stream) const;

    const PeerPost& post() const { return *post_; }

  private:
    struct Launch;
    GpuAddress own(int word) const {
        return post_->place(post_->words_.address(), number_) +
               static_cast<GpuAddress>(word) * sizeof(std::int64_t);
    }

    std::shared_ptr<PeerPost> post_;
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
