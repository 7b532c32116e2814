// Ranks that are MPI processes.
//
// Works on two duplicates of the given communicator: one for messages and collectives, one for notices ("this
// rank failed", "this rank has ended"). A receive for notices is always posted, and every wait loop looks at
// it, so nothing here ever blocks inside MPI: collectives are the non-blocking ones. Progress is made by the
// calling thread only.
#include "transport/communicator.hpp"
#include "transport/mpi_abi.hpp"
#include "transport/patience.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include <sched.h>

namespace jali {

namespace {

constexpr std::size_t largest_part = std::size_t{1} << 30; // counts are ints: longer messages go in parts
constexpr double grace_seconds = 3; // for messages that a rank sent before it left; notices may overtake them

struct Notice {
    enum Kind : std::int32_t { failed = 1, left = 2 };
    std::int32_t kind;
    std::int32_t rank;
    char text[1016];
};

struct MpiRequest final : Request {
    struct Part {
        MpiHandle handle;
        std::size_t bytes;
    };

    MpiRequest(const MpiAbi& mpi, std::size_t bytes, int peer, int tag, bool sending)
        : mpi(mpi), bytes(bytes), peer(peer), tag(tag), sending(sending) {}

    // A rank that gives up: what has not begun to arrive is withdrawn, the rest is left to the library.
    ~MpiRequest() override {
        if (next == parts.size() || mpi.finalized()) return;
        for (; next < parts.size(); ++next) {
            if (!sending) mpi.Cancel(&parts[next].handle);
            mpi.Request_free(&parts[next].handle);
        }
    }

    const MpiAbi& mpi;
    std::vector<Part> parts;
    std::size_t next = 0; // first part that is not complete
    std::size_t bytes;
    int peer;
    int tag;
    bool sending;
};

class MpiCommunicator final : public Communicator {
  public:
    MpiCommunicator(MpiHandle parent, const std::string& library)
        : mpi_(MpiAbi::find(library)), watchdog_(watchdog_seconds()), incoming_(std::make_unique<Notice>()) {
        mpi_.check_running();
        mpi_.check(mpi_.Comm_dup(parent, &messages_), "MPI_Comm_dup");
        mpi_.check(mpi_.Comm_dup(parent, &notices_), "MPI_Comm_dup");
        for (MpiHandle handle : {messages_, notices_})
            mpi_.check(mpi_.Comm_set_errhandler(handle, mpi_.errors_return), "MPI_Comm_set_errhandler");
        mpi_.check(mpi_.Comm_rank(messages_, &rank_), "MPI_Comm_rank");
        mpi_.check(mpi_.Comm_size(messages_, &size_), "MPI_Comm_size");
        left_.resize(size_, false);
        if (size_ > 1) listen();
    }

    // The duplicates stay: freeing them is collective, and destructors run at different times on different
    // ranks.
    ~MpiCommunicator() override {
        if (!listening_) return;
        if (!mpi_.finalized()) stop_listening();
        if (listening_) static_cast<void>(incoming_.release()); // MPI may still write to it
    }

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    const char* transport() const override { return "mpi"; }

    std::unique_ptr<Request> send(const void* data, std::size_t bytes, int to, int tag) override {
        check_message(to, tag);
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

    std::unique_ptr<Request> receive(void* data, std::size_t bytes, int from, int tag) override {
        check_message(from, tag);
        auto request = std::make_unique<MpiRequest>(mpi_, bytes, from, tag, false);
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

    bool test(Request& request) override {
        auto& tested = static_cast<MpiRequest&>(request);
        advance(tested);
        if (tested.next == tested.parts.size()) return true;
        if (++tests_ % 8 == 0) read_notices();
        throw_if_failed();
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
                    if (waited.next < waited.parts.size() && (open == nullptr || left_[waited.peer]))
                        open = &waited;
                }
                return open == nullptr ? Look::done : moved ? Look::moved : Look::nothing;
            },
            [&] { return open->peer; },
            [&] {
                return what + " (" + (open->sending ? "message to" : "message from") + " rank " +
                       std::to_string(open->peer) + ", tag " + std::to_string(open->tag) + ", " +
                       std::to_string(open->bytes) + " bytes)";
            });
    }

