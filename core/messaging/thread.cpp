// Virtual ranks: threads of one process that exchange messages by copying, once, from buffer to buffer.
//
// Between every ordered pair of ranks there is a channel with two queues: receives that wait for a message
// and messages that wait for a receive. The later of the two finds the first match in order with the same tag
// and copies; a short message without a receive is put aside, so that its sender can continue. Each rank has
// a bell that is rung at every event it may wait for; a waiting rank spins for a moment, then sleeps on the
// bell. `self` is a group of one. Groups split from one another share bells and failures, not channels.
#include "device/copy_bytes.hpp"
#include "messaging/call.hpp"
#include "messaging/communicator.hpp"
#include "messaging/exposed_memory.hpp"
#include "messaging/split.hpp"
#include "messaging/wait_loop.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>

#include <sched.h>

namespace jali {

namespace {

constexpr std::size_t eager_bytes = 8192; // up to here an early message is copied aside
constexpr int spins = 128;                // checks before a waiting rank yields the core: some microseconds
constexpr int yields = 32;                // times that it does so before it sleeps
// For rests between tests of several messages, which take longer. Virtual ranks often share their cores.
constexpr unsigned rest_spins = 16, rest_yields = 96;

// Wakes one rank. A rank reads the count, checks, and sleeps only if the count has not changed since.
class alignas(64) Bell {
  public:
    unsigned count() const { return count_.load(); }

    void ring() {
        count_.fetch_add(1);
        if (!sleeping_.load()) return;
        {
            std::lock_guard lock(mutex_);
        }
        awake_.notify_one();
    }

    void sleep(unsigned seen, std::chrono::milliseconds at_most) {
        std::unique_lock lock(mutex_);
        sleeping_.store(true);
        awake_.wait_for(lock, at_most, [&] { return count_.load() != seen; });
        sleeping_.store(false);
    }

  private:
    std::atomic<unsigned> count_{0};
    std::atomic<bool> sleeping_{false};
    std::mutex mutex_;
    std::condition_variable awake_;
};

struct Channel;

enum class State { waiting, copying, done, wrong_size };

struct ThreadRequest final : Request {
    ThreadRequest(Channel& channel, void* data, std::size_t bytes, int peer, int tag, bool sending)
        : channel(channel), data(data), bytes(bytes), peer(peer), tag(tag), sending(sending) {}
    ~ThreadRequest() override;

    Channel& channel;
    void* data; // a send only reads it
    std::size_t bytes;
    int peer;
    int tag;
    bool sending;
    bool may_be_shorter = false; // a receive
    std::size_t arrived = 0;     // size of the arrived message, if it is not `bytes`
    std::atomic<State> state{State::waiting};
};

// A message that waits for its receive: kept aside, or still in the buffer of its (waiting) send.
struct UnexpectedMessage {
    int tag;
    std::size_t bytes;
    std::unique_ptr<std::byte[]> aside;
    ThreadRequest* send;
};

// One ordered pair of ranks.
struct Channel {
    std::mutex mutex;
    std::deque<ThreadRequest*> receives;
    std::deque<UnexpectedMessage> unexpected;
};

ThreadRequest::~ThreadRequest() {
    if (state.load(std::memory_order_acquire) == State::waiting) {
        std::lock_guard lock(channel.mutex);
        if (state.load() == State::waiting) {
            if (sending)
                std::erase_if(channel.unexpected,
                              [this](const UnexpectedMessage& message) { return message.send == this; });
            else
                std::erase(channel.receives, this);
            return;
        }
    }
    while (state.load(std::memory_order_acquire) == State::copying) std::this_thread::yield();
}

// The data that one rank publishes to the others in a collective.
struct alignas(64) Contribution {
    Call call;
    const void* data;
};

std::atomic<int> running{0}; // ranks of this process whose programs have not ended, in groups of several

// State that a group shares with all groups split from it; ranks are those of the outermost one.
struct SharedState {
    explicit SharedState(int ranks)
        : bells(ranks), left(ranks), watchdog(watchdog_seconds()), of_several(ranks > 1),
          ranks_of_process(of_several ? running += ranks : ranks) {}
    SharedState(const SharedState&) = delete;
    ~SharedState() {
        for (int rank = 0; rank < static_cast<int>(left.size()); ++rank) leave(rank);
    }

