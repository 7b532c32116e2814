// What runs on the fake devices of fake_gpu.cpp: operations on streams and in graphs, kernels block by block.
// Part of fake_gpu.cpp and included nowhere else.
//
// One thread of the process does all of it, for all devices, a move at a time: begins an operation, does a
// piece of a copy, starts a block, lets a block run until it waits for a word, has passed a fence, or ends.
// Blocks are fibres of one thread each; those of a kernel take places in their order (threads of the device's
// multiprocessors), keep them while they wait, and go on in any. The host's functions alone have threads of
// their own, since they may wait for whatever they like.
//
// Without a seed what somebody waits for is done, as little of it as possible, and blocks take turns. With
// JALI_FAKE_SEED moves are chosen as nobody would: streams, launches and blocks draw a rank each and the
// highest may move for as long as it can, ranks are drawn anew now and then (so that one block is late by a
// whole kernel), some streams begin before anybody waits for them, kernels as early as those in front of them
// permit, copies are done in two pieces. Several processes draw each for itself; with JALI_FAKE_NAP all of
// one stands still for so many microseconds now and then, so that it is late for the others. If nothing has
// moved for JALI_FAKE_TIMEOUT seconds (20) though blocks wait, it is told which wait for what, and every
// later call is an error, until somebody calls fakeRecover.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

