// Ranks of which some share a host: their messages go through memory, the others' through a base transport.
//
// The link (shm_link.hpp) moves messages between processes of one host; a duplicate of the base transport
// carries the rest, and all ranks' failures and departures. A wait polls both. Collectives consist of
// messages, so that pending messages progress meanwhile. Communicators split from one another share the link,
// unless threads may use several at once.
#include "messaging/communicator.hpp"
#include "messaging/message_collectives.hpp"
#include "messaging/shm_exposed.hpp"
#include "messaging/shm_link.hpp"
#include "messaging/split.hpp"
#include "messaging/wait_loop.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include <sched.h>

namespace jali {

namespace {

using shm::Link;
using shm::Message;

constexpr int checks_per_notice = 64;              // of shared memory, per check of the base transport
constexpr auto nap = std::chrono::milliseconds(5); // how often a sleeping rank checks for failures
constexpr auto between_detections = std::chrono::milliseconds(500);

// How many checks a waiting rank spins, and how many times it then yields its core, before it sleeps.
struct SpinPolicy {
    unsigned spins, yields;
};
constexpr SpinPolicy alone_on_core{4000, 200}, sharing_cores{64, 16};

class HostCommunicator final : public Communicator {
  public:
    // `base` and `base_of_collectives` are this communicator's own; the latter is empty where all ranks share
    // one host. `local_ranks` are the link's numbers of the ranks.
    HostCommunicator(std::shared_ptr<Link> link, std::shared_ptr<Communicator> base,
                     std::shared_ptr<Communicator> base_of_collectives, std::vector<int> local_ranks,
                     std::uint32_t context)
        : link_(std::move(link)), base_(std::move(base)), collectives_(*this, std::move(base_of_collectives)),
          local_ranks_(std::move(local_ranks)), context_(context), watchdog_(watchdog_seconds()),
          has_outer_(std::ranges::any_of(local_ranks_, [](int local_rank) { return local_rank < 0; })),
          // Polling another transport costs more than yielding the core.
          spin_policy_(has_outer_ || link_->crowded() ? sharing_cores : alone_on_core) {}

    int rank() const override { return base_->rank(); }
    int size() const override { return base_->size(); }
    const char* transport() const override { return "shm"; }
    int largest_tag() const override { return base_->largest_tag(); }
    int outermost(int rank) const override { return base_->outermost(rank); }
    bool takes_threads() const override { return base_->takes_threads(); }
    void refuse_other_threads() const override { base_->refuse_other_threads(); } // the link is shared

    std::shared_ptr<Communicator> split(int color, int key) override {
        if (takes_threads()) {                     // whose communicators share nothing
            agree_on_parts(*this, color, key, {}); // ranks that make another call get an error
            const auto part = base_->split(color, key);
            return part ? make_host_communicator(*part) : nullptr;
        }
        const Parts parts = agree_on_parts(*this, color, key, {}, link_->next_context);
        // Two numbers, for messages and collectives. Groups that are made at once have no rank in common.
        const auto context = static_cast<std::uint32_t>(parts.largest);
        link_->next_context = context + 2;
        auto base = base_->split(color, key);
        if (color < 0) {
            if (collectives_.base) collectives_.base->split(color, key);
            return nullptr;
        }
        auto for_collectives = collectives_.base ? collectives_.base->split(color, key) : nullptr;
        std::vector<int> local_ranks;
        for (const int member : parts.members) local_ranks.push_back(local_ranks_[member]);
        return std::make_shared<HostCommunicator>(link_, std::move(base), std::move(for_collectives),
                                                  std::move(local_ranks), context);
    }

    std::unique_ptr<Request> send(const void* data, std::size_t bytes, int to, int tag) override {
        check_message(to, tag);
        return start_send(base_.get(), data, bytes, to, context_, tag);
    }

    std::unique_ptr<Request> receive(void* data, std::size_t bytes, int from, int tag) override {
        check_message(from, tag);
        return start_receive(base_.get(), data, bytes, from, context_, tag, false);
    }

    std::unique_ptr<Request> receive_up_to(void* data, std::size_t most, int from, int tag) override {
        check_message(from, tag);
        return start_receive(base_.get(), data, most, from, context_, tag, true);
    }

    bool test(Request& request) override {
        refuse_other_threads();
        auto& message = static_cast<Message&>(request);
        if (is_complete(*base_, message)) return true;
        if (message.local_rank >= 0) {
            link_->pump();
            if (arrived(message)) return true;
        }
        if (++tests_ % checks_per_notice == 0) check_beneath();
        return false;
    }

    void wait(std::span<std::unique_ptr<Request>> requests, const std::string& what) override {
        wait_on(*base_, requests, what);
    }

