#include "messaging/rank_program.hpp"
#include "messaging/failure_notices.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace jali {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds longest(5); // for the other ranks to report why they stop, before the job ends
constexpr std::chrono::milliseconds event(300); // for a launcher to forward the output

void say(const Communicator& ranks, const std::string& words) {
    const std::string line =
        "jali: rank " + std::to_string(ranks.outermost(ranks.rank())) + " " + words + "\n";
    std::fputs(line.c_str(), stderr); // in one call, since other ranks may print as well
}

int failed(Communicator& ranks, const std::string& words, const std::string& cause) {
    say(ranks, words + cause);
    ranks.fail(cause);
    try {
        stopping(ranks);
        for (const auto limit = Clock::now() + longest; !all_have_spoken(ranks) && Clock::now() < limit;)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        std::this_thread::sleep_for(event);
    } catch (const std::exception&) { // no notice can be received any more
    }
    return 1;
}

} // namespace

int run_rank(const std::shared_ptr<Communicator>& ranks, const std::function<void()>& program) {
    try {
        program();
        ranks->end_resources();
        ranks->leave();
        ranks->await_others_leaving();
        return 0;
    } catch (const RankFailure& failure) {
        return failed(*ranks, "stopped: ", failure.what());
    } catch (const std::exception& error) {
        return failed(*ranks, "failed: ", error.what());
    } catch (...) {
        return failed(*ranks, "failed: ", "an exception that is no std::exception");
    }
}

int run_virtual_ranks(int ranks,
                      const std::function<void(const std::shared_ptr<Communicator>& ranks)>& program) {
    const auto communicators = make_thread_communicators(ranks);
    std::atomic<int> status = 0;
    std::vector<std::thread> threads;
    for (const auto& mine : communicators)
        threads.emplace_back([&] {
            if (run_rank(mine, [&] { program(mine); }) != 0) status = 1;
        });
    for (std::thread& thread : threads) thread.join();
    return status;
}

} // namespace jali