namespace {

using Clock = std::chrono::steady_clock;

std::recursive_mutex big_lock;
#define GUARD std::lock_guard<std::recursive_mutex> guard(big_lock)
int sticky = 0;      // an error that every later call returns, as after a fault in a kernel
std::string trouble; // what is said of it

int number(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::atoi(text) : otherwise;
}

double seconds(const char* name, double otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::atof(text) : otherwise;
}

// What kernels know as jali_here (prelude/target_gpu.hpp).
struct BlockHere {
    std::int64_t block, blocks;
    void (*pause)(const std::int64_t* word, std::int64_t value);
    void (*turn)();
    void (*after_previous)();
    void (*let_next_begin)();
};

struct Function {
    std::string name;
    void (*entry)(void**);
    std::size_t bytes; // of its argument
};
struct KernelCall {
    const Function* function;
    unsigned grid, threads;
    std::vector<char> arguments;
    int priority; // the lower number gets places first
    bool early;   // its blocks may begin before the kernel in front has ended
};

struct Stream;
struct Graph;
struct Operation {
    std::string name;
    std::function<bool()> work = nullptr; // a piece of it; whether it was the last
    bool apart = false;                   // a function of the host's
    std::shared_ptr<const KernelCall> kernel = nullptr;
    Stream* other = nullptr; // waits until that one has done so many
    std::uint64_t position = 0;
    std::shared_ptr<const Graph> graph = nullptr;
    bool polled =
        false; // its work waits for others of its kind, and is asked now and then whether it has ended
};
struct Graph {
    struct Node {
        Operation operation;
        std::vector<int> after;
    };
    std::vector<Node> nodes;
    // While it is captured: what comes next on a stream, or after an event, follows these.
    std::map<const void*, std::vector<int>> streams, events;
    void add(const void* stream, Operation operation) {
        nodes.push_back({std::move(operation), streams[stream]});
        streams[stream] = {static_cast<int>(nodes.size()) - 1};
    }
};

struct Running;
struct Fibre {
    ucontext_t context;
    void* stack;
    Running* launch;
    unsigned block;
    double rank;
    const std::int64_t* word = nullptr; // it waits for this to come to the value
    std::int64_t value = 0;
    bool waits = false, ended = false, behind = false; // behind: waits for the kernel in front
    bool let_in = false; // the next kernel may begin, as far as this block is concerned
};
struct Running {
    Operation operation;
    Stream* stream;
    Running* whole = nullptr; // the graph that it is a node of
    int node = -1;
    double rank = 0;
    bool done = false;
    std::atomic<bool> apart_done{false};
    // of a kernel
    unsigned next = 0, ended = 0, let_in = 0;
    std::list<Fibre> fibres;
    // of a graph
    std::vector<int> missing;
    std::size_t left = 0;
};

struct Stream {
    Stream(int of, int which) : device(of), number(which) {}
    const int device;
    const int number; // in reports
    int priority = 0;
    std::deque<Operation> waiting;
    std::deque<Running*> running;       // in order; the second, if any, has begun early
    std::uint64_t done = 0, wanted = 0; // operations; up to where somebody waits
    std::condition_variable_any moved;  // more of them are done
    Clock::time_point alone{};          // since when nobody has looked after what waits
    double rank = 0.5;
    bool eager = false, drawn = false; // drawn: rank and eager are of this seed
    std::uint64_t begun() const { return done + running.size(); }
    std::uint64_t last() const { return begun() + waiting.size(); }
};

class Scheduler {
  public:
    // All of these with the big lock held, once, or not at all.
    static Scheduler& get() {
        static auto* one = new Scheduler; // never destroyed: its thread goes on until the process ends
        return *one;
    }
    Stream* make_stream(int device, int priority) {
        GUARD;
        streams_.push_back(new Stream(device, static_cast<int>(streams_.size())));
        streams_.back()->priority = priority;
        return streams_.back();
    }
    void put(Stream* stream, Operation operation) {
        GUARD;
        if (stream->waiting.empty()) stream->alone = Clock::now();
        stream->waiting.push_back(std::move(operation));
        if (seed_ != 0 && (stream->eager || !stream->drawn)) wake();
    }
    // Somebody asks how far it is: it shall not stand still.
    void want(Stream* stream, std::uint64_t position) {
        GUARD;
        if (position <= stream->wanted) return;
        stream->wanted = position;
        wake();
    }
    void run_to(Stream* stream, std::uint64_t position) {
        want(stream, position);
        std::unique_lock<std::recursive_mutex> lock(big_lock);
        stream->moved.wait(lock, [&] { return stream->done >= position; });
    }
    // Whether it is so far already. Who asks in a loop would keep the lock from those who work, so the answer
    // takes a moment unless it has come so far before.
    bool is_at(Stream* stream, std::uint64_t position) {
        std::unique_lock<std::recursive_mutex> lock(big_lock);
        if (sticky != 0 || stream->done >= position) return true;
        want(stream, stream->last());
        stream->moved.wait_for(lock, std::chrono::milliseconds(1), [&] { return stream->done >= position; });
        return false;
    }
    void run_all(int device) {
        std::vector<std::pair<Stream*, std::uint64_t>> all;
        {
            GUARD;
            for (Stream* stream : streams_)
                if (device < 0 || stream->device < 0 || stream->device == device)
                    all.push_back({stream, stream->last()});
        }
        for (auto [stream, position] : all) want(stream, position);
        for (auto [stream, position] : all) run_to(stream, position);
    }
    BlockHere* here() { return &here_; }
    // Devices on which nothing is any more, and no error either.
    void recover() {
        std::unique_lock<std::recursive_mutex> lock(big_lock);
        recovers_ = true;
        wake();
        recovered_.wait(lock, [&] { return !recovers_; });
    }
    // A decision of the scheduler's thread; never without a seed.
    bool once_in(int many) { return seed_ != 0 && chance() * many < 1; }

  private:
    Scheduler() {
        here_ = {0, 1, pause, turn, after_previous, let_next_begin};
        for (int which : {SIGFPE, SIGSEGV, SIGBUS}) {
            struct sigaction ours{};
            ours.sa_handler = fault;
            ours.sa_flags = SA_NODEFER;
            sigaction(which, &ours, &before_[which]);
        }
        std::thread([this] {
            thread_ = std::this_thread::get_id();
            run();
        }).detach();
    }
    struct Move {
        enum { begin, begin_node, piece, start, go_on } kind;
        double rank;
        Stream* stream;
        Running* running;
        int node;
        Fibre* fibre;
    };

    // Only from the scheduler's thread.
    double chance() { return std::uniform_real_distribution<>()(random_); }
    void draw(Stream& stream) {
        stream.rank = chance();
        stream.eager = seed_ != 0 && chance() < 0.5;
        stream.drawn = true;
    }
    void wake() {
        asked_ = true;
        asked_for_.notify_all();
    }
    void progress() { last_move_ = Clock::now(); }

