// Which other processes of this machine have ended, asked of the kernel: one that is killed tells nobody.
//
// A process is held by a descriptor (pidfd), so that another one with its number is never taken for it, and
// one that its parent has not yet asked for has ended all the same. Known are those that number processes as
// this one does (one boot, one namespace) and that the kernel lets this one hold; of all others nothing is
// said.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include <poll.h>

namespace jali {

// A process as others can find it.
struct ProcessToken {
    std::int64_t number;
    std::int64_t started; // in ticks since the boot; 0 where the kernel does not say
    char boot[40];
    char numbering[40]; // the namespace of its number

    static ProcessToken of_this_process();
};

class FailureDetector {
  public:
    FailureDetector() = default;
    ~FailureDetector();
    FailureDetector(const FailureDetector&) = delete;
    FailureDetector& operator=(const FailureDetector&) = delete;

    void enlist(int rank, const ProcessToken& process);
    void forget(int rank);

    // Ranks whose process has ended, and at how many calls it has been missing. None where the last call was
    // a moment ago.
    struct Missing {
        int rank, calls;
    };
    std::vector<Missing> call();

  private:
    std::vector<pollfd> processes_;
    std::vector<Missing> listed_; // of each
    std::chrono::steady_clock::time_point last_{};
};

} // namespace jali
