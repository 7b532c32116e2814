// How far a device has come with what it was given, for a host that waits for it and cannot look inside.
//
// Events stand behind long launches and behind every 64th of the others, each with words for what it is
// behind. A device that passes none of them for a long time does not move. What is recorded in a graph is
// noted by the graph, which gets an event at each launch.
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
    // An event behind what was put on this stream last, which is not captured.
    void mark(void* stream, const std::string& what);
    std::uint64_t passed(); // how many events the device has passed so far
    std::string ahead(); // what the first of those are behind that it has not passed; empty: there are none

    // What this thread records in a graph meanwhile.
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
