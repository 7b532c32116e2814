// Runs with shared memory, one after the other, on any streams.
//
// On the device's own stream the order is the stream's, at no cost. A run on another stream begins after the
// previous run, and after its preparation on the device's own stream.
#pragma once

#include "device/gpu.hpp"

#include <memory>

namespace jali {

class StreamOrder {
  public:
    explicit StreamOrder(const std::shared_ptr<Gpu>& gpu)
        : gpu_(gpu), last_(gpu->stream()), behind_(gpu, false) {}

    // Orders later work on this stream after all runs so far. `captured`: it becomes part of a graph, whose
    // launches the caller orders.
    void before(void* stream, bool captured = false) {
        if (captured) {
            in_graphs_ = true;
            return;
        }
        void* const own = gpu_->stream();
        if (stream != own && (last_ == own || in_graphs_)) gpu_->let_wait(stream);
        if (stream != last_ && last_ != own) behind_.let_wait(stream);
        last_ = stream;
    }
    // A run has been put there.
    void after(void* stream, bool captured) {
        void* const own = gpu_->stream();
        if (captured || stream == own) return;
        behind_.record(stream);
        if (in_graphs_) behind_.let_wait(own); // where jali launches its graphs
    }

  private:
    std::shared_ptr<Gpu> gpu_;
    void* last_;      // stream
    GpuEvent behind_; // the last run, unless it is on the device's own stream
    bool in_graphs_ = false;
};

} // namespace jali
