#include "messaging/shm_link.hpp"
#include "device/copy_bytes.hpp"
#include "messaging/wait_loop.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace jali::shm {

namespace {

constexpr std::size_t eager_bytes = 8192; // above, a message is offered
constexpr int slots_per_check = 64, pieces_per_check = 4;

// Bytes per kernel copy: long, since each call costs a microsecond, but short enough to share the work.
std::size_t stretch_of(const Message& message) {
    constexpr std::size_t least = 64 * 1024, most = 512 * 1024;
    return std::clamp(message.bytes / 4 / least * least, least, most);
}

std::uint64_t stretches_of(const Message& message) {
    return (message.bytes + stretch_of(message) - 1) / stretch_of(message);
}

} // namespace

Message::~Message() {
    if (stage != Stage::done) link.withdraw(*this);
}

Link::~Link() {
    // A forked child's copy of the link is not the link.
    if (bell_ != nullptr && process_ == getpid()) bell_->closed.store(1, std::memory_order_release);
}

std::unique_ptr<Message> Link::send(const void* data, std::size_t bytes, int local_rank, int peer,
                                    std::uint32_t context, int tag) {
    auto message = std::make_unique<Message>(*this, const_cast<void*>(data), bytes, local_rank, peer, context,
                                             tag, true);
    if (local_rank == own_) {
        send_to_self(*message);
        return message;
    }
    Outgoing outgoing{{}, message.get()};
    Envelope& envelope = outgoing.envelope;
    envelope.tag = tag;
    envelope.context = context;
    envelope.bytes = bytes;
    if (bytes <= inline_bytes) {
        envelope.kind = Kind::in_slot;
        if (bytes > 0) std::memcpy(envelope.data, data, bytes);
    } else if (bytes <= eager_bytes) {
        envelope.kind = Kind::in_arena;
    } else {
        envelope.kind = Kind::rendezvous;
        message->id = envelope.details.id = ++last_id_;
        envelope.details.other = reinterpret_cast<std::uint64_t>(data);
    }
    post(peers_[local_rank], outgoing);
    return message;
}

std::unique_ptr<Message> Link::receive(void* data, std::size_t bytes, int local_rank, int peer,
                                       std::uint32_t context, int tag, bool may_be_shorter) {
    auto message = std::make_unique<Message>(*this, data, bytes, local_rank, peer, context, tag, false);
    message->may_be_shorter = may_be_shorter;
    PeerState& from = peers_[local_rank];
    const auto found =
        std::find_if(from.unexpected.begin(), from.unexpected.end(), [&](const UnexpectedMessage& waiting) {
            return waiting.tag == tag && waiting.context == context;
        });
    if (found == from.unexpected.end()) {
        from.posted.push_back(message.get());
        return message;
    }
    const UnexpectedMessage waiting = std::move(*found);
    from.unexpected.erase(found);
    if (waiting.own != nullptr) {
        accept(*message, waiting.own->data, waiting.bytes);
        finish(*waiting.own);
    } else if (waiting.aside || waiting.bytes == 0) {
        accept(*message, waiting.aside.get(), waiting.bytes);
    } else {
        accept_rendezvous(*message, waiting.rendezvous, waiting.bytes);
    }
    return message;
}

void Link::send_to_self(Message& message) {
    PeerState& self = peers_[own_];
    if (Message* receive = take_posted(self, message.context, message.tag)) {
        accept(*receive, message.data, message.bytes);
        finish(message);
        return;
    }
    UnexpectedMessage waiting{message.context, message.tag, message.bytes, nullptr, {}, nullptr};
    if (message.bytes <= eager_bytes) {
        waiting.aside = std::make_unique_for_overwrite<std::byte[]>(message.bytes);
        if (message.bytes > 0) std::memcpy(waiting.aside.get(), message.data, message.bytes);
        finish(message);
    } else {
        waiting.own = &message;
        message.stage = Message::Stage::announced;
    }
    self.unexpected.push_back(std::move(waiting));
}

void Link::pump() {
    for (const int number : remote_) {
        PeerState& peer = peers_[number];
        for (int k = 0; k < slots_per_check; ++k) {
            const Slot* slot = peer.in.front();
            if (slot == nullptr) break;
            take(peer, *slot);
            peer.in.pop();
        }
    }
    if (backlog_ > 0)
        for (const int number : remote_) push_backlog(peers_[number]);
    if (streams_ > 0)
        for (const int number : remote_) push_pieces(peers_[number]);
    if (is_copying()) copy_some();
}

