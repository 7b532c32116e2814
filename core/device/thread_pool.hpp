// The threads of one rank: they split a range of work, the caller being one of them.
//
// Every thread owns a contiguous part of the range (so that pages stay with the thread that touched them
// first) and takes chunks of `grain` from it; a thread that has finished helps the others. Between two of its
// chunks the caller may make progress on messages. A thread without work spins for some microseconds, then
// sleeps. A worker that wakes too late to help is not waited for. With one thread there are no locks, no
// atomics and no other thread. One pool serves one caller at a time, and does not nest. It does not depend on
// kernels.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace jali {

// Cores that this process may use: its affinity, capped by the container's processor quota.
int usable_cores();

// Threads for one of `ranks_on_host` equal ranks: JALI_THREADS if set, else usable cores per rank, at
// least 1. Throws std::invalid_argument if JALI_THREADS is not a whole number from 1 to 4096.
int default_threads(int ranks_on_host);

class ThreadPool {
  public:
    using Body = std::function<void(int thread, std::int64_t begin, std::int64_t end)>;
    using Progress = std::function<void()>;

    explicit ThreadPool(int threads); // throws std::invalid_argument unless 1 <= threads <= 4096
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    // Calls body(thread, b, e) on disjoint pieces [b, e) of at most `grain` that cover [begin, end); thread 0
    // is the caller. `progress` runs on the caller between its pieces and while it waits for the others. With
    // one thread and no progress there is a single piece. An exception in body or progress stops the rest and
    // is thrown here.
    void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, const Body& body,
                      const Progress* progress = nullptr);

  private:
    // One thread's part of the range, on a cache line of its own: pieces are taken from `next`.
    struct alignas(64) Part {
        std::atomic<std::int64_t> next{0};
        std::int64_t end = 0;
    };

    void work(int thread);                                 // a worker's life
    void run_pieces(int thread, const Progress* progress); // until nothing is left to take
    void note_error() noexcept;                            // keeps the current exception if it is the first

    int threads_;
    std::vector<std::thread> workers_;
    std::unique_ptr<Part[]> parts_;

    // The job, written by the caller while no worker is inside.
    const Body* body_ = nullptr;
    std::int64_t grain_ = 1;
    std::exception_ptr error_;
    std::mutex error_mutex_;
    std::atomic<bool> failed_{false};

    // The door: number of workers inside (low 16 bits), open (bit 16), job number (above). A worker enters an
    // open door; the caller closes it when no pieces are left and waits for those inside.
    alignas(64) std::atomic<std::uint64_t> door_{0};
    std::atomic<bool> busy_{false};
    std::atomic<bool> stop_{false};
    std::atomic<int> sleepers_{0};
    std::mutex sleep_mutex_;
    std::condition_variable wake_;
};

} // namespace jali
