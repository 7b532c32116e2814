// Which other processes of this machine have ended, read from the kernel: a killed process sends no notice.
//
// A process is identified by a descriptor (pidfd), so that a later process with the same number is never
// taken for it, and a zombie counts as ended. Watched are processes of the same boot and process namespace
// for which the kernel grants a descriptor; nothing is reported about others.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include <poll.h>

namespace jali {

// Identifies a process for other processes.
struct ProcessToken {
    std::int64_t number;
    std::int64_t started; // in ticks since the boot; 0 if the kernel does not report it
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

    // Ranks whose process has ended, with the number of calls that found it missing. Empty if the last call
    // was a moment ago.
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