    bool has_left(int rank, double waited) override { return left_[rank] && waited > grace_seconds; }

    void barrier() override {
        collective("a barrier", [&](MpiHandle* request) { return mpi_.Ibarrier(messages_, request); });
    }

    void all_reduce_sum(std::span<std::int64_t> values) override {
        if (size_ == 1) return;
        // Own buffers, which stay with MPI if the wait is broken off.
        auto buffers = std::make_unique<std::vector<std::int64_t>>(2 * values.size());
        std::copy(values.begin(), values.end(), buffers->begin());
        std::int64_t* mine = buffers->data();
        std::int64_t* total = mine + values.size();
        for (std::size_t done = 0; done < values.size(); done += largest_part) {
            const int part = static_cast<int>(std::min(values.size() - done, largest_part));
            collective(
                "a sum",
                [&](MpiHandle* request) {
                    return mpi_.Iallreduce(mine + done, total + done, part, mpi_.int64_type, mpi_.sum,
                                           messages_, request);
                },
                buffers);
        }
        std::copy(total, total + values.size(), values.begin());
    }

    std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override {
        struct Buffers {
            std::int64_t size;
            std::vector<std::int64_t> sizes;
            std::vector<int> counts, starts;
            std::vector<std::byte> mine, all;
        };
        auto buffers = std::make_unique<Buffers>();
        Buffers& b = *buffers;
        b.size = static_cast<std::int64_t>(mine.size());
        b.sizes.resize(size_);
        collective(
            "an all-gather",
            [&](MpiHandle* request) {
                return mpi_.Iallgather(&b.size, 1, mpi_.int64_type, b.sizes.data(), 1, mpi_.int64_type,
                                       messages_, request);
            },
            buffers);
        std::int64_t total = 0;
        for (auto size : b.sizes) total += size;
        std::vector<std::vector<std::byte>> result(size_);
        if (total > std::numeric_limits<int>::max()) { // offsets are ints too
            for (int root = 0; root < size_; ++root) result[root] = broadcast(mine, root);
            return result;
        }
        b.mine.assign(mine.begin(), mine.end());
        b.all.resize(total);
        int start = 0;
        for (auto size : b.sizes) {
            b.counts.push_back(static_cast<int>(size));
            b.starts.push_back(start);
            start += static_cast<int>(size);
        }
        collective(
            "an all-gather",
            [&](MpiHandle* request) {
                return mpi_.Iallgatherv(b.mine.data(), b.counts[rank_], mpi_.byte_type, b.all.data(),
                                        b.counts.data(), b.starts.data(), mpi_.byte_type, messages_, request);
            },
            buffers);
        for (int rank = 0; rank < size_; ++rank) {
            const auto first = b.all.begin() + b.starts[rank];
            result[rank].assign(first, first + b.counts[rank]);
        }
        return result;
    }

    std::vector<std::byte> broadcast(std::span<const std::byte> data, int root) override {
        check_rank(root);
        struct Buffers {
            std::int64_t size = 0;
            std::vector<std::byte> data;
        };
        auto buffers = std::make_unique<Buffers>();
        Buffers& b = *buffers;
        if (rank_ == root) {
            b.size = static_cast<std::int64_t>(data.size());
            b.data.assign(data.begin(), data.end());
        }
        collective(
            "a broadcast",
            [&](MpiHandle* request) {
                return mpi_.Ibcast(&b.size, 1, mpi_.int64_type, root, messages_, request);
            },
            buffers);
        b.data.resize(b.size);
        for (std::size_t done = 0; done < b.data.size(); done += largest_part) {
            const int part = static_cast<int>(std::min(b.data.size() - done, largest_part));
            collective(
                "a broadcast",
                [&](MpiHandle* request) {
                    return mpi_.Ibcast(b.data.data() + done, part, mpi_.byte_type, root, messages_, request);
                },
                buffers);
        }
        return std::move(b.data);
    }

