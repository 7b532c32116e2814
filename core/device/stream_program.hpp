// Work on several streams of a device, ordered by dependencies: launches, copies, groups of a library, and
// host steps in between.
//
// Steps are put on their streams in the order in which they were added. A step that depends on a step of
// another stream waits for an event after it, unless an earlier wait, or the order of a stream, already
// guarantees the order. Stream 0 is the program's position: the others begin after earlier work on it, and
// later work on it follows all of them. The program can be part of a graph, unless a step runs on the host.
#pragma once

#include "device/gpu.hpp"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace jali {

class StreamProgram {
  public:
    using Work = std::function<void(void* stream)>;

    explicit StreamProgram(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
    StreamProgram(const StreamProgram&) = delete;

    // `needs` are steps that were added before, of any stream; a step without work only defines an order.
    // Returns its number.
    int add(std::string name, int stream, std::span<const int> needs, Work work);

    // Puts everything on these streams, which are the caller's by their number. If a step throws, the
    // device's own stream waits for the work on them: its memory may be freed now, and the pool that gets it
    // is used in the order of this stream only.
    void run(std::span<void* const> streams);

    std::string describe() const; // a line for each step

  private:
    void join(std::span<void* const> streams) noexcept;

    struct Step {
        std::string name;
        int stream;
        Work work;
        bool first;                       // of its stream, with nothing settled: it waits for the start
        std::vector<int> awaited;         // steps of other streams
        std::unique_ptr<GpuEvent> behind; // if another stream waits for it
        std::vector<int> settled;         // [stream]: the last step of it that has run then
    };
    int last_of(int stream) const; // its last step; -1: it has none
    static int settled_by(const Step& step, int stream);
    std::vector<int> open_ends() const; // streams that stream 0 has not waited for

    std::shared_ptr<Gpu> gpu_;
    std::vector<Step> steps_;
    std::unique_ptr<GpuEvent> start_;             // if a stream begins with it
    std::vector<std::unique_ptr<GpuEvent>> ends_; // [stream]
};

} // namespace jali
