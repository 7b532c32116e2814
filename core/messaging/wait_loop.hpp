// How a rank waits: spin, then yield the core; check for interrupts; time out in the end.
//
// Shared by all transports, so that the watchdog and its message are the same everywhere. It does not depend
// on the kind of wait: the transport polls, and reports progress.
#pragma once

#include "device/pause.hpp"

#include <chrono>
#include <functional>
#include <string>

namespace jali {

// Seconds without any movement after which a wait is an error: JALI_WATCHDOG.
double watchdog_seconds();

// Seconds without any movement after which a wait is mentioned on stderr: JALI_WAIT_WARNING; infinity for 0.
double warning_seconds();

// Lets the hook of set_wait_hook run.
void run_wait_hook();

// "1 s", "600 s", "0.5 s"
std::string seconds_text(double seconds);

// The clock of one wait. `check` is called after each poll that found nothing, every few microseconds or
// milliseconds; it reads the time only now and then, runs the hook four times per second and throws
// TransportError when `limit` seconds have passed since the start or the last `moved()`. Long before, it
// prints once on stderr what is waited for; the next wait of this thread that is printed is four times as
// long, so that uneven work does not cause repeated warnings.
class WaitLoop {
  public:
    explicit WaitLoop(double limit) : limit_(limit) {}

    void moved() {
        checks_ = 0;
        started_ = false;
    }

    // `describe` returns what is waited for: "rank 0 waited in the halo of U for ... (transport thread)".
    template <class Describe>
    void check(Describe&& describe) {
        if (++checks_ % 64 == 0) check_clock(std::forward<Describe>(describe));
    }

    // For waits that slept meanwhile: the clock is read at once.
    template <class Describe>
    void check_clock(Describe&& describe) {
        using namespace std::chrono;
        const auto now = steady_clock::now();
        if (!started_) {
            started_ = true;
            start_ = hook_ = now;
            return;
        }
        waited_ = duration<double>(now - start_).count();
        if (now - hook_ > milliseconds(250)) {
            hook_ = now;
            run_wait_hook();
        }
        if (waited_ > limit_) lose(describe());
        if (waited_ > until_warning()) warn(describe());
    }

    double waited() const {
        return started_ ? waited_ : 0;
    } // seconds since something moved, at the last clock reading

  private:
    [[noreturn]] void lose(const std::string& description) const;
    static double& until_warning(); // of this thread
    void warn(const std::string& description) const;

    double limit_;
    unsigned checks_ = 0;
    bool started_ = false;
    double waited_ = 0;
    std::chrono::steady_clock::time_point start_{}, hook_{};
};

} // namespace jali
