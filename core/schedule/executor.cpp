#include "schedule/executor.hpp"
#include "device/timeline.hpp"
#include "messaging/wait_loop.hpp"
#include "schedule/copy_and_reduce.hpp"
#include "schedule/graph.hpp"

#include <algorithm>
#include <exception>
#include <limits>
#include <mutex>
#include <type_traits>
#include <utility>

namespace jali {

namespace {

// While there is work, one message is tested for each step and for each so many bytes.
constexpr std::size_t bytes_per_check = std::size_t{1} << 14;
constexpr std::int64_t least_wait = 1000; // ns that are worth a span

Work bytes_only(std::size_t bytes) {
    const auto n = static_cast<std::int64_t>(bytes);
    return {0, n, n, 0};
}

Phase phase_of(const Step& step, Phase of_action) {
    return step.mark.role ? jali::phase_of(*step.mark.role) : of_action;
}

// Bytes that are read and written.
Work work_of(const Copy& copy) {
    std::size_t bytes = 0;
    for (const auto& spec : copy.specs) bytes += 2 * spec.to.bytes;
    return bytes_only(bytes);
}

Work work_of(const Reduce& reduce) {
    std::size_t bytes = 0;
    for (const auto& spec : reduce.specs) bytes += spec.into.bytes * (spec.from.size() + 1);
    return bytes_only(bytes);
}

} // namespace

// The running schedules of one thread. A thread that waits for one schedule makes progress on the others:
// another rank may wait for them in another order.
struct Executor::Running {
    std::mutex mutex; // a schedule may be aborted by another thread
    std::vector<State*> states;

    static const std::shared_ptr<Running>& of_this_thread() {
        static thread_local const auto running = std::make_shared<Running>();
        return running;
    }
};

struct Executor::State {
    State(std::shared_ptr<const Schedule> of, std::string name, std::shared_ptr<ThreadPool> threads)
        : schedule(std::move(of)), what(std::move(name)), pool(std::move(threads)), graph(*schedule),
          requests(graph.messages()) {
        ready.resize(graph.size());
        in_flight.reserve(graph.messages());
        for (int k = 0; k < graph.size(); ++k) {
            tasks.push_back({&schedule->steps()[graph.port(k).step], graph.port(k).part});
            if (graph.waits_for()[k] == 0) first.push_back(k);
        }
        progress = [this] {
            check(in_flight.size());
            while (!ready.empty() && ready.first() < graph.first_kernel()) run(ready.first());
        };
    }

    ~State() { leave(); }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    struct Task {
        const Step* step;
        int part;
    };

    std::shared_ptr<const Schedule> schedule;
    std::string what;
    std::shared_ptr<ThreadPool> pool;
    Graph graph;
    std::vector<Task> tasks;                        // numbered as in the graph
    std::vector<std::int32_t> first;                // what is ready at the start
    std::vector<std::unique_ptr<Request>> requests; // of messages
    Progress progress;

    // Of the present run:
    std::vector<std::int32_t> open; // open dependencies of each task
    NumberSet ready;
    std::vector<std::int32_t> in_flight; // messages
    std::size_t next_check = 0;
    int remaining = 0;
    std::vector<std::byte*> buffers;
    std::vector<Communicator*> transports, distinct;
    int first_tag = 0;
    std::vector<std::int64_t> begun; // of messages, in ns; empty unless recorded
    std::shared_ptr<Running> among;  // set while running
    bool computing = false;          // a kernel is under way
    bool busy = false;               // further down on this thread's stack
    std::exception_ptr error;        // of progress made while the thread waited for another schedule
    WaitLoop since_moved{std::numeric_limits<double>::infinity()}; // for tests without a wait

    Communicator& transport_of_library(int library) {
        return *transports[transports.size() == 1 ? 0 : library];
    }
    std::byte* at(const Region& region) { return buffers[region.buffer] + region.offset; }

    std::optional<Envelope> envelope(int message) const { return envelope_of(*tasks[message].step); }
    Communicator& transport_of_message(int message) {
        if (transports.size() == 1) return *transports[0];
        const auto* whole = std::get_if<LibraryCollective>(&tasks[message].step->action);
        return transport_of_library(whole ? whole->library : envelope(message)->library);
    }

    void happened(int task) {
        if (--open[task] == 0) ready.insert(task);
    }

    void ended(int task) {
        --remaining;
        for (int follower : graph.followers(task)) happened(follower);
    }

