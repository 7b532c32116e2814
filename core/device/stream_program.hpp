// Work on several streams of a device, in an order of needs: launches, copies, groups of a library, and what
// the host does in between.
//
// Steps are put on their streams in the order in which they were added. A step that needs one of another
// stream waits for an event behind it; what an earlier wait, or the order of a stream, has settled is not
// waited for again. Stream 0 is where the program stands: the others begin behind what was on it, and what
// comes next on it comes after all of them. All of it can be part of a graph, unless a step is the host's.
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

    // `needs` are steps that were added before, of any stream; what has no work only keeps its place. Returns
    // its number.
    int add(std::string name, int stream, std::span<const int> needs, Work work);

    // Puts everything on these streams, which are the caller's by their number. What a step that throws has
    // left on them is waited for by the device's own stream: memory that it uses may go now, and returns to a
    // pool that only this takes from.
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
    std::vector<int> open_ends() const; // streams whose end stream 0 has not come after

    std::shared_ptr<Gpu> gpu_;
    std::vector<Step> steps_;
    std::unique_ptr<GpuEvent> start_;             // if a stream begins with it
    std::vector<std::unique_ptr<GpuEvent>> ends_; // [stream]
};

} // namespace jali
