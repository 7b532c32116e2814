// Counts of the program's calls by executor: written at the end if JALI_MPI_COUNTERS is set.
#pragma once

#include "interposer/staging.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace jali::interposer {

bool counting() noexcept;

// A call from its arrival until its end.
class Tally {
  public:
    Tally(const char* function, const std::vector<Elements>& sent, const std::vector<Elements>& received);
    ~Tally();
    Tally(const Tally&) = delete;
    void by(std::string_view who) { // otherwise "mpi"
        if (counting()) who_ = who;
    }

  private:
    const char* function_;
    std::int64_t bytes_ = 0; // of the larger of its arguments on this rank
    std::string who_ = "mpi";
};

// On all ranks, before MPI ends: the sums over them, written by the first to stderr.
void report_counters();

} // namespace jali::interposer
