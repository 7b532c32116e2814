// Ranks that are MPI processes.
//
// Works on two duplicates of the given communicator: one for messages, one for notices (failure_notices.hpp),
// which all communicators split from it share. Collectives are messages with a tag of their own, the largest:
// MPI's would take whatever the other ranks call for their own. Every wait loop reads the notices, so nothing
// here ever blocks inside MPI, and communicators are made only after all ranks have called the split. The
// calling thread alone makes progress; without MPI_THREAD_MULTIPLE it is the thread that started MPI.
#include "messaging/communicator.hpp"
#include "messaging/failure_notices.hpp"
#include "messaging/message_collectives.hpp"
#include "messaging/mpi_abi.hpp"
#include "messaging/mpi_devices.hpp"
#include "messaging/mpi_operation.hpp"
#include "messaging/split.hpp"
#include "messaging/wait_loop.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <thread>

#include <sched.h>

namespace jali {

namespace {

constexpr std::size_t largest_part = std::size_t{1} << 30; // counts are ints: longer messages go in parts
constexpr auto longest_withdrawal = std::chrono::seconds(1);
constexpr unsigned spins = 64, yields = 1024; // of a rank that waits, before it sleeps
constexpr double grace_seconds = 3; // for messages sent before a rank left; its notice may overtake them

struct MpiRequest final : Request {
    struct Part {
        MpiHandle handle;
        std::size_t bytes;
    };

    MpiRequest(const MpiAbi& mpi, std::size_t bytes, int peer, int tag, bool sending)
        : mpi(mpi), bytes(bytes), peer(peer), tag(tag), sending(sending) {}
    // A collective.
    MpiRequest(const MpiAbi& mpi, const char* function, std::shared_ptr<const void> keep)
        : mpi(mpi), bytes(0), peer(-1), tag(-1), sending(true), function(function), keep(std::move(keep)) {}

    // After an error: receives that have not begun are cancelled. A receive in progress is awaited, since its
    // buffer may be freed, but not for long, since its sender may have ended; then it is left to the library.
    // A collective cannot be cancelled.
    ~MpiRequest() override {
        if (next == parts.size() || mpi.finalized()) return;
        const auto until = std::chrono::steady_clock::now() + longest_withdrawal;
        for (; next < parts.size(); ++next) {
            MpiHandle& handle = parts[next].handle;
            int done = 0;
            MpiStatus status;
            if (function != nullptr || (!sending && mpi.Cancel(&handle) == 0))
                while (mpi.Test(&handle, &done, &status) == 0 && !done &&
                       std::chrono::steady_clock::now() < until)
                    sched_yield();
            if (!done && function == nullptr) mpi.Request_free(&handle);
            if (!done && keep) new std::shared_ptr<const void>(std::move(keep)); // MPI may still read it
        }
    }

    const MpiAbi& mpi;
    std::vector<Part> parts;
    std::size_t next = 0; // first part that is not complete
    std::size_t bytes;
    int peer;
    int tag;
    bool sending;
    bool may_be_shorter = false;    // a receive
    const char* function = nullptr; // the MPI function that began it; only for collectives
    std::shared_ptr<const void> keep;
};

// An MPI communicator of ours and those that were split from it. Freeing one is collective, and destructors
// run at different times on different ranks: so a dropped one is kept until the next split of its parent
// shows that all ranks have dropped it. MPI frees the remaining ones at its end.
struct CommunicatorTree {
    MpiHandle handle = 0;
    std::atomic<bool> dropped = false;                                  // perhaps by another thread
    std::int64_t splits = 0;                                            // made so far; the same on all ranks
    std::vector<int> members;                                           // ranks in the outermost communicator
    int rank = 0;                                                       // ours among them
    std::map<std::int64_t, std::shared_ptr<CommunicatorTree>> children; // by number of the split
};

class MpiCommunicator final : public Communicator {
  public:
    MpiCommunicator(MpiHandle parent, const std::string& library)
        : mpi_(MpiAbi::find(library)), watchdog_(watchdog_seconds()),
          tree_(std::make_shared<CommunicatorTree>()) {
        mpi_.check_running();
        refuse_other_threads();
        MpiHandle for_notices = 0;
        mpi_.check(mpi_.Comm_dup(parent, &messages_), "MPI_Comm_dup");
        mpi_.check(mpi_.Comm_dup(parent, &for_notices), "MPI_Comm_dup");
        for (MpiHandle handle : {messages_, for_notices})
            mpi_.check(mpi_.Comm_set_errhandler(handle, mpi_.errors_return), "MPI_Comm_set_errhandler");
        mpi_.check(mpi_.Comm_rank(messages_, &rank_), "MPI_Comm_rank");
        int size = 0;
        mpi_.check(mpi_.Comm_size(messages_, &size), "MPI_Comm_size");
        for (int rank = 0; rank < size; ++rank) members_.push_back(rank);
        notices_ = std::make_shared<MpiNotices>(mpi_, for_notices, rank_, size);
        ask_for_largest_tag();
        notices_->watch_processes(
            gather_values(*this, ProcessToken::of_this_process(), "making a communicator"));
    }

