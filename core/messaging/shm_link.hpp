// The connection of one process to the others of its host: rings in both directions, and message matching.
//
// One link serves a communicator and all that are split from it; their messages are told apart by a context
// number. Short messages are copied through the rings. A long one is announced (rendezvous): its receiver
// requests it, and the sender pushes it through the ring in pieces that the receiver copies out meanwhile;
// or, where the kernel permits, it is copied once, from memory to memory, by both ends together: each claims
// the next stretch, reads or writes it, and a rank that has nothing else to do thus halves the time. All
// progress is made by pump(), on the calling thread; nothing here waits except sleep() and, for one stretch
// at most, withdraw().
#pragma once

#include "messaging/communicator.hpp"
#include "messaging/shm_fetch.hpp"
#include "messaging/shm_ring.hpp"
#include "messaging/shm_segment.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace jali::shm {

class Link;

// A message between processes of one host, or a message of another transport.
struct Message final : Request {
    Message(Link& link, void* data, std::size_t bytes, int local_rank, int peer, std::uint32_t context,
            int tag, bool sending)
        : link(link), data(static_cast<std::byte*>(data)), bytes(bytes), local_rank(local_rank), peer(peer),
          context(context), tag(tag), sending(sending) {}
    Message(Link& link, std::unique_ptr<Request> outer, std::size_t bytes, int peer, int tag, bool sending)
        : link(link), bytes(bytes), peer(peer), tag(tag), sending(sending), stage(Stage::done),
          outer(std::move(outer)) {}
    ~Message() override;

    // The state of the message in the link.
    enum class Stage : std::uint8_t { done, posted, queued, announced, copying, in_pieces };

    Link& link;
    std::byte* data = nullptr; // a send only reads it
    std::size_t bytes;
    int local_rank = -1; // the link's number of the other process
    int peer;            // its rank, for errors
    std::uint32_t context = 0;
    int tag;
    bool sending;
    bool may_be_shorter = false; // a receive
    Stage stage = Stage::posted;
    int error = 0;                   // of the kernel
    std::size_t arrived = 0;         // size of the arrived message
    std::size_t moved = 0;           // bytes of it copied so far; of a shared one, stretches by this end
    std::uint64_t id = 0;            // of the offer (send) or of this receive, while others refer to it
    std::uint64_t other = 0;         // the address (copying) or the receive (sending pieces)
    Share* share = nullptr;          // while copying together
    std::uint64_t rendezvous_id = 0; // of the offer that a receive accepts
    std::unique_ptr<Request> outer;  // the other transport's, until it is complete
};

class Link {
  public:
    // Collective over `base`, which is used for the setup alone.
    explicit Link(Communicator& base);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    // The link's number of rank `rank` of the communicator that the link was made for, or -1 without shared
    // memory. This process has a number too: messages to oneself go through the link.
    int local_rank(int rank) const { return local_ranks_[rank]; }

    std::unique_ptr<Message> send(const void* data, std::size_t bytes, int local_rank, int peer,
                                  std::uint32_t context, int tag);
    std::unique_ptr<Message> receive(void* data, std::size_t bytes, int local_rank, int peer,
                                     std::uint32_t context, int tag, bool may_be_shorter = false);

    // Receives all arrived messages and pushes pending ones as far as there is room.
    void pump();
    std::uint64_t events() const { return events_; } // messages and pieces received or sent

    // Sleeps until a peer rings or the time is over; returns at once if there is work.
    void sleep(std::uint64_t seen, std::chrono::microseconds at_most);
    bool crowded() const { return crowded_; } // more ranks than cores

    bool lives(int local_rank) const; // whether the process still runs
    std::uint32_t next_context = 0;   // of communicators; the same on all ranks of the one that was made last

  private:
    friend struct Message;

    // A message that arrived before its receive.
    struct UnexpectedMessage {
        std::uint32_t context;
        int tag;
        std::uint64_t bytes;
        std::unique_ptr<std::byte[]> aside; // its data, if it is short
        Details rendezvous;
        Message* own = nullptr; // our long message to ourselves
    };

    struct Outgoing {
        Envelope envelope;
        Message* message; // whose data are sent with it, or nullptr
    };

    struct Bell {
        alignas(line) std::atomic<std::uint32_t> rings;
        std::atomic<std::uint32_t> sleeping;
        std::atomic<std::uint32_t> closed; // the link's end was orderly
    };

    struct PeerState {
        Segment segment; // theirs; empty for ourselves
        Bell* bell = nullptr;
        RingWriter out;
        RingReader in;
        bool by_kernel = false; // long messages are copied
        pid_t process = 0;
        std::array<const Message*, shares> sharing{}; // receives by their shares
        std::vector<Message*> posted;
        std::list<UnexpectedMessage> unexpected;
        std::deque<Outgoing> backlog;
        std::vector<Message*> streams; // that we send in pieces
    };

    void send_to_self(Message& message);
    bool push(PeerState& peer, const Outgoing& outgoing);
    void post(PeerState& peer, const Outgoing& outgoing);
    void answer(int local_rank, Kind kind, std::uint64_t id, std::uint64_t other);
    void ring(PeerState& peer);
    void take(PeerState& peer, const Slot& slot);
    void take_piece(const PeerState& peer, const Slot& slot, const Details& details);
    void accept(Message& receive, const std::byte* data, std::uint64_t bytes);
    void accept_rendezvous(Message& receive, const Details& rendezvous, std::uint64_t bytes);
    void ask_for(Message& receive);
    void finish(Message& message);
    void copy_some();
    bool copy_together(Message& message);
    void fetch_alone(Message& receive);
    bool is_copying() const { return !fetching_.empty() || !helping_.empty(); }
    void end_share(Message& message) noexcept;
    void stop_sharing(Message& message) noexcept;
    void take_share(PeerState& peer, Message& receive);
    void push_backlog(PeerState& peer);
    void push_pieces(PeerState& peer);
    void withdraw(Message& message) noexcept;
    Message* take_posted(PeerState& peer, std::uint32_t context, int tag);

    std::size_t arena_bytes_ = 0;
    Segment mine_;
    std::vector<PeerState> peers_;
    std::vector<int> local_ranks_;
    std::vector<int> remote_; // peers other than ourselves
    int own_ = 0;
    Bell* bell_ = nullptr;
    bool crowded_ = false;

    std::uint64_t events_ = 0, last_id_ = 0;
    std::size_t backlog_ = 0, streams_ = 0;             // of all peers
    std::deque<Message*> fetching_, helping_;           // receives and sends that the kernel copies
    std::unordered_map<std::uint64_t, Message*> by_id_; // offers we made and receives in pieces
    pid_t process_;
};

} // namespace jali::shm