    void leave(int rank) {
        if (!left[rank].exchange(true) && of_several) --running;
    }

    void ring_all() {
        for (auto& bell : bells) bell.ring();
    }

    std::vector<Bell> bells;
    std::vector<std::atomic<bool>> left; // programs that are over
    double watchdog;
    bool of_several;
    int ranks_of_process; // with those of other groups, when this one was made: the same on all its ranks

    alignas(64) std::atomic<bool> failed{false};
    std::mutex failure_mutex;
    int failed_rank = -1;
    std::string cause;
};

struct Group {
    Group(std::shared_ptr<SharedState> shared, std::vector<int> members)
        : shared(std::move(shared)), members(std::move(members)),
          ranks(static_cast<int>(this->members.size())), contributions(ranks),
          channels(static_cast<std::size_t>(ranks) * ranks) {}

    Channel& channel(int from, int to) { return channels[static_cast<std::size_t>(from) * ranks + to]; }
    Bell& bell(int rank) { return shared->bells[members[rank]]; }

    void ring_all() {
        for (int member : members) shared->bells[member].ring();
    }

    std::shared_ptr<SharedState> shared;
    std::vector<int> members; // ranks in the outermost group
    int ranks;
    std::vector<Contribution> contributions;
    std::vector<Channel> channels;

    // Ranks that have arrived at the present meeting (low 16 bits) and number of meetings so far (above).
    alignas(64) std::atomic<std::uint64_t> meeting{0};
};

constexpr int meeting_shift = 16;

// Ranks of one process: every rank reaches the memory of all directly.
class ProcessMemory final : public ExposedMemory {
  public:
    bool reaches(int) const override { return true; }
    const std::string& why_not() const override { return why_not_; }
    std::unique_ptr<Exposure> expose(Memory& memory, std::size_t bytes, ExposureName& name) override {
        const auto begin = reinterpret_cast<std::uint64_t>(memory.data()) + memory.size() - bytes;
        name = {begin, bytes, begin};
        return std::make_unique<Exposure>();
    }
    std::byte* address(int, const ExposureName& name) const override {
        return reinterpret_cast<std::byte*>(name.offset);
    }

  private:
    std::string why_not_;
};

class ThreadCommunicator final : public Communicator {
  public:
    ThreadCommunicator(std::shared_ptr<Group> group, int rank, const char* transport)
        : group_(std::move(group)), rank_(rank), transport_(transport) {}

    int rank() const override { return rank_; }
    int size() const override { return group_->ranks; }
    const char* transport() const override { return transport_; }
    int outermost(int rank) const override { return group_->members[rank]; }
    int ranks_of_process() const override { return group_->shared->ranks_of_process; }
    int largest_tag() const override { return std::numeric_limits<int>::max(); }

    // The first rank of each part makes its group and publishes it to the others.
    std::shared_ptr<Communicator> split(int color, int key) override {
        const Parts parts = agree_on_parts(*this, color, key, {});
        std::shared_ptr<Group> group;
        if (parts.rank == 0) {
            std::vector<int> members;
            for (int member : parts.members) members.push_back(group_->members[member]);
            group = std::make_shared<Group>(group_->shared, std::move(members));
        }
        const std::shared_ptr<Group> made = group;
        meet(Call::gather, 0, "showing a new group", {reinterpret_cast<const std::byte*>(&made), sizeof made},
             [&] {
                 if (color >= 0)
                     group = *static_cast<const std::shared_ptr<Group>*>(
                         group_->contributions[parts.members[0]].data);
             });
        if (color < 0) return nullptr;
        return std::make_shared<ThreadCommunicator>(std::move(group), parts.rank, transport_);
    }