    [[noreturn]] void run() {
        std::unique_lock<std::recursive_mutex> lock(big_lock);
        int idle = 0;
        for (;;) {
            if (const int seed = number("JALI_FAKE_SEED", 0); seed != seed_) {
                seed_ = seed;
                random_.seed(static_cast<unsigned>(seed));
                restless_ = 2 << static_cast<int>(chance() * 6);
                for (Stream* stream : streams_) stream->drawn = false;
            }
            places_ = long{number("JALI_FAKE_THREADS", 2048)} * number("JALI_FAKE_MULTIPROCESSORS", 4);
            one_device_ = number("JALI_FAKE_ONE_DEVICE", 0) != 0;
            running_.remove_if([](const Running& r) { return r.done; });
            if (const int nap = number("JALI_FAKE_NAP", 0); nap > 0 && !running_.empty() && once_in(500)) {
                lock.unlock();
                std::this_thread::sleep_for(std::chrono::microseconds(nap));
                lock.lock();
                progress();
            }
            if (recovers_) {
                drop();
                sticky = 0;
                recovers_ = false;
                recovered_.notify_all();
                continue;
            }
            if (once_in(8)) poll(lock);
            find_moves();
            if (!moves_.empty()) {
                idle = 0;
                do_move(moves_[choose()], lock);
                continue;
            }
            if (running_.empty()) {
                progress();
                idle = 0;
                rest(lock, pending() ? std::chrono::microseconds(2000) : std::chrono::microseconds(200000));
                continue;
            }
            const double still = std::chrono::duration<double>(Clock::now() - last_move_).count();
            if (waits() && still > seconds("JALI_FAKE_TIMEOUT", 20)) {
                report_deadlock();
                continue;
            }
            rest(lock, std::chrono::microseconds(idle < 50 ? 10 : 200));
            ++idle;
            look_up(lock);
            poll(lock);
        }
    }
    void rest(std::unique_lock<std::recursive_mutex>& lock, std::chrono::microseconds time) {
        if (!asked_) asked_for_.wait_for(lock, time);
        asked_ = false;
    }
    bool pending() const {
        return std::any_of(streams_.begin(), streams_.end(), [](Stream* s) { return !s->waiting.empty(); });
    }

    // ---- what can move ----------------------------------------------------------------------------------

    static bool let_in(const Running& before) {
        const auto& kernel = before.operation.kernel;
        return kernel && before.let_in == kernel->grid;
    }
    bool ready(const Operation& operation) {
        if (operation.other == nullptr || operation.other->done >= operation.position) return true;
        if (operation.other->wanted < operation.position) {
            operation.other->wanted = operation.position;
            others_wanted_ = true;
        }
        return false;
    }
    void find_moves() {
        const auto now = Clock::now();
        do { // once more where those that are looked at first want others
            others_wanted_ = false;
            moves_.clear();
            for (Stream* s : streams_) {
                if (s->waiting.empty()) continue;
                if (!s->drawn) draw(*s);
                if (now - s->alone > std::chrono::milliseconds(30))
                    s->wanted = std::max(s->wanted, s->last());
                if (s->wanted <= s->begun() && !(seed_ != 0 && s->eager)) continue;
                if (!s->running.empty()) {
                    const auto& kernel = s->waiting.front().kernel;
                    if (seed_ == 0 || s->running.size() > 1 || !kernel || !kernel->early ||
                        !let_in(*s->running.front()))
                        continue;
                }
                if (ready(s->waiting.front()))
                    moves_.push_back({Move::begin, s->rank, s, nullptr, 0, nullptr});
            }
            for (Running& r : running_) {
                if (r.done) continue;
                if (r.operation.graph) {
                    for (std::size_t n = 0; n < r.missing.size(); ++n)
                        if (r.missing[n] == 0 && ready(r.operation.graph->nodes[n].operation))
                            moves_.push_back(
                                {Move::begin_node, r.rank, r.stream, &r, static_cast<int>(n), nullptr});
                } else if (r.operation.kernel) {
                    if (has_place(r)) moves_.push_back({Move::start, r.rank, r.stream, &r, 0, nullptr});
                    for (Fibre& f : r.fibres)
                        if (can_go_on(f)) moves_.push_back({Move::go_on, f.rank, r.stream, &r, 0, &f});
                } else if (!r.operation.polled && (!r.operation.apart || r.apart_done)) {
                    moves_.push_back({Move::piece, r.rank, r.stream, &r, 0, nullptr});
                }
            }
        } while (others_wanted_);
    }
    static bool can_go_on(const Fibre& f) {
        if (f.behind) return f.launch->whole != nullptr || f.launch->stream->running.front() == f.launch;
        return !f.waits ||
               (f.word != nullptr && *static_cast<const volatile std::int64_t*>(f.word) >= f.value);
    }
    // Whether the next block may begin: there is a place, and no more urgent launch wants it.
    bool has_place(const Running& r) const {
        const KernelCall& k = *r.operation.kernel;
        if (r.next == k.grid) return false;
        long taken = 0;
        bool before = true; // in running_, of which those that were begun earlier come first
        for (const Running& other : running_) {
            if (&other == &r) before = false;
            if (!other.operation.kernel || other.done ||
                (other.stream->device != r.stream->device && !one_device_))
                continue;
            const KernelCall& its = *other.operation.kernel;
            taken += static_cast<long>(other.fibres.size()) * its.threads;
            if (&other != &r && other.next < its.grid &&
                (its.priority < k.priority || (before && its.priority == k.priority)))
                return false;
        }
        return taken + static_cast<long>(k.threads) <= places_;
    }
    bool waits() const {
        return std::any_of(running_.begin(), running_.end(),
                           [](const Running& r) { return r.operation.kernel || r.operation.polled; });
    }

