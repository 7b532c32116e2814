#include "transport/patience.hpp"
#include "transport/communicator.hpp"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <sched.h>

namespace jali {

namespace {

std::mutex hook_mutex;
std::function<void()> wait_hook;

} // namespace

void set_wait_hook(std::function<void()> hook) {
    std::lock_guard lock(hook_mutex);
    wait_hook = std::move(hook);
}

void run_wait_hook() {
    std::function<void()> hook;
    {
        std::lock_guard lock(hook_mutex);
        hook = wait_hook;
    }
    if (hook) hook();
}

bool Communicator::rest(std::uint64_t, unsigned rounds) {
    if (rounds < 512) {
        pause_core();
        return false;
    }
    if (rounds < 1024) {
        sched_yield(); // by now a rank that shares our core may need it
        return false;
    }
    // This wait has lasted a millisecond or so. Who only yields still takes much of a core from ranks that
    // work; sleeping costs a few percent of the wait at most.
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    return true;
}

bool Communicator::has_left(int, double) {
    return false;
}

std::string Communicator::why_not_from_devices(const std::string&) {
    return std::string("messages of transport '") + transport() +
           "' are copied by the host; it takes ranks of an MPI library that reaches into devices (-n)";
}

void Communicator::end_belongings() noexcept {
    for (auto& [name, belonging] : belongings)
        if (belonging) belonging->end();
    belongings.clear();
}

double watchdog_seconds() {
    const char* text = std::getenv("JALI_WATCHDOG");
    if (text == nullptr || *text == '\0') return 600;
    char* end = nullptr;
    const double seconds = std::strtod(text, &end);
    if (*end != '\0' || !(seconds > 0) || !std::isfinite(seconds))
        throw std::invalid_argument("JALI_WATCHDOG=" + std::string(text) +
                                    " is not a time: give a number of seconds above 0 (600 is the default)");
    return seconds;
}

std::string seconds_text(double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%g s", seconds);
    return text;
}

void Patience::lose(const std::string& description) const {
    throw TransportError(
        description + ": nothing has moved for " + seconds_text(limit_) +
        ", so a rank hangs or waits for something else (JALI_WATCHDOG=SECONDS changes this limit)");
}

} // namespace jali
