#include "device_transports/custom_transport.hpp"
#include "messaging/failure_detector.hpp"
#include "messaging/message_collectives.hpp"
#include "messaging/split.hpp"
#include "messaging/wait_loop.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace jali {

namespace {

constexpr int checks_per_notice = 16;
constexpr auto between_checks = std::chrono::milliseconds(5);
constexpr double grace_seconds = 1; // for messages sent before a rank left; its notice may overtake them

// Tags are those of a context, of which each communicator has one for messages and one for its collectives.
constexpr std::uint64_t tag_of(std::uint64_t context, int tag) {
    return context << 16 | static_cast<std::uint64_t>(tag);
}
constexpr std::uint64_t notices_context = 0, first_context = 1;

struct CustomRequest final : Request {
    CustomRequest(std::unique_ptr<Request> inner, std::size_t bytes, int peer, int tag, bool sending,
                  bool may_be_shorter)
        : inner(std::move(inner)), bytes(bytes), peer(peer), tag(tag), sending(sending),
          may_be_shorter(may_be_shorter) {}
    std::unique_ptr<Request> inner; // none: complete
    std::size_t bytes;
    int peer, tag; // as the communicator numbers them
    bool sending, may_be_shorter;
};

// Notices between ranks, apart from their messages. Each rank sends one at most, so a receive from every
// other rank is posted once. One object serves a communicator and all that are split from it, which share its
// transport.
class Notices {
  public:
    explicit Notices(std::shared_ptr<CustomTransport> custom_transport)
        : custom_transport_(std::move(custom_transport)), incoming_(custom_transport_->size()),
          receives_(custom_transport_->size()), left_at_(custom_transport_->size()) {
        for (int from = 0; from < custom_transport_->size(); ++from)
            if (from != custom_transport_->rank())
                receives_[from] = custom_transport_->receive(&incoming_[from], sizeof(Notice), from,
                                                             tag_of(notices_context, 0));
    }

    CustomTransport& custom_transport() { return *custom_transport_; }
    std::uint64_t next_context = first_context; // this rank has no larger one

    // Reads all notices before it reports a death: a notice may contain the cause of the death.
    void read() {
        std::optional<RankFailure> death; // the first
        std::exception_ptr error;
        for (int from = 0; from < custom_transport_->size(); ++from) {
            if (!receives_[from] || !arrived(from, death, error)) continue;
            receives_[from].reset();
            const Notice& notice = incoming_[from];
            if (notice.kind == Notice::left) left_at_[from] = std::chrono::steady_clock::now();
            if (notice.kind == Notice::failed && failed_rank_ < 0 && !spoken_) {
                failed_rank_ = static_cast<int>(notice.rank);
                cause_ = notice.text;
            }
        }
        if (failed_rank_ >= 0) return;
        if (death)
            send_notice(Notice::failed, death->what(), death->rank);
        else if (error)
            std::rethrow_exception(error);
    }
    void throw_if_failed() const {
        if (failed_rank_ >= 0) throw RankFailure(failed_rank_, cause_);
    }
    // Called repeatedly by every wait; reads only now and then, since a test may need a lock that others
    // hold.
    void check() {
        const auto now = std::chrono::steady_clock::now();
        if (now - last_check_ >= between_checks) {
            last_check_ = now;
            read();
        }
        throw_if_failed();
    }
    bool left(int rank) const { return left_at_[rank].has_value(); }
    double seconds_since_left(int rank) const { // since the notice arrived here
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - *left_at_[rank]).count();
    }

    // `about` is this rank, or a rank that cannot send notices any more.
    void send_notice(std::int64_t kind, const std::string& text, int about) noexcept {
        if (std::exchange(spoken_, true) || failed_rank_ >= 0) return;
        notice_.kind = kind;
        notice_.rank = about;
        std::strncpy(notice_.text, text.c_str(), sizeof notice_.text - 1);
        try {
            std::vector<std::unique_ptr<Request>> sends;
            for (int k = 1; k < custom_transport_->size(); ++k)
                sends.push_back(custom_transport_->send(
                    &notice_, sizeof notice_, (custom_transport_->rank() + k) % custom_transport_->size(),
                    tag_of(notices_context, 0)));
            // A rank that does not receive any more delays this one by the limit at most.
            const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(2);
            for (auto& send : sends)
                while (!custom_transport_->test(*send) && std::chrono::steady_clock::now() < limit)
                    std::this_thread::sleep_for(std::chrono::microseconds(50));
        } catch (...) { // the transport itself has failed: others notice by their own waits
        }
        if (kind == Notice::failed) failed_rank_ = about, cause_ = text;
    }
    void fail(const std::string& cause) noexcept {
        send_notice(Notice::failed, cause, custom_transport_->rank());
    }
    void leave() noexcept { send_notice(Notice::left, "", custom_transport_->rank()); }