    // ---- moves ------------------------------------------------------------------------------------------

    std::size_t choose() {
        if (seed_ == 0) return turns_++ % moves_.size();
        if (once_in(2 * restless_))
            return static_cast<std::size_t>(chance() * static_cast<double>(moves_.size()));
        const auto best = std::max_element(moves_.begin(), moves_.end(),
                                           [](const Move& a, const Move& b) { return a.rank < b.rank; });
        return static_cast<std::size_t>(best - moves_.begin());
    }
    void do_move(const Move& move, std::unique_lock<std::recursive_mutex>& lock) {
        progress();
        if (move.stream != nullptr && once_in(restless_)) draw(*move.stream);
        if (move.running != nullptr && once_in(restless_)) move.running->rank = chance();
        if (move.fibre != nullptr && once_in(restless_)) move.fibre->rank = chance();
        switch (move.kind) {
        case Move::begin: {
            Running* r = begin(std::move(move.stream->waiting.front()), move.stream);
            move.stream->waiting.pop_front();
            move.stream->alone = Clock::now();
            move.stream->running.push_back(r);
            r->rank = seed_ != 0 ? chance() : 0;
            settle(*r);
            return;
        }
        case Move::begin_node: {
            move.running->missing[static_cast<std::size_t>(move.node)] = -1;
            Running* r =
                begin(move.running->operation.graph->nodes[static_cast<std::size_t>(move.node)].operation,
                      move.stream);
            r->whole = move.running;
            r->node = move.node;
            r->rank = seed_ != 0 ? chance() : 0;
            settle(*r);
            return;
        }
        case Move::piece: {
            if (move.running->operation.apart) {
                end(*move.running);
            } else {
                work(*move.running, lock);
            }
            return;
        }
        case Move::start: {
            do start_block(*move.running, lock);
            while (seed_ == 0 && !move.running->done && move.running->fibres.empty() &&
                   has_place(*move.running));
            return;
        }
        case Move::go_on:
            go_on(*move.fibre, lock);
            return;
        }
    }
    Running* begin(Operation operation, Stream* stream) {
        running_.emplace_back();
        Running& r = running_.back();
        r.operation = std::move(operation);
        r.stream = stream;
        if (r.operation.apart)
            std::thread([&r, work = r.operation.work] {
                work();
                r.apart_done = true;
                GUARD;
                get().wake();
            }).detach();
        if (r.operation.graph) {
            for (const auto& node : r.operation.graph->nodes)
                r.missing.push_back(static_cast<int>(node.after.size()));
            r.left = r.missing.size();
        }
        return &r;
    }
    // A piece of its work; whether it was the last.
    bool work(Running& r, std::unique_lock<std::recursive_mutex>& lock) {
        volatile bool last = false; // a fault leaves it as it is
        lock.unlock();
        working_ = true;
        if (sigsetjmp(before_work_, 1) == 0) last = r.operation.work();
        working_ = false;
        lock.lock();
        if (std::exchange(faulted_, false)) {
            stop(700, std::string("a fault in ") + r.operation.name);
            return false;
        }
        if (last) end(r);
        return last;
    }
    void poll(std::unique_lock<std::recursive_mutex>& lock) {
        std::vector<Running*> all;
        for (Running& r : running_)
            if (r.operation.polled && !r.done) all.push_back(&r);
        for (Running* r : all) {
            if (work(*r, lock)) progress();
            if (sticky != 0) return; // all have gone
        }
    }
    // What has nothing to do has ended.
    void settle(Running& r) {
        const Operation& o = r.operation;
        if (o.graph ? r.left == 0 : !o.kernel && !o.work) end(r);
    }
    void end(Running& r) {
        r.done = true;
        if (r.whole != nullptr) {
            Running& whole = *r.whole;
            const auto& nodes = whole.operation.graph->nodes;
            for (std::size_t n = 0; n < nodes.size(); ++n)
                whole.missing[n] -=
                    static_cast<int>(std::count(nodes[n].after.begin(), nodes[n].after.end(), r.node));
            if (--whole.left == 0) end(whole);
        } else {
            auto& running = r.stream->running;
            for (; !running.empty() && running.front()->done; running.pop_front()) ++r.stream->done;
            r.stream->moved.notify_all();
        }
    }