    std::uint64_t events() override { return link_->events(); }

    bool rest(std::uint64_t seen, unsigned rounds) override {
        if (rounds < spin_policy_.spins) {
            pause_core();
            return false;
        }
        // The base transport does not wake ranks.
        if (has_outer_ || rounds < spin_policy_.spins + spin_policy_.yields) {
            sched_yield();
            return false;
        }
        link_->sleep(seen, nap);
        check_beneath();
        return true;
    }

    bool has_left(int rank, double waited) override { return base_->has_left(rank, waited); }

    void barrier(std::string_view what) override {
        check();
        barrier_by_messages(collectives_, what);
    }
    void all_reduce_sum(std::span<std::int64_t> values, std::string_view what) override {
        check();
        all_reduce_sum_by_messages(collectives_, values, what);
    }
    std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine,
                                                   std::string_view what) override {
        check();
        return all_gather_by_messages(collectives_, mine, what);
    }
    std::vector<std::byte> broadcast(std::span<const std::byte> data, int root,
                                     std::string_view what) override {
        check_rank(root);
        check();
        return broadcast_by_messages(collectives_, data, root, what);
    }

    std::shared_ptr<ExposedMemory> expose_memory() override {
        std::vector<char> may_share;
        for (const int local_rank : local_ranks_) may_share.push_back(local_rank >= 0);
        return shm::expose_heaps(*this, may_share);
    }

    std::shared_ptr<Communicator> beneath() const override { return base_; }

    void fail(const std::string& cause) noexcept override { base_->fail(cause); }
    void check() override { check_beneath(); }
    void leave() noexcept override { base_->leave(); }
    void await_others_leaving() override { base_->await_others_leaving(); }

  private:
    // The messages of the collectives: a context and a base of their own.
    struct Collectives final : ControlChannel {
        Collectives(HostCommunicator& owner, std::shared_ptr<Communicator> base)
            : ControlChannel(owner), owner(owner), base(std::move(base)) {}
        std::unique_ptr<Request> send(std::span<const std::byte> data, int to) override {
            return owner.start_send(base.get(), data.data(), data.size(), to, owner.context_ + 1, 0);
        }
        std::unique_ptr<Request> receive(std::span<std::byte> data, int from, bool may_be_shorter) override {
            return owner.start_receive(base.get(), data.data(), data.size(), from, owner.context_ + 1, 0,
                                       may_be_shorter);
        }
        void wait(std::span<std::unique_ptr<Request>> requests, const std::string& what) override {
            owner.wait_on(base ? *base : *owner.base_, requests, what);
        }

        HostCommunicator& owner;
        std::shared_ptr<Communicator> base; // null where all ranks share memory
    };

    // `base` carries messages to ranks of other hosts.
    std::unique_ptr<Request> start_send(Communicator* base, const void* data, std::size_t bytes, int to,
                                        std::uint32_t context, int tag) {
        refuse_other_threads();
        if (local_ranks_[to] >= 0) return link_->send(data, bytes, local_ranks_[to], to, context, tag);
        return std::make_unique<Message>(*link_, base->send(data, bytes, to, tag), bytes, to, tag, true);
    }
    std::unique_ptr<Request> start_receive(Communicator* base, void* data, std::size_t bytes, int from,
                                           std::uint32_t context, int tag, bool may_be_shorter) {
        refuse_other_threads();
        if (local_ranks_[from] >= 0)
            return link_->receive(data, bytes, local_ranks_[from], from, context, tag, may_be_shorter);
        auto outer = may_be_shorter ? base->receive_up_to(data, bytes, from, tag)
                                    : base->receive(data, bytes, from, tag);
        return std::make_unique<Message>(*link_, std::move(outer), bytes, from, tag, false);
    }

    bool arrived(const Message& message) {
        if (message.stage != Message::Stage::done) return false;
        if (message.sending) return true;
        check_size(message.bytes, message.arrived, message.may_be_shorter, message.peer, message.tag);
        if (message.error != 0) say_why_unread(message);
        return true;
    }

    // The memory of a process that has ended, and the buffers of a rank that stopped, no longer exist: report
    // the cause, a failure, if there is one. Its notice may still be in transit.
    [[noreturn]] void say_why_unread(const Message& message) {
        using namespace std::chrono;
        const auto limit = steady_clock::now() + milliseconds(500);
        do {
            base_->check();
            detect_failures();
            std::this_thread::sleep_for(milliseconds(1));
        } while (steady_clock::now() < limit);
        const std::string what = std::to_string(message.bytes) + " bytes from rank " +
                                 std::to_string(message.peer) + " with tag " + std::to_string(message.tag) +
                                 " in its memory";
        if (message.error == ESRCH)
            throw RankFailure(outermost(message.peer), "its program ended before rank " +
                                                           std::to_string(rank()) + " had read " + what);
        throw TransportError("rank " + std::to_string(rank()) + " could not read " + what + ": " +
                             std::generic_category().message(message.error));
    }