void Link::sleep(std::uint64_t seen, std::chrono::microseconds at_most) {
    if (backlog_ > 0 || streams_ > 0 || is_copying() || remote_.empty()) {
        sched_yield(); // no peer rings for room in a ring, nor when the last stretch is copied
        return;
    }
    bell_->sleeping.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const std::uint32_t rings = bell_->rings.load(std::memory_order_relaxed);
    pump(); // messages that arrived before the peer saw the flag
    if (events_ == seen) {
        const timespec time{at_most.count() / 1'000'000, at_most.count() % 1'000'000 * 1000};
        syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&bell_->rings), FUTEX_WAIT, rings, &time, nullptr,
                0);
    }
    bell_->sleeping.store(0, std::memory_order_relaxed);
}

bool Link::lives(int local_rank) const {
    if (local_rank == own_ || peers_[local_rank].bell->closed.load(std::memory_order_acquire) != 0)
        return true;
    return peers_[local_rank].segment.owner_lives();
}

// Sends the envelope now or appends it to the peer's backlog.
void Link::post(PeerState& peer, const Outgoing& outgoing) {
    if (peer.backlog.empty() && push(peer, outgoing)) return;
    if (outgoing.message != nullptr) outgoing.message->stage = Message::Stage::queued;
    peer.backlog.push_back(outgoing);
    ++backlog_;
}

bool Link::push(PeerState& peer, const Outgoing& outgoing) {
    if (!peer.out.has_slot()) return false;
    Message* message = outgoing.message;
    if (outgoing.envelope.kind == Kind::in_arena) {
        Envelope envelope = outgoing.envelope;
        std::byte* room = peer.out.reserve(message->bytes, envelope.details);
        if (room == nullptr) return false;
        copy_bytes(room, message->data, message->bytes);
        peer.out.push(envelope);
    } else {
        peer.out.push(outgoing.envelope);
    }
    ring(peer);
    if (outgoing.envelope.kind == Kind::rendezvous) {
        message->stage = Message::Stage::announced;
        by_id_.emplace(message->id, message);
    } else if (message != nullptr) {
        finish(*message);
    }
    return true;
}

void Link::answer(int local_rank, Kind kind, std::uint64_t id, std::uint64_t other) {
    Outgoing outgoing{{}, nullptr};
    outgoing.envelope.kind = kind;
    outgoing.envelope.details.id = id;
    outgoing.envelope.details.other = other;
    post(peers_[local_rank], outgoing);
}

// Wakes the peer if it sleeps. A peer raises its flag before it checks the rings for the last time.
void Link::ring(PeerState& peer) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (peer.bell->sleeping.load(std::memory_order_relaxed) == 0) return;
    peer.bell->rings.fetch_add(1, std::memory_order_relaxed);
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&peer.bell->rings), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
}

void Link::take(PeerState& peer, const Slot& slot) {
    ++events_;
    Details details;
    std::memcpy(&details, slot.body, sizeof details);
    switch (slot.kind) {
    case Kind::in_slot:
    case Kind::in_arena: {
        const std::byte* data = slot.kind == Kind::in_slot ? slot.body : peer.in.at(details.position);
        if (Message* receive = take_posted(peer, slot.context, slot.tag)) {
            accept(*receive, data, slot.bytes);
            return;
        }
        UnexpectedMessage waiting{slot.context, slot.tag, slot.bytes, nullptr, {}, nullptr};
        waiting.aside = std::make_unique_for_overwrite<std::byte[]>(slot.bytes);
        if (slot.bytes > 0) std::memcpy(waiting.aside.get(), data, slot.bytes);
        peer.unexpected.push_back(std::move(waiting));
        return;
    }
    case Kind::rendezvous:
        if (Message* receive = take_posted(peer, slot.context, slot.tag))
            accept_rendezvous(*receive, details, slot.bytes);
        else
            peer.unexpected.push_back({slot.context, slot.tag, slot.bytes, nullptr, details, nullptr});
        return;
    case Kind::piece:
        return take_piece(peer, slot, details);
    case Kind::ask:
    case Kind::share:
    case Kind::over: {
        const auto found = by_id_.find(details.id);
        if (found == by_id_.end()) return; // withdrawn meanwhile
        Message& message = *found->second;
        by_id_.erase(found);
        if (slot.kind == Kind::over) return finish(message);
        message.other = details.other;
        if (slot.kind == Kind::share) {
            message.stage = Message::Stage::copying;
            message.share = &peer.out.share(details.position);
            helping_.push_back(&message);
            return;
        }
        message.stage = Message::Stage::in_pieces;
        peer.streams.push_back(&message);
        ++streams_;
        return;
    }
    }
}