    // One that was split from another; not every library copies the attribute of the largest tag.
    MpiCommunicator(const MpiAbi& mpi, std::shared_ptr<CommunicatorTree> tree,
                    std::shared_ptr<MpiNotices> notices, int largest_tag)
        : mpi_(mpi), watchdog_(watchdog_seconds()), messages_(tree->handle), rank_(tree->rank),
          largest_tag_(largest_tag), members_(tree->members), tree_(std::move(tree)),
          notices_(std::move(notices)) {}

    ~MpiCommunicator() override { tree_->dropped = true; }
    bool takes_threads() const override { return takes_threads_; }
    void refuse_other_threads() const override {
        if (!may_use_mpi())
            throw TransportError(
                "MPI was started for one thread, and another one uses it; start it for several "
                "(MPI_THREAD_MULTIPLE; in Python MPI4PY_RC_THREAD_LEVEL=multiple), or use it from "
                "that thread alone");
    }

    int rank() const override { return rank_; }
    int size() const override { return static_cast<int>(members_.size()); }
    const char* transport() const override { return "mpi"; }
    bool can_share_memory() const override { return true; }
    int outermost(int rank) const override { return members_[rank]; }
    int largest_tag() const override { return largest_tag_; }

    std::shared_ptr<Communicator> split(int color, int key) override {
        refuse_other_threads();
        const Parts parts = agree_on_parts(*this, color, key, kept_children());
        free_dropped(parts.kept);
        const std::int64_t number = tree_->splits++;
        auto child = std::make_shared<CommunicatorTree>();
        mpi_.check(mpi_.Comm_split(messages_, color < 0 ? mpi_.undefined : color, key, &child->handle),
                   "MPI_Comm_split");
        if (color < 0) return nullptr;
        mpi_.check(mpi_.Comm_set_errhandler(child->handle, mpi_.errors_return), "MPI_Comm_set_errhandler");
        for (int member : parts.members) child->members.push_back(members_[member]);
        child->rank = parts.rank;
        tree_->children.emplace(number, child);
        return std::make_shared<MpiCommunicator>(mpi_, child, notices_, largest_tag_);
    }

    std::unique_ptr<Request> send(const void* data, std::size_t bytes, int to, int tag) override {
        check_envelope(to, tag);
        return start_send(data, bytes, to, tag);
    }
    std::unique_ptr<Request> receive(void* data, std::size_t bytes, int from, int tag) override {
        check_envelope(from, tag);
        return start_receive(data, bytes, from, tag, false);
    }
    std::unique_ptr<Request> receive_up_to(void* data, std::size_t most, int from, int tag) override {
        check_envelope(from, tag);
        return start_receive(data, most, from, tag, true);
    }

    bool test(Request& request) override {
        refuse_other_threads();
        auto& tested = static_cast<MpiRequest&>(request);
        advance(tested);
        if (tested.next == tested.parts.size()) return true;
        if (++tests_ % 8 == 0) notices_->read();
        notices_->throw_if_failed();
        return false;
    }