    void fail(const std::string& cause) noexcept override {
        if (failed_ || leaving_) return;
        failed_ = true;
        failed_rank_ = rank_;
        cause_ = cause;
        tell(Notice::failed, cause);
    }

    void check() override {
        read_notices();
        throw_if_failed();
    }

    void leave() noexcept override {
        if (leaving_ || failed_ || mpi_.finalized()) return;
        leaving_ = true;
        tell(Notice::left, "");
    }

    void await_others_leaving() override {
        if (mpi_.finalized()) return;
        Patience patience(std::numeric_limits<double>::infinity()); // the others may have hours of work left
        for (int round = 0; listening_ && !failed_; ++round) {
            read_notices();
            if (round < 1000)
                sched_yield();
            else
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            patience.look_at_clock([] { return std::string(); });
        }
        if (listening_) stop_listening();
    }

  private:
    enum class Look { nothing, moved, done };

    void check_rank(int rank) const {
        if (rank < 0 || rank >= size_)
            throw std::invalid_argument("rank " + std::to_string(rank) + " does not exist among " +
                                        std::to_string(size_));
    }

    void check_message(int peer, int tag) const {
        check_rank(peer);
        if (tag < 0 || tag > max_tag)
            throw std::invalid_argument("message tag " + std::to_string(tag) + " is not in 0.." +
                                        std::to_string(max_tag));
        throw_if_failed();
    }

    void throw_if_failed() const {
        if (failed_) throw RankFailure(failed_rank_, cause_);
    }

    // Lets MPI work; true if a part has completed.
    bool advance(MpiRequest& request) {
        bool moved = false;
        while (request.next < request.parts.size()) {
            auto& part = request.parts[request.next];
            int done = 0;
            MpiStatus status;
            const int code = mpi_.Test(&part.handle, &done, &status);
            if (code != 0) {
                ++request.next;
                mpi_.check(code, request.sending ? describe("sending", request, "to").c_str()
                                                 : describe("receiving", request, "from").c_str());
            }
            if (!done) return moved;
            ++request.next;
            moved = true;
            if (request.sending) continue;
            int count = -1;
            mpi_.Get_count(&status, mpi_.byte_type, &count);
            if (static_cast<std::size_t>(count) != part.bytes)
                throw TransportError(
                    "rank " + std::to_string(rank_) + " expected " + std::to_string(part.bytes) +
                    " bytes from rank " + std::to_string(request.peer) + " with tag " +
                    std::to_string(request.tag) + ", but " + std::to_string(count) + " came");
        }
        return moved;
    }

    static std::string describe(const char* verb, const MpiRequest& request, const char* direction) {
        return std::string(verb) + ' ' + std::to_string(request.bytes) + " bytes " + direction + " rank " +
               std::to_string(request.peer) + " with tag " + std::to_string(request.tag);
    }

    // Looks until done. `peer()` is the rank that must act, -1 for all of them; `what()` says what is waited
    // for.
    template <class LookAround, class Peer, class What>
    void wait_until(LookAround look, Peer peer, What what) {
        Patience patience(watchdog_);
        for (unsigned round = 1;; ++round) {
            const Look seen = look();
            if (seen == Look::done) return;
            if (seen == Look::moved) {
                patience.moved();
                round = 1;
            }
            if (round % 8 == 0) {
                read_notices();
                throw_if_failed();
            }
            if (any_left_ && patience.waited() > grace_seconds)
                if (const int gone = departed(peer()); gone >= 0)
                    throw RankFailure(gone, "its program ended while rank " + std::to_string(rank_) +
                                                " waited for " + what());
            if (round > 256) sched_yield(); // by now a rank that shares our core may need it
            patience.look([&] {
                return "rank " + std::to_string(rank_) + " waited for " + what() + " (transport mpi)";
            });
        }
    }

