#include "device/thread_pool.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>

#include <sched.h>

namespace jali {

namespace {

constexpr std::uint64_t open_bit = 1u << 16;
constexpr std::uint64_t inside_mask = open_bit - 1;
constexpr int job_shift = 17;
constexpr auto spin_time =
    std::chrono::microseconds(30); // longer than the gap between two kernels of one step

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins until `done` or the spin time is over, yielding now and then so that a thread we wait for can have
// the core.
template <class Done>
bool spin_until(Done done) {
    const auto limit = std::chrono::steady_clock::now() + spin_time;
    do {
        for (int i = 0; i < 64; ++i) {
            if (done()) return true;
            pause();
        }
        sched_yield();
    } while (std::chrono::steady_clock::now() < limit);
    return done();
}

} // namespace

int usable_cores() {
    int cores = static_cast<int>(std::thread::hardware_concurrency());
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
    double quota = 0, period = 0; // microseconds; the word "max" does not parse: no quota
    if (std::ifstream("/sys/fs/cgroup/cpu.max") >> quota >> period && period > 0)
        cores = std::min(cores, static_cast<int>(quota / period + 0.5));
    return std::max(cores, 1);
}

int default_threads(int ranks_on_host) {
    if (settings().threads > 0) return settings().threads;
    return std::max(1, usable_cores() / std::max(1, ranks_on_host));
}

ThreadPool::ThreadPool(int threads) : threads_(threads) {
    if (threads < 1 || threads > max_threads)
        throw std::invalid_argument("a thread pool of " + std::to_string(threads) + " threads: give 1 to " +
                                    std::to_string(max_threads));
    if (threads == 1) return;
    parts_ = std::make_unique<Part[]>(threads);
    workers_.reserve(threads - 1);
    for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
    stop_.store(true);
    {
        std::lock_guard lock(sleep_mutex_);
        wake_.notify_all();
    }
    for (auto& worker : workers_) worker.join();
}

void ThreadPool::parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, const Body& body,
                              const Progress* progress) {
    if (begin >= end) return;
    grain = std::max<std::int64_t>(grain, 1);
    const std::int64_t pieces = (end - begin + grain - 1) / grain;
    if (threads_ == 1 || pieces == 1) {
        if (progress == nullptr) return body(0, begin, end);
        for (std::int64_t b = begin; b < end; b += grain) {
            if (b != begin) (*progress)();
            body(0, b, std::min(end, b + grain));
        }
        return;
    }
    if (busy_.exchange(true, std::memory_order_acquire))
        throw std::logic_error(
            "a thread pool was asked for work from inside its own work, or by two threads at once");

    body_ = &body;
    grain_ = grain;
    error_ = nullptr;
    failed_.store(false, std::memory_order_relaxed);
    for (int thread = 0; thread < threads_; ++thread) {
        parts_[thread].next.store(begin + grain * (pieces * thread / threads_), std::memory_order_relaxed);
        parts_[thread].end = std::min(end, begin + grain * (pieces * (thread + 1) / threads_));
    }
    const std::uint64_t job = (door_.load(std::memory_order_relaxed) >> job_shift) + 1;
    door_.store(job << job_shift | open_bit); // sequentially consistent against sleepers_: no wake-up is lost
    if (sleepers_.load() > 0) {
        {
            std::lock_guard lock(sleep_mutex_);
        }
        wake_.notify_all();
    }

    run_pieces(0, progress);
    door_.fetch_and(~open_bit);
    const auto all_left = [this] { return (door_.load(std::memory_order_acquire) & inside_mask) == 0; };
    while (!all_left()) {
        if (progress != nullptr && !failed_.load(std::memory_order_relaxed)) {
            try {
                (*progress)();
            } catch (...) {
                note_error();
            }
            pause();
        } else if (!spin_until(all_left)) {
            std::this_thread::yield();
        }
    }
    busy_.store(false, std::memory_order_release);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::run_pieces(int thread, const Progress* progress) {
    bool first = true;
    try {
        for (int k = 0; k < threads_; ++k) {
            Part& part = parts_[(thread + k) % threads_];
            while (part.next.load(std::memory_order_relaxed) < part.end) {
                if (failed_.load(std::memory_order_relaxed)) return;
                const std::int64_t b = part.next.fetch_add(grain_, std::memory_order_relaxed);
                if (b >= part.end) break;
                if (!first && progress != nullptr) (*progress)();
                first = false;
                (*body_)(thread, b, std::min(part.end, b + grain_));
            }
        }
    } catch (...) {
        note_error();
    }
}

void ThreadPool::note_error() noexcept {
    std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
    failed_.store(true, std::memory_order_relaxed);
}

void ThreadPool::work(int thread) {
    std::uint64_t seen = 0; // number of the last job that this worker has seen
    const auto news = [&] { return stop_.load() || door_.load() >> job_shift != seen; };
    while (true) {
        if (!spin_until(news)) {
            std::unique_lock lock(sleep_mutex_);
            sleepers_.fetch_add(1);
            wake_.wait(lock, news);
            sleepers_.fetch_sub(1);
        }
        if (stop_.load()) return;
        std::uint64_t door = door_.load(std::memory_order_acquire);
        while ((door & open_bit) != 0 &&
               !door_.compare_exchange_weak(door, door + 1, std::memory_order_acq_rel)) {
        }
        seen = door >> job_shift;
        if ((door & open_bit) == 0) continue;
        run_pieces(thread, nullptr);
        door_.fetch_sub(1, std::memory_order_release);
    }
}

} // namespace jali
