// Collectives that are ready to run on a device repeatedly, by any transport.
#pragma once

#include "device/gpu.hpp"
#include "running/collective_kernel.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace jali {

class DevicePlan {
  public:
    static constexpr int most_buffers = most_collective_buffers;

    virtual ~DevicePlan() = default;
    DevicePlan(const DevicePlan&) = delete;

    // Puts a run on a stream, on these addresses: one per buffer of the user. Throws GpuError, also where the
    // stream records a graph of which this cannot be part; PlanError for another number of buffers, and for
    // those that overlap where one is written.
    void run(std::span<const GpuAddress> buffers, void* stream);

    // Runs it once on other memory: libraries connect ranks at their first call, which no graph can do.
    // Collective.
    virtual void warm_up();

    int user_buffers() const { return static_cast<int>(bytes_.size()); }
    std::size_t bytes_of(int buffer) const { return bytes_[buffer]; } // of a user's buffer, on this rank
    bool recordable() const { return recordable_; }                   // in a graph
    const std::string& what() const { return what_; }
    const std::shared_ptr<Gpu>& gpu() const { return gpu_; }
    virtual std::string describe() const { return ""; } // line by line, where there are steps

  protected:
    DevicePlan(std::shared_ptr<Gpu> gpu, std::string what, bool recordable)
        : gpu_(std::move(gpu)), what_(std::move(what)), recordable_(recordable) {}
    virtual void put(std::span<const GpuAddress> buffers, void* stream) = 0;
    void check_given(std::span<const GpuAddress> buffers) const;

    const std::shared_ptr<Gpu> gpu_;
    const std::string what_;
    std::vector<std::size_t> bytes_; // of the user's buffers on this rank
    std::vector<bool> written_;      // whether a run writes them; empty: the last one alone

  private:
    const bool recordable_;
};

} // namespace jali