    void wait(std::span<std::unique_ptr<Request>> requests, const std::string& what) override {
        const MpiRequest* open = nullptr; // one that we wait for
        wait_until(
            [&] {
                bool moved = false;
                open = nullptr;
                for (auto& request : requests) {
                    if (!request) continue;
                    auto& waited = static_cast<MpiRequest&>(*request);
                    moved |= advance(waited);
                    if (waited.next < waited.parts.size() &&
                        (open == nullptr || (waited.peer >= 0 && left(waited.peer))))
                        open = &waited;
                }
                return open == nullptr ? Progress::done : moved ? Progress::moved : Progress::nothing;
            },
            [&] { return open->peer; },
            [&] {
                if (open->function != nullptr) return what + " (" + open->function + ")";
                if (open->tag == own_tag()) return what + " with rank " + std::to_string(open->peer);
                return what + " (" + (open->sending ? "message to" : "message from") + " rank " +
                       std::to_string(open->peer) + ", tag " + std::to_string(open->tag) + ", " +
                       std::to_string(open->bytes) + " bytes)";
            });
    }

    std::unique_ptr<Request> begin(const char* function, const BeginsInMpi& begins,
                                   std::shared_ptr<const void> keep) {
        notices_->throw_if_failed();
        refuse_other_threads();
        auto request = std::make_unique<MpiRequest>(mpi_, function, std::move(keep));
        MpiHandle handle = 0;
        mpi_.check(begins(mpi_, messages_, &handle), function);
        request->parts.push_back({handle, 0});
        return request;
    }

    // Testing costs about as much as yielding the core, which another rank on this core may need.
    bool rest(std::uint64_t seen, unsigned rounds) override {
        if (rounds < spins || rounds >= spins + yields) return Communicator::rest(seen, rounds);
        sched_yield();
        return false;
    }

    bool has_left(int rank, double waited) override {
        return waited > grace_seconds && left(rank) &&
               notices_->seconds_since_left(members_[rank]) > grace_seconds;
    }

    void barrier(std::string_view what) override {
        notices_->throw_if_failed();
        barrier_by_messages(collectives_, what);
    }
    void all_reduce_sum(std::span<std::int64_t> values, std::string_view what) override {
        notices_->throw_if_failed();
        all_reduce_sum_by_messages(collectives_, values, what);
    }
    std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine,
                                                   std::string_view what) override {
        notices_->throw_if_failed();
        return all_gather_by_messages(collectives_, mine, what);
    }
    std::vector<std::byte> broadcast(std::span<const std::byte> data, int root,
                                     std::string_view what) override {
        check_rank(root);
        notices_->throw_if_failed();
        return broadcast_by_messages(collectives_, data, root, what);
    }

    void fail(const std::string& cause) noexcept override { notices_->fail(cause); }
    std::vector<int> failed_alike(const std::string& cause) { return notices_->failed_alike(cause); }
    void stopping() { notices_->stopping(); }
    bool all_have_spoken() { return notices_->all_have_spoken(); }

    void check() override {
        if (may_use_mpi()) notices_->read(); // other threads still see notices that one thread has read
        notices_->throw_if_failed();
    }

    std::string why_not_from_devices(const std::string& kind) override {
        std::string trouble, error;
        try {
            trouble = why_mpi_takes_no_devices(mpi_, messages_, kind);
        } catch (const std::invalid_argument& bad) {
            trouble = error = bad.what();
        }
        // one rank that cannot is enough
        const auto all = all_gather(std::as_bytes(std::span(trouble)), "device memory in messages");
        if (!error.empty()) throw std::invalid_argument(error);
        for (std::size_t rank = 0; trouble.empty() && rank < all.size(); ++rank)
            if (!all[rank].empty())
                trouble = "on rank " + std::to_string(rank) + ", " +
                          std::string(reinterpret_cast<const char*>(all[rank].data()), all[rank].size());
        return trouble;
    }

    void leave() noexcept override { notices_->leave(); }
    void await_others_leaving() override { notices_->await_others_leaving(); }
    void free() override {
        leave();
        await_others_leaving();
        free_all(*tree_);
        mpi_.check(mpi_.Comm_free(&messages_), "MPI_Comm_free");
        notices_->free();
    }

  private:
    enum class Progress { nothing, moved, done };

    struct Collectives final : ControlChannel {
        explicit Collectives(MpiCommunicator& owner) : ControlChannel(owner), owner(owner) {}
        std::unique_ptr<Request> send(std::span<const std::byte> data, int to) override {
            return owner.start_send(data.data(), data.size(), to, owner.own_tag());
        }
        std::unique_ptr<Request> receive(std::span<std::byte> data, int from, bool may_be_shorter) override {
            return owner.start_receive(data.data(), data.size(), from, owner.own_tag(), may_be_shorter);
        }