    std::unique_ptr<Request> send(const void* data, std::size_t bytes, int to, int tag) override {
        check_envelope(to, tag);
        Channel& channel = group_->channel(rank_, to);
        auto request =
            std::make_unique<ThreadRequest>(channel, const_cast<void*>(data), bytes, to, tag, true);
        ThreadRequest* receive = nullptr;
        {
            std::lock_guard lock(channel.mutex);
            auto found = std::find_if(channel.receives.begin(), channel.receives.end(),
                                      [&](const ThreadRequest* r) { return r->tag == tag; });
            if (found != channel.receives.end()) {
                receive = *found;
                receive->state.store(State::copying, std::memory_order_relaxed);
                channel.receives.erase(found);
            } else if (bytes <= eager_bytes) {
                auto aside = std::make_unique_for_overwrite<std::byte[]>(bytes);
                if (bytes > 0) std::memcpy(aside.get(), data, bytes);
                channel.unexpected.push_back({tag, bytes, std::move(aside), nullptr});
                request->state.store(State::done, std::memory_order_relaxed);
            } else {
                channel.unexpected.push_back({tag, bytes, nullptr, request.get()});
            }
        }
        if (receive != nullptr) {
            deliver(data, bytes, *receive, to);
            request->state.store(State::done, std::memory_order_relaxed);
        }
        return request;
    }

    std::unique_ptr<Request> receive(void* data, std::size_t bytes, int from, int tag) override {
        return start_receive(data, bytes, from, tag, false);
    }
    std::unique_ptr<Request> receive_up_to(void* data, std::size_t most, int from, int tag) override {
        return start_receive(data, most, from, tag, true);
    }

    std::unique_ptr<Request> start_receive(void* data, std::size_t bytes, int from, int tag,
                                           bool may_be_shorter) {
        check_envelope(from, tag);
        Channel& channel = group_->channel(from, rank_);
        auto request = std::make_unique<ThreadRequest>(channel, data, bytes, from, tag, false);
        request->may_be_shorter = may_be_shorter;
        UnexpectedMessage message;
        {
            std::lock_guard lock(channel.mutex);
            auto found = std::find_if(channel.unexpected.begin(), channel.unexpected.end(),
                                      [&](const UnexpectedMessage& p) { return p.tag == tag; });
            if (found == channel.unexpected.end()) {
                channel.receives.push_back(request.get());
                return request;
            }
            message = std::move(*found);
            channel.unexpected.erase(found);
            if (message.send != nullptr) message.send->state.store(State::copying, std::memory_order_relaxed);
        }
        const void* source = message.send != nullptr ? message.send->data : message.aside.get();
        deliver(source, message.bytes, *request, rank_);
        if (message.send != nullptr) {
            message.send->state.store(State::done, std::memory_order_release);
            group_->bell(from).ring();
        }
        return request;
    }

    bool test(Request& request) override {
        if (arrived(static_cast<ThreadRequest&>(request))) return true;
        check();
        return false;
    }

    void wait(std::span<std::unique_ptr<Request>> requests, const std::string& what) override {
        for (auto& request : requests) {
            if (!request) continue;
            auto& waited = static_cast<ThreadRequest&>(*request);
            wait_until([&] { return arrived(waited); }, waited.peer,
                       [&] {
                           return what + " (" + (waited.sending ? "message to" : "message from") + " rank " +
                                  std::to_string(waited.peer) + ", tag " + std::to_string(waited.tag) + ", " +
                                  std::to_string(waited.bytes) + " bytes)";
                       });
        }
    }

    std::uint64_t events() override { return group_->bell(rank_).count(); }

    bool rest(std::uint64_t seen, unsigned rounds) override {
        if (rounds < rest_spins + rest_yields) {
            rounds < rest_spins ? pause_core() : static_cast<void>(sched_yield());
            return false;
        }
        group_->bell(rank_).sleep(static_cast<unsigned>(seen), std::chrono::milliseconds(100));
        return true;
    }

    bool has_left(int rank, double) override { return left(rank); }

    void barrier(std::string_view what) override {
        check();
        meet(Call::barrier, 0, what, {}, [] {});
    }

