// Counts of the kernel of a launch, or of its producers: of all runs together, on this rank. Outlives the
// launch, so that the counts can be read later. Behind the first two stand pairs, of which the second is no
// count but a word of which the largest stays: what a kernel says of the first site at which a pivot failed.
#pragma once

#include "device/gpu.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace jali {

class LaunchCounters {
  public:
    LaunchCounters(std::shared_ptr<Gpu> gpu, int count); // all 0; gpu: null on the host
    std::vector<std::int64_t> values() const;            // on a device, after its work so far
    // Of several, waiting once.
    static std::vector<std::vector<std::int64_t>>
    values_of(const std::vector<const LaunchCounters*>& several);
    void set(const std::vector<std::int64_t>& values);
    void add(const std::vector<std::int64_t>& values); // on the host: what a worker has counted
    void clear(int k);                                 // makes one of them 0
    bool final() const { return final_; }              // the launch is destroyed
    void finish() { final_ = true; }

    std::uint64_t address() const; // of the first, where the kernel runs; on the device 0 if there are none
    std::vector<std::int64_t>& on_host() { return here_; }

  private:
    std::shared_ptr<Gpu> gpu_;
    GpuMemory there_;
    std::vector<std::int64_t> here_;
    std::atomic<bool> final_ = false;
};

} // namespace jali