    void await_others() {
        WaitLoop wait_loop(std::numeric_limits<double>::infinity()); // the others may have hours of work left
        for (;;) {
            read();
            bool all = true;
            for (const auto& receive : receives_) all = all && !receive;
            if (all || failed_rank_ >= 0) return;
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            wait_loop.check_clock([] { return std::string(); });
        }
    }

  private:
    struct Notice {
        static constexpr std::int64_t failed = 1, left = 2;
        std::int64_t kind = 0, rank = -1;
        char text[1008] = {};
    };

    bool arrived(int from, std::optional<RankFailure>& death, std::exception_ptr& error) {
        try {
            return custom_transport_->test(*receives_[from]).has_value();
        } catch (const RankFailure& failure) {
            if (!death) death = failure;
            if (failure.rank == from) receives_[from].reset(); // it sends no notice any more
            return false;
        } catch (...) {
            if (!error) error = std::current_exception();
            return false;
        }
    }

    std::shared_ptr<CustomTransport> custom_transport_;
    std::vector<Notice> incoming_; // by rank
    std::vector<std::unique_ptr<Request>> receives_;
    std::vector<std::optional<std::chrono::steady_clock::time_point>> left_at_;
    Notice notice_;
    std::chrono::steady_clock::time_point last_check_{};
    bool spoken_ = false;
    int failed_rank_ = -1;
    std::string cause_;
};

class CustomCommunicator final : public Communicator {
  public:
    CustomCommunicator(std::shared_ptr<Notices> notices, std::vector<int> members, int rank,
                       int ranks_of_process = 1)
        : notices_(std::move(notices)), members_(std::move(members)), rank_(rank),
          ranks_of_process_(ranks_of_process), name_(notices_->custom_transport().name()),
          context_(notices_->next_context), watchdog_(watchdog_seconds()) {
        notices_->next_context += 2;
    }

    int rank() const override { return rank_; }
    int size() const override { return static_cast<int>(members_.size()); }
    const char* transport() const override { return name_.c_str(); }
    int outermost(int rank) const override { return members_[rank]; }
    int ranks_of_process() const override { return ranks_of_process_; }
    bool takes_threads() const override { return false; } // they share a transport
    bool can_share_memory() const override { return notices_->custom_transport().of_processes(); }
    int largest_tag() const override { return max_tag; }

    std::shared_ptr<Communicator> split(int color, int key) override {
        const ProcessToken token = ProcessToken::of_this_process();
        const std::string_view bytes(reinterpret_cast<const char*>(&token), sizeof token);
        const auto process = static_cast<std::int64_t>(std::hash<std::string_view>{}(bytes));
        const Parts parts = agree_on_parts(*this, color, key, {&process, 1},
                                           static_cast<std::int64_t>(notices_->next_context));
        // The most ranks of one process: each of the other processes has at least one.
        const int most = size() - static_cast<int>(parts.kept.size()) + 1;
        // Groups that are made at once have no rank in common.
        notices_->next_context = static_cast<std::uint64_t>(parts.largest);
        if (color < 0) {
            notices_->next_context += 2;
            return nullptr;
        }
        std::vector<int> members;
        for (const int member : parts.members) members.push_back(members_[member]);
        return std::make_shared<CustomCommunicator>(notices_, std::move(members), parts.rank,
                                                    std::max(most, ranks_of_process_));
    }

    std::unique_ptr<Request> send(const void* data, std::size_t bytes, int to, int tag) override {
        check_envelope(to, tag);
        return start_send(data, bytes, to, context_, tag);
    }
    std::unique_ptr<Request> receive(void* data, std::size_t bytes, int from, int tag) override {
        check_envelope(from, tag);
        return start_receive(data, bytes, from, context_, tag, false);
    }
    std::unique_ptr<Request> receive_up_to(void* data, std::size_t most, int from, int tag) override {
        check_envelope(from, tag);
        return start_receive(data, most, from, context_, tag, true);
    }

    bool test(Request& request) override {
        if (check(static_cast<CustomRequest&>(request))) return true;
        if (++tests_ % checks_per_notice == 0) notices_->check();
        return false;
    }