    // Tests some of the messages in flight, in turn. True if one has ended.
    bool check(std::size_t at_most) {
        bool moved = false;
        for (auto left = std::min(at_most, in_flight.size()); left > 0; --left) {
            if (next_check >= in_flight.size()) next_check = 0;
            const int message = in_flight[next_check];
            if (!transport_of_message(message).test(*requests[message])) {
                ++next_check;
                continue;
            }
            requests[message].reset();
            if (!begun.empty()) note_message(message);
            in_flight[next_check] = in_flight.back();
            in_flight.pop_back();
            ended(message);
            moved = true;
        }
        return moved;
    }

    void check_after(std::size_t bytes) {
        if (!in_flight.empty()) check(1 + bytes / bytes_per_check);
    }

    void start_messages() {
        while (!ready.empty() && ready.first() < graph.messages()) run(ready.first());
    }

    // After a block of a long copy or reduction.
    void breathe(std::size_t bytes) {
        check_after(bytes);
        start_messages();
    }

    void note_message(int message) {
        Timeline* const timeline = Timeline::of_this_thread();
        if (timeline == nullptr || begun[message] == 0) return;
        const std::optional<Envelope> e = envelope(message);
        const Step& step = *tasks[message].step;
        timeline->add(phase_of(step, e && e->sends ? Phase::send : Phase::receive), Timeline::message_track,
                      timeline->number_of(step.name), begun[message], Timeline::now(),
                      bytes_only(region_of_message(step).bytes));
    }

    void note_wait(std::int64_t begin, std::int64_t end) {
        Timeline* const timeline = Timeline::of_this_thread();
        if (timeline != nullptr && end - begin >= least_wait)
            timeline->add(Phase::wait, Timeline::host_track, timeline->number_of("messages"), begin, end);
    }

    // A step that is ready.
    void run(int task) {
        ready.erase(task);
        const Step& step = *tasks[task].step;
        const auto between = [this](std::size_t bytes) { breathe(bytes); };
        if (const auto* a = std::get_if<LibraryCollective>(&step.action)) {
            requests[task] = a->begin(transport_of_library(a->library), buffers);
            started(task);
        } else if (task < graph.messages()) {
            // signals are empty messages, which order earlier steps before later ones
            const auto [sends, signals, peer, tag, library] = *envelope(task);
            const Region where = region_of_message(step);
            std::byte* const data = signals ? nullptr : at(where);
            requests[task] =
                sends ? transport_of_library(library).send(data, where.bytes, peer, tag + first_tag)
                      : transport_of_library(library).receive(data, where.bytes, peer, tag + first_tag);
            started(task);
        } else if (const auto* a = std::get_if<Copy>(&step.action)) {
            const HostSpan span(phase_of(step, Phase::copy), step.name, watched() ? work_of(*a) : Work{});
            std::size_t bytes = 0;
            for (const auto& spec : a->specs) {
                if (pool && pool->threads() > 1 && !computing && spec.to.bytes > bytes_per_block)
                    copy_by_threads(spec);
                else
                    run_copy(spec, buffers, between);
                bytes += std::min(bytes_per_block, spec.to.bytes);
            }
            ended(task);
            check_after(bytes);
        } else if (const auto* a = std::get_if<Reduce>(&step.action)) {
            const HostSpan span(phase_of(step, Phase::reduce), step.name, watched() ? work_of(*a) : Work{});
            std::size_t bytes = 0;
            for (const auto& spec : a->specs) {
                run_reduce(a->how, spec, buffers, between);
                bytes += std::min(bytes_per_block, spec.into.bytes) * spec.from.size();
            }
            ended(task);
            check_after(bytes);
        } else {
            computing = true; // with the pool, which does not nest
            std::get<Kernel>(step.action).body(tasks[task].part, buffers, &progress);
            computing = false;
            ended(task);
            check_after(0);
        }
    }

    void copy_by_threads(const CopySpec& spec) {
        const CopyBlocks blocks(spec, buffers);
        const ThreadPool::Progress check_around = [this] { breathe(bytes_per_block); };
        pool->parallel_for(
            0, static_cast<std::int64_t>(blocks.count), 1,
            [&](int, std::int64_t begin, std::int64_t end) {
                for (auto block = begin; block < end; ++block) blocks.copy(static_cast<std::size_t>(block));
            },
            &check_around);
    }