        MpiCommunicator& owner;
    };

    bool may_use_mpi() const { return takes_threads_ || std::this_thread::get_id() == thread_ || adopts(); }
    // Adopts the calling thread if MPI reports it as its own: another thread may have made the communicators.
    bool adopts() const {
        if (!mpi_.of_this_thread()) return false;
        thread_ = std::this_thread::get_id();
        return true;
    }

    int own_tag() const { return largest_tag_ + 1; } // of the collectives

    std::unique_ptr<Request> start_send(const void* data, std::size_t bytes, int to, int tag) {
        refuse_other_threads();
        auto request = std::make_unique<MpiRequest>(mpi_, bytes, to, tag, true);
        const auto* from = static_cast<const std::byte*>(data);
        std::size_t done = 0;
        do {
            const std::size_t part = std::min(bytes - done, largest_part);
            MpiHandle handle = 0;
            mpi_.check(
                mpi_.Isend(from + done, static_cast<int>(part), mpi_.byte_type, to, tag, messages_, &handle),
                "MPI_Isend");
            request->parts.push_back({handle, part});
            done += part;
        } while (done < bytes);
        return request;
    }

    std::unique_ptr<Request> start_receive(void* data, std::size_t bytes, int from, int tag,
                                           bool may_be_shorter) {
        refuse_other_threads();
        auto request = std::make_unique<MpiRequest>(mpi_, bytes, from, tag, false);
        request->may_be_shorter = may_be_shorter;
        auto* into = static_cast<std::byte*>(data);
        std::size_t done = 0;
        do {
            const std::size_t part = std::min(bytes - done, largest_part);
            MpiHandle handle = 0;
            mpi_.check(mpi_.Irecv(into + done, static_cast<int>(part), mpi_.byte_type, from, tag, messages_,
                                  &handle),
                       "MPI_Irecv");
            request->parts.push_back({handle, part});
            done += part;
        } while (done < bytes);
        return request;
    }

    void check_envelope(int peer, int tag) const {
        check_message(peer, tag);
        notices_->throw_if_failed();
    }

    void ask_for_largest_tag() {
        const int* value = nullptr;
        int known = 0;
        mpi_.check(mpi_.Comm_get_attr(messages_, mpi_.tag_ub, &value, &known), "MPI_Comm_get_attr");
        if (!known) { // Open MPI reports larger tags for the world communicator only
            largest_tag_ = max_tag;
            return;
        }
        if (*value <= max_tag)
            throw TransportError("the MPI library has no tags above " + std::to_string(max_tag) +
                                 ", jali needs one more");
        largest_tag_ = *value - 1;
    }

    // Numbers of the children that this rank still uses.
    std::vector<std::int64_t> kept_children() const {
        std::vector<std::int64_t> kept;
        for (const auto& [number, child] : tree_->children)
            if (!child->dropped) kept.push_back(number);
        return kept;
    }

    // Frees the children that no rank uses any more, and first the children of each: all their ranks take
    // part.
    void free_dropped(const std::vector<std::int64_t>& kept) {
        std::erase_if(tree_->children, [&](const auto& entry) {
            const auto& [number, child] = entry;
            if (std::binary_search(kept.begin(), kept.end(), number)) return false;
            MpiCommunicator last(mpi_, child, notices_, largest_tag_);
            last.free_dropped(agree_on_parts(last, 0, 0, last.kept_children()).kept);
            mpi_.check(mpi_.Comm_free(&child->handle), "MPI_Comm_free");
            return true;
        });
    }

    // All ranks have made the same ones, in the same order.
    void free_all(CommunicatorTree& tree) {
        for (auto& [number, child] : tree.children) {
            free_all(*child);
            mpi_.check(mpi_.Comm_free(&child->handle), "MPI_Comm_free");
        }
        tree.children.clear();
    }