void Link::take_piece(const PeerState& peer, const Slot& slot, const Details& details) {
    const auto found = by_id_.find(details.id);
    if (found == by_id_.end()) return; // withdrawn meanwhile
    Message& receive = *found->second;
    copy_bytes(receive.data + details.offset, peer.in.at(details.position), slot.bytes);
    receive.moved += slot.bytes;
    if (receive.moved < receive.bytes) return;
    by_id_.erase(found);
    finish(receive);
}

void Link::accept(Message& receive, const std::byte* data, std::uint64_t bytes) {
    receive.arrived = bytes;
    if (bytes == receive.bytes || (receive.may_be_shorter && bytes < receive.bytes))
        copy_bytes(receive.data, data, bytes);
    finish(receive);
}

void Link::accept_rendezvous(Message& receive, const Details& rendezvous, std::uint64_t bytes) {
    receive.arrived = bytes;
    receive.rendezvous_id = rendezvous.id;
    receive.other = rendezvous.other;
    if (bytes != receive.bytes) {
        answer(receive.local_rank, Kind::over, rendezvous.id, 0);
        finish(receive);
    } else if (peers_[receive.local_rank].by_kernel) {
        receive.stage = Message::Stage::copying;
        fetching_.push_back(&receive);
        take_share(peers_[receive.local_rank], receive);
    } else {
        ask_for(receive);
    }
}

void Link::ask_for(Message& receive) {
    receive.stage = Message::Stage::in_pieces;
    receive.moved = 0;
    receive.id = ++last_id_;
    by_id_.emplace(receive.id, &receive);
    answer(receive.local_rank, Kind::ask, receive.rendezvous_id, receive.id);
}

void Link::finish(Message& message) {
    message.stage = Message::Stage::done;
    ++events_;
}

// Lets the sender help with a message of several stretches, if one of the shares is free.
void Link::take_share(PeerState& peer, Message& receive) {
    if (stretches_of(receive) == 1) return;
    for (std::size_t k = 0; k < shares; ++k) {
        Share& share = peer.in.share(k);
        if (peer.sharing[k] != nullptr || share.taken.load(std::memory_order_acquire) != 0) continue;
        peer.sharing[k] = &receive;
        share.taken.store(1, std::memory_order_relaxed);
        share.claimed.store(0, std::memory_order_relaxed);
        share.copied.store(0, std::memory_order_relaxed);
        share.error.store(0, std::memory_order_relaxed);
        receive.share = &share;
        Outgoing outgoing{{}, nullptr};
        outgoing.envelope.kind = Kind::share;
        outgoing.envelope.details.id = receive.rendezvous_id;
        outgoing.envelope.details.other = reinterpret_cast<std::uint64_t>(receive.data);
        outgoing.envelope.details.position = k;
        post(peer, outgoing); // its release makes the zeros visible
        return;
    }
}

// The next stretch that neither end has claimed, the receiver's from the front, the sender's from the back.
// Without one, checks whether the other end has copied its last. Returns whether there was work.
bool Link::copy_together(Message& message) {
    Share& share = *message.share;
    PeerState& peer = peers_[message.local_rank];
    const std::uint64_t stretches = stretches_of(message);
    const bool may = !message.sending || peer.by_kernel;
    const bool mine = may && share.claimed.fetch_add(1, std::memory_order_relaxed) < stretches;
    if (mine) {
        const std::uint64_t stretch = message.sending ? stretches - 1 - message.moved : message.moved;
        ++message.moved;
        const std::size_t start = stretch * stretch_of(message);
        const std::size_t bytes = std::min(stretch_of(message), message.bytes - start);
        const int error = message.sending
                              ? put(peer.process, message.other + start, message.data + start, bytes)
                              : fetch(peer.process, message.other + start, message.data + start, bytes);
        if (error != 0) share.error.store(error, std::memory_order_relaxed);
        share.copied.fetch_add(1, std::memory_order_acq_rel);
        ++events_;
    }
    if (share.copied.load(std::memory_order_acquire) < stretches) {
        (message.sending ? helping_ : fetching_).push_back(&message);
        return mine;
    }
    message.error = share.error.load(std::memory_order_relaxed);
    end_share(message);
    finish(message);
    return true;
}

void Link::end_share(Message& message) noexcept {
    if (message.sending) {
        message.share->taken.store(0, std::memory_order_release);
    } else {
        auto& sharing = peers_[message.local_rank].sharing;
        *std::find(sharing.begin(), sharing.end(), &message) = nullptr;
    }
}

