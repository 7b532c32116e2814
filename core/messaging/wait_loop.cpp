#include "messaging/wait_loop.hpp"
#include "messaging/communicator.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
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
    // This wait has lasted a millisecond or so. A rank that only yields still takes much of a core from
    // working ranks; sleeping costs a few percent of the wait at most.
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

void Communicator::end_resources() noexcept {
    for (auto& [name, resource] : resources)
        if (resource) resource->end();
    resources.clear();
}

double watchdog_seconds() {
    return settings().watchdog;
}

double warning_seconds() {
    const double seconds = settings().wait_warning;
    return seconds > 0 ? seconds : std::numeric_limits<double>::infinity();
}

std::string seconds_text(double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%g s", seconds);
    return text;
}

double& WaitLoop::until_warning() {
    static thread_local double seconds = warning_seconds();
    return seconds;
}

void WaitLoop::warn(const std::string& description) const {
    double& next = until_warning();
    if (!std::isfinite(limit_)) return; // no watchdog
    std::fprintf(
        stderr, "jali: %s: nothing has moved for %s. This is an error after %s (JALI_WATCHDOG).%s\n",
        description.c_str(), seconds_text(next).c_str(), seconds_text(limit_).c_str(),
        settings().checked ? "" : " If ranks may call in different orders, JALI_CHECKED=1 says which calls.");
    next = 4 * std::max(next, waited_);
}

void WaitLoop::lose(const std::string& description) const {
    throw TransportError(
        description + ": nothing has moved for " + seconds_text(limit_) +
        ", so a rank hangs or waits for something else (JALI_WATCHDOG=SECONDS changes this limit)");
}

} // namespace jali