    // Makes progress in MPI; true if a part has completed.
    bool advance(MpiRequest& request) {
        bool moved = false;
        while (request.next < request.parts.size()) {
            auto& part = request.parts[request.next];
            int done = 0;
            MpiStatus status;
            const int code = mpi_.Test(&part.handle, &done, &status);
            if (code != 0) {
                ++request.next;
                if (request.function != nullptr) mpi_.check(code, request.function);
                mpi_.check(code, request.sending ? describe("sending", request, "to").c_str()
                                                 : describe("receiving", request, "from").c_str());
            }
            if (!done) return moved;
            ++request.next;
            moved = true;
            if (request.sending) continue;
            int count = -1;
            mpi_.Get_count(&status, mpi_.byte_type, &count);
            check_size(part.bytes, static_cast<std::size_t>(count), request.may_be_shorter, request.peer,
                       request.tag);
        }
        return moved;
    }

    static std::string describe(const char* verb, const MpiRequest& request, const char* direction) {
        return std::string(verb) + ' ' + std::to_string(request.bytes) + " bytes " + direction + " rank " +
               std::to_string(request.peer) + " with tag " + std::to_string(request.tag);
    }

    // Polls until done. `peer()` is the rank that must act, -1 for all ranks; `what()` describes the wait.
    template <class Poll, class Peer, class What>
    void wait_until(Poll check, Peer peer, What what) {
        refuse_other_threads();
        WaitLoop wait_loop(watchdog_);
        for (unsigned round = 1;; ++round) {
            const Progress seen = check();
            if (seen == Progress::done) return;
            if (seen == Progress::moved) {
                wait_loop.moved();
                round = 1;
            }
            if (round % 8 == 0) {
                notices_->read();
                notices_->throw_if_failed();
            }
            if (notices_->any_left() && wait_loop.waited() > grace_seconds)
                if (const int exited = exited_rank(peer(), wait_loop.waited()); exited >= 0)
                    throw RankFailure(members_[exited], "its program ended while rank " +
                                                            std::to_string(rank_) + " waited for " + what());
            if (round > 256) sched_yield(); // by now a rank that shares our core may need it
            wait_loop.check([&] {
                return "rank " + std::to_string(rank_) + " waited for " + what() + " (transport mpi)";
            });
        }
    }

    bool left(int rank) const { return notices_->left(members_[rank]); }

    int exited_rank(int peer, double waited) {
        for (int rank = 0; rank < size(); ++rank)
            if ((peer < 0 || peer == rank) && has_left(rank, waited)) return rank;
        return -1;
    }

    const MpiAbi& mpi_;
    const bool takes_threads_ = mpi_.takes_threads();
    mutable std::atomic<std::thread::id> thread_; // which uses MPI, where one does
    double watchdog_;
    MpiHandle messages_ = 0;
    int rank_ = 0;
    int largest_tag_ = max_tag;
    unsigned tests_ = 0;
    Collectives collectives_{*this};
    std::vector<int> members_; // ranks in the outermost communicator
    std::shared_ptr<CommunicatorTree> tree_;
    std::shared_ptr<MpiNotices> notices_;
};

} // namespace

std::shared_ptr<Communicator> make_mpi_communicator(std::uintptr_t handle, const std::string& library) {
    return std::make_shared<MpiCommunicator>(static_cast<MpiHandle>(handle), library);
}

bool is_of_mpi(const Communicator& communicator) {
    return dynamic_cast<const MpiCommunicator*>(&communicator) != nullptr;
}

std::unique_ptr<Request> begin_in_mpi(Communicator& communicator, const char* function,
                                      const BeginsInMpi& begin, std::shared_ptr<const void> keep) {
    auto* mpi = dynamic_cast<MpiCommunicator*>(&communicator);
    if (mpi == nullptr)
        throw std::logic_error(std::string(function) + " between ranks whose transport is '" +
                               communicator.transport() + "', not MPI");
    return mpi->begin(function, begin, std::move(keep));
}

std::vector<int> failed_alike(Communicator& communicator, const std::string& cause) {
    auto* mpi = dynamic_cast<MpiCommunicator*>(&communicator);
    return mpi ? mpi->failed_alike(cause) : std::vector<int>();
}

void stopping(Communicator& communicator) {
    if (auto* mpi = dynamic_cast<MpiCommunicator*>(&communicator)) mpi->stopping();
}

bool all_have_spoken(Communicator& communicator) {
    auto* mpi = dynamic_cast<MpiCommunicator*>(&communicator);
    return mpi == nullptr || mpi->all_have_spoken();
}

} // namespace jali