    void all_reduce_sum(std::span<std::int64_t> values, std::string_view what) override {
        check();
        if (size() == 1) return;
        std::vector<std::uint64_t> total(values.size()); // unsigned: wraps instead of overflowing
        meet(Call::sum, 0, what, std::as_bytes(values), [&] {
            for (const auto& other : group_->contributions) {
                const auto* theirs = static_cast<const std::int64_t*>(other.data);
                for (std::size_t i = 0; i < total.size(); ++i)
                    total[i] += static_cast<std::uint64_t>(theirs[i]);
            }
        });
        for (std::size_t i = 0; i < total.size(); ++i) values[i] = static_cast<std::int64_t>(total[i]);
    }

    std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine,
                                                   std::string_view what) override {
        check();
        std::vector<std::vector<std::byte>> all;
        meet(Call::gather, 0, what, mine, [&] {
            for (const auto& other : group_->contributions) {
                const auto* bytes = static_cast<const std::byte*>(other.data);
                all.emplace_back(bytes, bytes + other.call.bytes);
            }
        });
        return all;
    }

    std::vector<std::byte> broadcast(std::span<const std::byte> data, int root,
                                     std::string_view what) override {
        check_rank(root);
        check();
        std::vector<std::byte> result;
        meet(Call::broadcast, root, what, data, [&] {
            const auto& chosen = group_->contributions[root];
            const auto* bytes = static_cast<const std::byte*>(chosen.data);
            result.assign(bytes, bytes + chosen.call.bytes);
        });
        return result;
    }

    std::shared_ptr<ExposedMemory> expose_memory() override { return std::make_shared<ProcessMemory>(); }

    void fail(const std::string& cause) noexcept override {
        SharedState& shared = *group_->shared;
        {
            std::lock_guard lock(shared.failure_mutex);
            if (shared.failed.load()) return;
            shared.failed_rank = group_->members[rank_];
            shared.cause = cause;
            shared.failed.store(true);
        }
        shared.ring_all();
    }

    void check() override {
        const SharedState& shared = *group_->shared;
        if (shared.failed.load(std::memory_order_acquire))
            throw RankFailure(shared.failed_rank, shared.cause);
    }

    void leave() noexcept override {
        group_->shared->leave(group_->members[rank_]);
        group_->shared->ring_all();
    }

    // Nothing that the others need is shut down: the group exists as long as its last communicator.
    void await_others_leaving() override {}

  private:
    void check_envelope(int peer, int tag) {
        check_message(peer, tag);
        check();
    }

    // Copies a message into a receive of rank `to`, which no other thread can reach any more.
    void deliver(const void* data, std::size_t bytes, ThreadRequest& receive, int to) {
        State state = State::done;
        if (receive.may_be_shorter ? receive.bytes < bytes : receive.bytes != bytes) {
            receive.arrived = bytes;
            state = State::wrong_size;
        } else {
            copy_bytes(static_cast<std::byte*>(receive.data), static_cast<const std::byte*>(data), bytes);
        }
        receive.state.store(state, std::memory_order_release); // from here on it may be destroyed
        if (to != rank_) group_->bell(to).ring();
    }

    bool arrived(const ThreadRequest& request) const {
        const State state = request.state.load(std::memory_order_acquire);
        if (state == State::wrong_size)
            check_size(request.bytes, request.arrived, request.may_be_shorter, request.peer, request.tag);
        return state == State::done;
    }

    // Waits until `ready()`. `peer` is the rank that must act, -1 for all of them.
    template <class Ready, class What>
    void wait_until(Ready ready, int peer, What what) {
        for (int i = 0; i < spins; ++i) {
            if (ready()) return;
            pause_core();
        }
        Bell& bell = group_->bell(rank_);
        WaitLoop wait_loop(group_->shared->watchdog);
        for (int round = 0;; ++round) {
            const unsigned seen = bell.count();
            // Read before the check, which then sees everything that a rank did before it left.
            const int exited = exited_rank(peer);
            if (ready()) return;
            check();
            if (size() == 1) throw TransportError("the only rank waits for itself: " + what());
            if (exited >= 0)
                throw RankFailure(group_->members[exited], "its program ended while rank " +
                                                               std::to_string(rank_) + " waited for " +
                                                               what());
            if (round < yields) {
                sched_yield();
                continue;
            }
            bell.sleep(seen, std::chrono::milliseconds(100));
            wait_loop.check_clock([&] {
                return "rank " + std::to_string(rank_) + " waited for " + what() + " (transport " +
                       transport_ + ")";
            });
        }
    }