    void wait(std::span<std::unique_ptr<Request>> requests, const std::string& what) override {
        WaitLoop wait_loop(watchdog_);
        for (unsigned round = 0;; ++round) {
            const CustomRequest* open = nullptr; // one that we wait for
            bool moved = false;
            for (auto& request : requests) {
                if (!request) continue;
                auto& waited = static_cast<CustomRequest&>(*request);
                const bool was_open = waited.inner != nullptr;
                if (check(waited))
                    moved |= was_open;
                else if (open == nullptr || notices_->left(members_[waited.peer]))
                    open = &waited;
            }
            if (open == nullptr) return;
            if (moved) {
                wait_loop.moved();
                round = 0;
            }
            const auto waiting = [&] {
                return what + (open->sending ? " (message to" : " (message from") + " rank " +
                       std::to_string(open->peer) + ", tag " + std::to_string(open->tag) + ", " +
                       std::to_string(open->bytes) + " bytes)";
            };
            if (round % checks_per_notice == checks_per_notice - 1) {
                notices_->check();
                if (has_left(open->peer, wait_loop.waited()))
                    throw RankFailure(outermost(open->peer), "its program ended while rank " +
                                                                 std::to_string(rank_) + " waited for " +
                                                                 waiting());
            }
            const auto described = [&] {
                return "rank " + std::to_string(rank_) + " waited for " + waiting() + " (transport " + name_ +
                       ")";
            };
            rest(0, round) ? wait_loop.check_clock(described) : wait_loop.check(described);
        }
    }

    bool has_left(int rank, double waited) override {
        const int member = members_[rank];
        return waited > grace_seconds && notices_->left(member) &&
               notices_->seconds_since_left(member) > grace_seconds;
    }

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

    void fail(const std::string& cause) noexcept override { notices_->fail(cause); }
    void check() override { notices_->check(); }
    void leave() noexcept override { notices_->leave(); }
    void await_others_leaving() override { notices_->await_others(); }

  private:
    struct Collectives final : ControlChannel {
        explicit Collectives(CustomCommunicator& owner) : ControlChannel(owner), owner(owner) {}
        std::unique_ptr<Request> send(std::span<const std::byte> data, int to) override {
            return owner.start_send(data.data(), data.size(), to, owner.context_ + 1, 0);
        }
        std::unique_ptr<Request> receive(std::span<std::byte> data, int from, bool may_be_shorter) override {
            return owner.start_receive(data.data(), data.size(), from, owner.context_ + 1, 0, may_be_shorter);
        }

        CustomCommunicator& owner;
    };

    std::unique_ptr<Request> start_send(const void* data, std::size_t bytes, int to, std::uint64_t context,
                                        int tag) {
        return std::make_unique<CustomRequest>(
            notices_->custom_transport().send(data, bytes, members_[to], tag_of(context, tag)), bytes, to,
            tag, true, false);
    }
    std::unique_ptr<Request> start_receive(void* data, std::size_t bytes, int from, std::uint64_t context,
                                           int tag, bool may_be_shorter) {
        return std::make_unique<CustomRequest>(
            notices_->custom_transport().receive(data, bytes, members_[from], tag_of(context, tag)), bytes,
            from, tag, false, may_be_shorter);
    }

    bool check(CustomRequest& request) {
        if (!request.inner) return true;
        std::optional<std::size_t> bytes;
        try {
            bytes = notices_->custom_transport().test(*request.inner);
        } catch (...) { // the failed rank, or one that failed before it, may have sent the cause
            notices_->read();
            notices_->throw_if_failed();
            throw;
        }
        if (!bytes) return false;
        request.inner.reset();
        if (!request.sending)
            check_size(request.bytes, *bytes, request.may_be_shorter, request.peer, request.tag);
        return true;
    }

    void check_envelope(int peer, int tag) const {
        check_message(peer, tag);
        notices_->throw_if_failed();
    }

    std::shared_ptr<Notices> notices_;
    std::vector<int> members_; // ranks of the transport
    int rank_;
    int ranks_of_process_;
    std::string name_;
    std::uint64_t context_;
    double watchdog_;
    unsigned tests_ = 0;
    Collectives collectives_{*this};
};

} // namespace

std::shared_ptr<Communicator> make_custom_communicator(std::shared_ptr<CustomTransport> custom_transport) {
    const int rank = custom_transport->rank(), size = custom_transport->size();
    if (size < 1 || rank < 0 || rank >= size)
        throw std::invalid_argument("transport '" + custom_transport->name() + "' says that this is rank " +
                                    std::to_string(rank) + " of " + std::to_string(size));
    std::vector<int> members;
    for (int r = 0; r < size; ++r) members.push_back(r);
    return std::make_shared<CustomCommunicator>(std::make_shared<Notices>(std::move(custom_transport)),
                                                std::move(members), rank);
}

} // namespace jali
