// The progress of a device through its work, for a waiting host that cannot observe kernels.
//
// Events follow long launches and every 64th of the others, each with a description of the work before it. A
// device that passes no event for a long time makes no progress. Work recorded in a graph is described by the
// graph, which gets an event at each launch.
#pragma once

#include "device/gpu_api.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace jali {

class DeviceProgress {
  public:
    static constexpr std::size_t long_launch = 256 << 10; // bytes that a collective moves

    explicit DeviceProgress(const GpuApi& api) : api_(api) {}
    DeviceProgress(const DeviceProgress&) = delete;

    bool is_due() { return ++launches_ % 64 == 0; } // an event behind a short launch
    // Puts an event on this stream, which is not captured.
    void mark(void* stream, const std::string& what);
    std::uint64_t passed(); // how many events the device has passed so far
    std::string ahead();    // the work before the first events that it has not passed; may be empty

    // Collects the work that this thread records in a graph.
    static void begin_recording();
    static bool is_recording();
    static void note_recorded(const std::string& what);
    static std::string end_recording(); // in words

  private:
    struct Mark {
        void* event;
        std::string what;
    };
    void update(); // with the mutex held

    static constexpr std::size_t most_ahead = 64;
    const GpuApi& api_;
    std::atomic<std::uint64_t> launches_ = 0;
    std::mutex mutex_;
    std::deque<Mark> ahead_;
    std::vector<void*> free_; // events
    std::uint64_t passed_ = 0;
};

} // namespace jali
