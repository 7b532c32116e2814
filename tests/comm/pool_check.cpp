// Checks of the thread pool that need its C++ interface; prints the first fact that does not hold.
#include "device/thread_pool.hpp"
#include "settings/settings.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace jali;

void detail::set_setting_choices() {
} // there are no tables here that settings could name

static void require(bool holds, const char* fact, int threads) {
    if (holds) return;
    std::printf("%d threads: %s\n", threads, fact);
    std::exit(1);
}

int main() {
    for (int threads : {1, 2, 3, 5}) {
        ThreadPool pool(threads);
        std::vector<int> visits(1000);
        for (int turn = 0; turn < 2000; ++turn) {
            const int size = turn % 1000, grain = 1 + turn % 17;
            std::fill(visits.begin(), visits.end(), 0);
            int progressed = 0;
            const auto caller = std::this_thread::get_id();
            bool on_caller = true, in_range = true;
            const ThreadPool::Progress progress = [&] {
                ++progressed;
                on_caller = on_caller && std::this_thread::get_id() == caller;
            };
            pool.parallel_for(
                0, size, grain,
                [&](int thread, std::int64_t begin, std::int64_t end) {
                    if (thread < 0 || thread >= threads || begin >= end) in_range = false;
                    if ((thread == 0) != (std::this_thread::get_id() == caller)) in_range = false;
                    for (auto i = begin; i < end; ++i) ++visits[i];
                },
                turn % 2 ? &progress : nullptr);
            require(in_range, "pieces and thread numbers are valid, and thread 0 is the caller", threads);
            require(on_caller, "progress is made by the caller", threads);
            if (threads == 1 && turn % 2 && size > grain)
                require(progressed == (size + grain - 1) / grain - 1, "progress between any two pieces",
                        threads);
            for (int i = 0; i < 1000; ++i)
                require(visits[i] == (i < size), "each index is visited once", threads);
        }

        for (int turn = 0; turn < 200; ++turn) {
            bool caught = false;
            try {
                pool.parallel_for(0, 100, 1, [&](int, std::int64_t begin, std::int64_t end) {
                    if (begin <= turn % 100 && turn % 100 < end) throw std::runtime_error("here");
                });
            } catch (const std::runtime_error&) {
                caught = true;
            }
            require(caught, "an exception of the body reaches the caller", threads);
        }

        const ThreadPool::Progress stop = [] { throw std::domain_error("stop"); };
        bool caught = false;
        try {
            pool.parallel_for(
                0, 1000, 1,
                [](int, std::int64_t, std::int64_t) {
                    std::this_thread::sleep_for(std::chrono::microseconds(20));
                },
                &stop);
        } catch (const std::domain_error&) {
            caught = true;
        }
        require(caught, "an exception of progress reaches the caller", threads);

        if (threads > 1) {
            bool refused = false;
            try {
                pool.parallel_for(0, 10, 1, [&](int, std::int64_t, std::int64_t) {
                    pool.parallel_for(0, 10, 1, [](int, std::int64_t, std::int64_t) {});
                });
            } catch (const std::logic_error&) {
                refused = true;
            }
            require(refused, "a pool does not nest", threads);
        }

        std::this_thread::sleep_for(std::chrono::milliseconds(2)); // workers are asleep now
        int sum = 0;
        std::vector<int> part(threads * 16);
        pool.parallel_for(0, 64, 1, [&](int thread, std::int64_t begin, std::int64_t end) {
            for (auto i = begin; i < end; ++i) part[thread * 16] += static_cast<int>(i);
        });
        for (int thread = 0; thread < threads; ++thread) sum += part[thread * 16];
        require(sum == 63 * 64 / 2, "sleeping workers do no harm", threads);
    }
    std::puts("all facts hold");
}