// Copies a stretch of one message; the next call continues with the next message. Receives come first, since
// they end up in this rank's cache; it helps others to receive when it has nothing else to copy.
void Link::copy_some() {
    for (auto* queue : {&fetching_, &helping_}) {
        for (std::size_t n = queue->size(); n > 0; --n) {
            Message& message = *queue->front();
            queue->pop_front();
            if (message.share == nullptr) return fetch_alone(message);
            if (copy_together(message)) return;
        }
    }
}

void Link::fetch_alone(Message& receive) {
    PeerState& peer = peers_[receive.local_rank];
    const std::size_t bytes = std::min(stretch_of(receive), receive.bytes - receive.moved);
    const int error = fetch(peer.process, receive.other + receive.moved, receive.data + receive.moved, bytes);
    ++events_;
    if (error == EPERM || error == ENOSYS) { // permitted at the start, no more
        peer.by_kernel = false;
        return ask_for(receive);
    }
    receive.error = error;
    receive.moved += bytes;
    if (error == 0 && receive.moved < receive.bytes) {
        fetching_.push_back(&receive);
        return;
    }
    answer(receive.local_rank, Kind::over, receive.rendezvous_id, 0);
    finish(receive);
}

void Link::push_backlog(PeerState& peer) {
    while (!peer.backlog.empty() && push(peer, peer.backlog.front())) {
        peer.backlog.pop_front();
        --backlog_;
        ++events_;
    }
}

void Link::push_pieces(PeerState& peer) {
    const std::size_t most = arena_bytes_ / 8;
    for (int k = 0; k < pieces_per_check; ++k) {
        if (peer.streams.empty() || !peer.backlog.empty() || !peer.out.has_slot()) return;
        Message& send = *peer.streams.front();
        Envelope envelope;
        envelope.kind = Kind::piece;
        envelope.bytes = std::min(most, send.bytes - send.moved);
        std::byte* room = peer.out.reserve(envelope.bytes, envelope.details);
        if (room == nullptr) return;
        copy_bytes(room, send.data + send.moved, envelope.bytes);
        envelope.details.id = send.other;
        envelope.details.offset = send.moved;
        peer.out.push(envelope);
        ring(peer);
        ++events_;
        send.moved += envelope.bytes;
        if (send.moved < send.bytes) continue;
        peer.streams.erase(peer.streams.begin());
        --streams_;
        finish(send);
    }
}

Message* Link::take_posted(PeerState& peer, std::uint32_t context, int tag) {
    const auto found = std::find_if(peer.posted.begin(), peer.posted.end(), [&](const Message* message) {
        return message->tag == tag && message->context == context;
    });
    if (found == peer.posted.end()) return nullptr;
    Message* message = *found;
    peer.posted.erase(found);
    return message;
}

// The other end copies no more of the message: its claimed stretches are awaited, unless its process died. If
// it withdrew before, it copies nothing now (and its copies are visible), and claims no longer count what was
// copied.
void Link::stop_sharing(Message& message) noexcept {
    constexpr std::uint64_t given_up = std::uint64_t{1} << 62;
    Share& share = *message.share;
    const std::uint64_t claimed = share.claimed.fetch_add(given_up, std::memory_order_acq_rel);
    const std::uint64_t started = claimed < given_up ? std::min(claimed, stretches_of(message)) : 0;
    while (share.copied.load(std::memory_order_acquire) < started && lives(message.local_rank)) sched_yield();
    end_share(message);
}

// Removes all references to the message. The other end is not notified: this rank stops after an error.
void Link::withdraw(Message& message) noexcept {
    PeerState& peer = peers_[message.local_rank];
    switch (message.stage) {
    case Message::Stage::done:
        break;
    case Message::Stage::posted:
        std::erase(peer.posted, &message);
        break;
    case Message::Stage::queued:
        backlog_ -= std::erase_if(peer.backlog, [&](const Outgoing& o) { return o.message == &message; });
        break;
    case Message::Stage::announced:
        by_id_.erase(message.id);
        peer.unexpected.remove_if([&](const UnexpectedMessage& waiting) { return waiting.own == &message; });
        break;
    case Message::Stage::copying:
        std::erase(message.sending ? helping_ : fetching_, &message);
        if (message.share != nullptr) stop_sharing(message);
        break;
    case Message::Stage::in_pieces:
        if (message.sending)
            streams_ -= std::erase(peer.streams, &message);
        else
            by_id_.erase(message.id);
        break;
    }
}

} // namespace jali::shm
