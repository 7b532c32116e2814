// Whether the device calls of launches, collectives and starts of messages were proved before their first
// run. A process counts both kinds, so that a test can require that all its runs were proved.
#pragma once

#include "settings/settings.hpp"

#include <atomic>
#include <cstdint>

namespace jali {

struct FirstRuns {
    std::atomic<std::int64_t> proved{0}, unproved{0};
};
inline FirstRuns first_runs; // of this process

inline bool first_runs_are_proved() {
    return settings().checked || settings().prove_launches;
}

// That of one of them.
class FirstRun {
  public:
    bool proved() const { return state_ == State::proved; }
    // `prove` may make runs, and throws if they are wrong. It is called once, whatever its result.
    template <class Prove>
    void prove_by(Prove&& prove) {
        state_ = State::proved;
        prove();
        state_ = State::proved; // also if another way was taken meanwhile
        ++first_runs.proved;
    }
    // A run for itself begins.
    void begins() {
        if (state_ != State::none) return;
        state_ = State::unproved;
        ++first_runs.unproved;
    }
    void forget() { state_ = State::none; } // later runs are different

  private:
    enum class State : std::uint8_t { none, unproved, proved } state_ = State::none;
};

} // namespace jali