    bool left(int rank) const { return group_->shared->left[group_->members[rank]].load(); }

    // A rank that must act but whose program has ended, or -1.
    int exited_rank(int peer) const {
        for (int rank = 0; rank < size(); ++rank)
            if ((peer < 0 || peer == rank) && left(rank)) return rank;
        return -1;
    }

    // Waits until all ranks have arrived. If the wait fails, this rank revokes its arrival, unless all have
    // arrived meanwhile.
    void assemble(const Call& call, bool may_fail) {
        auto& meeting = group_->meeting;
        const auto everybody = static_cast<std::uint64_t>(size());
        std::uint64_t before = meeting.load();
        std::uint64_t after;
        do {
            after = before + 1;
            if ((after & 0xffff) == everybody) after = ((before >> meeting_shift) + 1) << meeting_shift;
        } while (!meeting.compare_exchange_weak(before, after));
        const std::uint64_t number = before >> meeting_shift;
        if (after >> meeting_shift != number) return group_->ring_all();
        const auto over = [&] { return meeting.load(std::memory_order_acquire) >> meeting_shift != number; };
        if (!may_fail) {
            for (int i = 0; !over(); ++i) i % 64 < 63 ? pause_core() : static_cast<void>(sched_yield());
            return;
        }
        try {
            wait_until(over, -1, [&] { return call.text() + " with all ranks"; });
        } catch (...) {
            std::uint64_t now = meeting.load();
            do {
                if (now >> meeting_shift != number) return;
            } while (!meeting.compare_exchange_weak(now, now - 1));
            throw;
        }
    }

    // Publishes `mine` to all ranks, runs `read` while all contributions are visible, and keeps `mine` until
    // all have read. The second meeting cannot fail: every rank of the first one reaches it, even after an
    // error.
    template <class Read>
    void meet(Call::Kind kind, int root, std::string_view what, std::span<const std::byte> mine, Read read) {
        const Call call(kind, ++calls_, mine.size(), root, what);
        group_->contributions[rank_] = {call, mine.data()};
        assemble(call, true);
        struct Second {
            ThreadCommunicator& self;
            const Call& call;
            ~Second() { self.assemble(call, false); }
        } second{*this, call};
        for (int rank = 0; rank < size(); ++rank)
            if (const Call& theirs = group_->contributions[rank].call; !call.agrees_with(theirs))
                throw TransportError(mismatch_text(call, rank_, theirs, rank, size()));
        read();
    }

    std::shared_ptr<Group> group_;
    int rank_;
    const char* transport_;
    std::uint64_t calls_ = 0; // collectives so far
};

} // namespace

std::shared_ptr<Communicator> make_self_communicator() {
    return std::make_shared<ThreadCommunicator>(
        std::make_shared<Group>(std::make_shared<SharedState>(1), std::vector<int>{0}), 0, "self");
}

std::vector<std::shared_ptr<Communicator>> make_thread_communicators(int ranks) {
    if (ranks < 1 || ranks > 1024)
        throw std::invalid_argument(std::to_string(ranks) + " virtual ranks: give 1 to 1024");
    std::vector<int> members(ranks);
    std::iota(members.begin(), members.end(), 0);
    auto group = std::make_shared<Group>(std::make_shared<SharedState>(ranks), std::move(members));
    std::vector<std::shared_ptr<Communicator>> all;
    for (int rank = 0; rank < ranks; ++rank)
        all.push_back(std::make_shared<ThreadCommunicator>(group, rank, "thread"));
    return all;
}

} // namespace jali