    // ---- blocks -----------------------------------------------------------------------------------------

    static constexpr std::size_t stack_bytes = 1 << 20; // of which what is used takes memory
    void start_block(Running& r, std::unique_lock<std::recursive_mutex>& lock) {
        r.fibres.emplace_back();
        Fibre& f = r.fibres.back();
        f.launch = &r;
        f.block = r.next++;
        f.rank = seed_ != 0 ? chance() : 0;
        if (stacks_.empty())
            stacks_.push_back(mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        f.stack = stacks_.back();
        stacks_.pop_back();
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack;
        f.context.uc_stack.ss_size = stack_bytes;
        f.context.uc_link = nullptr;
        makecontext(&f.context, run_block, 0);
        go_on(f, lock);
    }
    // Whether the block has come to its end.
    bool go_on(Fibre& f, std::unique_lock<std::recursive_mutex>& lock) {
        Running& r = *f.launch;
        f.waits = f.behind = false;
        now_ = &f;
        here_.block = f.block;
        here_.blocks = r.operation.kernel->grid;
        lock.unlock();
        inside_ = true;
        swapcontext(&own_, &f.context);
        inside_ = false;
        lock.lock();
        if (faulted_) {
            faulted_ = false;
            f.ended = true;
            stop(719, "a fault in kernel '" + r.operation.kernel->function->name + "'");
            return true;
        }
        if (!f.ended) return false;
        stacks_.push_back(f.stack);
        if (!f.let_in) ++r.let_in;
        r.fibres.remove_if([&](const Fibre& each) { return &each == &f; });
        if (++r.ended == r.operation.kernel->grid) end(r);
        return true;
    }
    // Blocks that wait look at their words, and at whether the host has given up.
    void look_up(std::unique_lock<std::recursive_mutex>& lock) {
        std::vector<Fibre*> all;
        for (Running& r : running_)
            for (Fibre& f : r.fibres)
                if (f.waits) all.push_back(&f);
        for (Fibre* f : all) {
            const std::int64_t* word = f->word;
            if (go_on(*f, lock) || !f->waits || f->word != word) progress();
            if (sticky != 0) return; // all blocks have gone
        }
    }
    static void run_block() {
        Fibre* mine = get().now_;
        const KernelCall& kernel = *mine->launch->operation.kernel;
        void* argument = const_cast<char*>(kernel.arguments.data());
        kernel.function->entry(&argument);
        mine->ended = true;
        leave(mine);
    }
    // A fault in a kernel, such as a division by zero, is the device's, as is one of a copy from or to what
    // is nobody's; others are what they were before.
    static void fault(int which) {
        Scheduler& s = get();
        if (std::this_thread::get_id() == s.thread_ && s.inside_) {
            s.faulted_ = true;
            setcontext(&s.own_);
        }
        if (std::this_thread::get_id() == s.thread_ && s.working_) {
            s.faulted_ = true;
            siglongjmp(s.before_work_, 1);
        }
        sigaction(which, &s.before_[which], nullptr); // it comes again
    }
    static void leave(Fibre* mine) { swapcontext(&mine->context, &get().own_); }
    static void pause(const std::int64_t* word, std::int64_t value) {
        Fibre* mine = get().now_;
        mine->waits = true;
        mine->word = word;
        mine->value = value;
        leave(mine);
    }
    static void turn() {
        if (get().once_in(3)) leave(get().now_);
    }
    static void after_previous() {
        Fibre* mine = get().now_;
        while (mine->launch->whole == nullptr && mine->launch->stream->running.front() != mine->launch) {
            mine->behind = true;
            leave(mine);
        }
    }
    static void let_next_begin() {
        Fibre& mine = *get().now_;
        if (!mine.let_in) ++mine.launch->let_in;
        mine.let_in = true;
    }

    // ---- nothing moves ----------------------------------------------------------------------------------

    void report_deadlock() {
        std::ostringstream text;
        text << "nothing moves on the fake devices:";
        for (const Running& r : running_) {
            if (r.operation.polled)
                text << " " << r.operation.name << " on device " << r.stream->device << ", stream "
                     << r.stream->number << " waits for other ranks;";
            if (!r.operation.kernel) continue;
            const KernelCall& k = *r.operation.kernel;
            text << " '" << k.function->name << "' on device " << r.stream->device << ", stream "
                 << r.stream->number << ":";
            int reported = 0;
            for (const Fibre& f : r.fibres) {
                if (++reported > 4) continue;
                text << " block " << f.block << " of " << k.grid;
                if (f.behind) {
                    text << " waits for the kernel in front";
                } else if (f.word != nullptr) {
                    text << " waits for a word to come from " << *f.word << " to " << f.value;
                } else {
                    text << " waits for a flag";
                }
                text << ";";
            }
            if (reported > 4) text << " and " << reported - 4 << " more blocks wait;";
            if (r.next < k.grid) text << " " << k.grid - r.next << " blocks wait for a place;";
        }
        for (const Stream* s : streams_)
            if (!s->waiting.empty())
                text << " stream " << s->number << " of device " << s->device << " has not begun "
                     << s->waiting.front().name << ";";
        stop(702, text.str());
    }
    // The devices are lost: nothing that was put on them comes to its end.
    void stop(int error, const std::string& said) {
        trouble = said;
        std::fprintf(stderr, "%s\n", trouble.c_str());
        sticky = error;
        drop();
    }
    void drop() {
        for (Running& r : running_)
            for (Fibre& f : r.fibres) munmap(f.stack, stack_bytes);
        for (Stream* s : streams_) {
            s->done = s->last();
            s->waiting.clear();
            s->running.clear();
            s->moved.notify_all();
        }
        for (auto r = running_.begin(); r != running_.end();) { // threads of the host's functions go on
            const auto next = std::next(r);
            if (r->operation.apart) lost_.splice(lost_.end(), running_, r);
            r = next;
        }
        for (Running& r : running_) {
            r.fibres.clear();
            r.done = true; // goes with the next move
        }
        progress();
    }

    std::vector<Stream*> streams_;
    std::list<Running> running_, lost_;
    std::vector<Move> moves_;
    std::vector<void*> stacks_;
    std::condition_variable_any asked_for_, recovered_;
    bool asked_ = false, others_wanted_ = false, recovers_ = false;
    long places_ = 0;         // threads of a device
    bool one_device_ = false; // all share their places
    int seed_ = 0, restless_ = 2;
    std::size_t turns_ = 0;
    std::mt19937 random_;
    Clock::time_point last_move_ = Clock::now();
    BlockHere here_{};
    Fibre* now_ = nullptr;
    bool inside_ = false, working_ = false, faulted_ = false; // in a block of a kernel, in other work
    sigjmp_buf before_work_;
    std::map<int, struct sigaction> before_;
    std::thread::id thread_;
    ucontext_t own_;
};

} // namespace