    void started(int message) {
        if (!begun.empty()) begun[message] = Timeline::now();
        in_flight.push_back(message);
        if (const int next = graph.next_of_envelope(message); next >= 0) happened(next);
    }

    // Runs ready tasks and the tasks that they enable, until none is ready; kernels only if `kernels`. True
    // if a task ran or ended.
    bool advance(bool kernels) {
        bool moved = false;
        for (;;) {
            while (!ready.empty() && (kernels || ready.first() < graph.first_kernel())) {
                run(ready.first());
                moved = true;
            }
            if (!check(in_flight.size())) return moved;
            moved = true;
        }
    }

    // "step 'receive' of a halo exchange (message from rank 1, tag 3, 32 bytes) (transport thread)"
    std::string describe_wait() {
        const int message = *std::min_element(in_flight.begin(), in_flight.end());
        const std::size_t bytes = region_of_message(*tasks[message].step).bytes;
        const Communicator& transport = transport_of_message(message);
        std::string of_whom = " (a collective of its own with all ranks";
        if (const std::optional<Envelope> e = envelope(message))
            of_whom = std::string(e->signals ? " (signal" : " (message") + (e->sends ? " to" : " from") +
                      " rank " + std::to_string(e->peer) + ", tag " + std::to_string(e->tag + first_tag) +
                      ", " + std::to_string(bytes) + " bytes";
        return "rank " + std::to_string(transport.rank()) + " waited for step " +
               quoted_name(*schedule, graph.port(message)) + (what.empty() ? "" : " of " + what) + of_whom +
               ") (transport " + transport.transport() + ")" +
               (in_flight.size() == 1 ? std::string()
                                      : " and " + std::to_string(in_flight.size() - 1) + " other messages");
    }

    // A rank whose program has ended although our message with it is pending, or -1.
    int exited_rank(double waited) {
        for (int message : in_flight) {
            Communicator& by = transport_of_message(message);
            const std::optional<Envelope> e = envelope(message);
            for (int rank = e ? e->peer : 0; rank < (e ? e->peer + 1 : by.size()); ++rank)
                if (by.has_left(rank, waited)) return by.outermost(rank);
        }
        return -1;
    }

    void fail_if_alone(int exited) {
        if (exited >= 0) throw RankFailure(exited, "its program ended while " + describe_wait());
        const bool alone = std::ranges::all_of(distinct, [](auto* t) { return t->size() == 1; });
        if (alone &&
            std::ranges::all_of(in_flight, [this](int message) { return envelope(message).has_value(); }))
            throw TransportError("the only rank waits for itself: " + describe_wait());
    }

    void join() {
        among = Running::of_this_thread();
        std::lock_guard lock(among->mutex);
        among->states.push_back(this);
    }

    void leave() {
        if (!among) return;
        std::lock_guard lock(among->mutex);
        std::erase(among->states, this);
        among.reset();
    }

    // Advances the other schedules of this thread, up to their kernels. True if one has advanced.
    bool advance_others() {
        if (!among || among->states.size() == 1) return false;
        std::vector<State*> others;
        {
            std::lock_guard lock(among->mutex);
            others = among->states;
        }
        bool moved = false;
        for (State* other : others) {
            if (other == this || other->busy) continue;
            try {
                moved |= other->guarded([other] { return other->advance(false); });
            } catch (...) {
                other->error = std::current_exception(); // its owner gets it at the next test
            }
        }
        return moved;
    }

    // The transport to sleep on, if it carries all messages of this thread's schedules.
    Communicator* only_transport() const {
        if (distinct.size() != 1) return nullptr;
        if (!among || among->states.size() == 1) return distinct[0];
        std::lock_guard lock(among->mutex);
        for (const State* other : among->states)
            if (other->distinct != distinct) return nullptr;
        return distinct[0];
    }