    int departed(int peer) const {
        for (int rank = 0; rank < size_; ++rank)
            if ((peer < 0 || peer == rank) && left_[rank]) return rank;
        return -1;
    }

    template <class Start>
    void collective(const char* name, Start start) {
        throw_if_failed();
        MpiHandle request = 0;
        mpi_.check(start(&request), name);
        wait_until(
            [&] {
                int done = 0;
                MpiStatus status;
                mpi_.check(mpi_.Test(&request, &done, &status), name);
                return done ? Look::done : Look::nothing;
            },
            [] { return -1; }, [&] { return std::string(name) + " with all ranks"; });
    }

    // The same with buffers that MPI keeps for ever if the wait is broken off.
    template <class Start, class Buffers>
    void collective(const char* name, Start start, std::unique_ptr<Buffers>& buffers) {
        try {
            collective(name, start);
        } catch (...) {
            static_cast<void>(buffers.release());
            throw;
        }
    }

    void listen() {
        mpi_.check(mpi_.Irecv(incoming_.get(), sizeof(Notice), mpi_.byte_type, mpi_.any_source, 0, notices_,
                              &notice_request_),
                   "MPI_Irecv");
        listening_ = true;
    }

    void stop_listening() {
        mpi_.Cancel(&notice_request_);
        for (int i = 0; i < 1000 && listening_; ++i) {
            int done = 0;
            MpiStatus status;
            if (mpi_.Test(&notice_request_, &done, &status) != 0 || done) listening_ = false;
        }
    }

    void read_notices() {
        while (listening_) {
            int done = 0;
            MpiStatus status;
            mpi_.check(mpi_.Test(&notice_request_, &done, &status), "listening for failures");
            if (!done) return;
            listening_ = false;
            const Notice notice = *incoming_;
            if (notice.kind == Notice::failed && !failed_) {
                failed_ = true;
                failed_rank_ = notice.rank;
                cause_ = notice.text;
            } else if (notice.kind == Notice::left) {
                left_[notice.rank] = true;
                ++any_left_;
            }
            if (any_left_ < size_ - 1)
                listen(); // the last word of the last other rank has been heard otherwise
        }
    }

    // Sends a notice to all others. Short messages leave at once; those that do not are left to the library.
    void tell(Notice::Kind kind, const std::string& text) noexcept {
        auto* notice = new Notice{}; // kept: MPI may still read it
        notice->kind = kind;
        notice->rank = rank_;
        std::strncpy(notice->text, text.c_str(), sizeof notice->text - 1);
        std::vector<MpiHandle> requests;
        for (int k = 1; k < size_; ++k) {
            MpiHandle request = 0;
            if (mpi_.Isend(notice, sizeof(Notice), mpi_.byte_type, (rank_ + k) % size_, 0, notices_,
                           &request) == 0)
                requests.push_back(request);
        }
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(2);
        for (auto& request : requests) {
            int done = 0;
            MpiStatus status;
            while (mpi_.Test(&request, &done, &status) == 0 && !done &&
                   std::chrono::steady_clock::now() < limit)
                sched_yield();
        }
    }

    const MpiAbi& mpi_;
    double watchdog_;
    MpiHandle messages_ = 0, notices_ = 0;
    int rank_ = 0, size_ = 0;
    unsigned tests_ = 0;

    std::unique_ptr<Notice> incoming_;
    MpiHandle notice_request_ = 0;
    bool listening_ = false;

    bool failed_ = false;
    bool leaving_ = false;
    int failed_rank_ = -1;
    std::string cause_;
    int any_left_ = 0;
    std::vector<bool> left_;
};

} // namespace

std::shared_ptr<Communicator> make_mpi_communicator(std::uintptr_t handle, const std::string& library) {
    return std::make_shared<MpiCommunicator>(static_cast<MpiHandle>(handle), library);
}

} // namespace jali