    bool is_complete(Communicator& base, Message& message) {
        if (!message.outer) return arrived(message);
        if (!base.test(*message.outer)) return false;
        message.outer.reset();
        message.arrived = message.bytes;
        return true;
    }

    void wait_on(Communicator& base, std::span<std::unique_ptr<Request>> requests, const std::string& what) {
        refuse_other_threads();
        WaitLoop wait_loop(watchdog_);
        std::size_t first = 0; // all before it are complete
        const auto at = [&](std::size_t k) -> Message& { return static_cast<Message&>(*requests[k]); };
        for (unsigned round = 0;; ++round) {
            const std::uint64_t seen = link_->events();
            // Read before pumping, so that no event in between is missed.
            bool moved = false;
            link_->pump();
            for (; first < requests.size(); ++first)
                if (requests[first] && !is_complete(base, at(first))) break;
            if (first == requests.size()) return;
            if (has_outer_) // those behind it need the base's progress too
                for (std::size_t k = first + 1; k < requests.size(); ++k)
                    if (requests[k] && at(k).outer) moved |= is_complete(base, at(k));
            if (moved || link_->events() != seen) {
                wait_loop.moved();
                round = 0;
                continue;
            }
            if (round % checks_per_notice == checks_per_notice - 1) {
                check_beneath();
                fail_if_exited(at(first), wait_loop.waited(), what);
            }
            const auto waiting = [&] {
                return "rank " + std::to_string(rank()) + " waited for " + what + describe(at(first)) +
                       " (transport shm)";
            };
            rest(seen, round) ? wait_loop.check_clock(waiting) : wait_loop.check(waiting);
        }
    }

    static std::string describe(const Message& message) {
        return std::string(message.sending ? " (message to" : " (message from") + " rank " +
               std::to_string(message.peer) + ", tag " + std::to_string(message.tag) + ", " +
               std::to_string(message.bytes) + " bytes)";
    }

    void fail_if_exited(const Message& message, double waited, const std::string& what) {
        if (base_->has_left(message.peer, waited))
            throw RankFailure(outermost(message.peer), "its program ended while rank " +
                                                           std::to_string(rank()) + " waited for " + what +
                                                           describe(message));
        if (size() == 1) throw TransportError("the only rank waits for itself: " + what + describe(message));
    }

    // Checks for failures, and now and then whether the processes that share memory with this one still run.
    void check_beneath() {
        base_->check();
        const auto now = std::chrono::steady_clock::now();
        if (now - last_detection_ < between_detections) return;
        last_detection_ = now;
        detect_failures();
    }

    void detect_failures() {
        for (int rank = 0; rank < size(); ++rank)
            if (local_ranks_[rank] >= 0 && !link_->lives(local_ranks_[rank]))
                throw RankFailure(outermost(rank), "its process has died");
    }

    std::shared_ptr<Link> link_;
    std::shared_ptr<Communicator> base_;
    Collectives collectives_;
    std::vector<int> local_ranks_;
    std::uint32_t context_;
    double watchdog_;
    bool has_outer_; // ranks of other hosts
    SpinPolicy spin_policy_;
    unsigned tests_ = 0;
    std::chrono::steady_clock::time_point last_detection_ = std::chrono::steady_clock::now();
};

} // namespace

std::shared_ptr<Communicator> make_host_communicator(Communicator& base) {
    base.barrier("sharing memory"); // names its purpose in errors
    auto own = base.duplicate();
    if (!base.can_share_memory()) return own; // virtual ranks copy from buffer to buffer already
    auto link = std::make_shared<Link>(*own);
    // All ranks decide alike: is there any pair that shares memory, and any that does not?
    std::vector<int> local_ranks;
    std::int64_t counts[2] = {0, 0};
    for (int rank = 0; rank < own->size(); ++rank) {
        local_ranks.push_back(link->local_rank(rank));
        if (rank != own->rank()) ++counts[local_ranks.back() >= 0 ? 0 : 1];
    }
    own->all_reduce_sum(counts, "sharing memory");
    if (counts[0] == 0) return own;
    auto for_collectives = counts[1] > 0 ? own->duplicate() : nullptr;
    link->next_context = 2;
    return std::make_shared<HostCommunicator>(std::move(link), std::move(own), std::move(for_collectives),
                                              std::move(local_ranks), 0);
}

} // namespace jali