    void wait() {
        throw_kept();
        WaitLoop wait_loop(watchdog_seconds());
        bool slept = false;
        std::int64_t idle = 0, checked = 0; // since when, and when last, if recorded
        for (unsigned rounds = 0; remaining > 0; ++rounds) {
            const bool ask = slept || rounds % 16 == 15; // has_left()
            Communicator* const only = only_transport();
            const std::uint64_t seen = only ? only->events() : 0;
            const int exited = ask ? exited_rank(wait_loop.waited()) : -1;
            if (watched()) checked = Timeline::now();
            const bool own = advance(true);
            if (own && idle != 0) note_wait(std::exchange(idle, 0), checked);
            if (remaining == 0) return;
            if (own) wait_loop.moved();
            if (own || advance_others()) {
                rounds = 0;
                slept = false;
                continue;
            }
            if (ask) fail_if_alone(exited);
            if (idle == 0) idle = checked;
            const auto describe = [this] { return describe_wait(); };
            // A rank that listens to several transports cannot sleep on one of them.
            const bool slept =
                only ? only->rest(seen, rounds) : distinct[0]->Communicator::rest(seen, rounds);
            slept ? wait_loop.check_clock(describe) : wait_loop.check(describe);
        }
    }

    void throw_kept() {
        if (error) std::rethrow_exception(std::exchange(error, nullptr));
    }

    bool test() {
        throw_kept();
        if (remaining == 0) return true;
        const int exited = exited_rank(since_moved.waited());
        if (advance(true)) {
            since_moved.moved();
        } else if (!advance_others()) {
            fail_if_alone(exited);
            since_moved.check_clock([] { return std::string(); });
        }
        return remaining == 0;
    }

    // Runs `act`; an error is reported to the other ranks, and all pending work is cancelled.
    template <class Act>
    std::invoke_result_t<Act> guarded(Act act) {
        struct Busy {
            State& state;
            ~Busy() {
                state.busy = false;
                if (state.remaining == 0) state.leave();
            }
        } here{*this};
        busy = true;
        try {
            return act();
        } catch (const RankFailure&) {
            withdraw();
            throw;
        } catch (const std::exception& failure) {
            for (auto* transport : distinct) transport->fail(failure.what());
            withdraw();
            throw;
        }
    }

    void withdraw() {
        for (int message : in_flight) requests[message].reset();
        in_flight.clear();
        ready.clear();
        remaining = 0;
    }
};

Executor::Executor(std::shared_ptr<const Schedule> schedule, std::string what,
                   std::shared_ptr<ThreadPool> pool)
    : state_(std::make_unique<State>(std::move(schedule), std::move(what), std::move(pool))) {
}

Executor::~Executor() = default;
Executor::Executor(Executor&&) noexcept = default;
Executor& Executor::operator=(Executor&&) noexcept = default;

void Executor::start(std::span<std::byte* const> buffers, std::span<Communicator* const> transports,
                     int first_tag) {
    State& s = *state_;
    if (s.remaining > 0)
        throw std::logic_error((s.what.empty() ? "the schedule" : s.what) +
                               " is still running: wait for it before you start it again");
    if (buffers.size() != s.schedule->buffers().size())
        throw std::invalid_argument(std::to_string(buffers.size()) + " addresses for " +
                                    std::to_string(s.schedule->buffers().size()) + " buffers");
    if (transports.empty() || (transports.size() != 1 && transports.size() != s.schedule->libraries().size()))
        throw std::invalid_argument(std::to_string(transports.size()) + " transports for " +
                                    std::to_string(s.schedule->libraries().size()) +
                                    " libraries: give one for all or one for each");
    s.buffers.assign(buffers.begin(), buffers.end());
    s.transports.assign(transports.begin(), transports.end());
    s.distinct.clear();
    for (auto* transport : transports)
        if (std::find(s.distinct.begin(), s.distinct.end(), transport) == s.distinct.end())
            s.distinct.push_back(transport);
    s.first_tag = first_tag;
    s.open = s.graph.waits_for();
    for (int task : s.first) s.ready.insert(task);
    s.remaining = s.graph.size();
    s.error = nullptr;
    s.computing = false;
    s.since_moved.moved();
    s.begun.assign(watched() ? s.graph.messages() : 0, 0);
    s.join();
    s.guarded([&] { s.advance(false); });
}

bool Executor::test() {
    if (!state_->error && state_->remaining == 0) return true;
    return state_->guarded([this] { return state_->test(); });
}

void Executor::wait() {
    if (!state_->error && state_->remaining == 0) return;
    state_->guarded([this] { state_->wait(); });
}

void Executor::run(std::span<std::byte* const> buffers, Communicator& communicator) {
    Communicator* const transports[] = {&communicator};
    start(buffers, transports);
    wait();
}

bool Executor::running() const {
    return state_->remaining > 0;
}

const Schedule& Executor::schedule() const {
    return *state_->schedule;
}

} // namespace jali
