// Records the calls of a thread to a device's driver and to the message libraries.
//
// Calls are recorded only while a DriverRecord exists or a graph is made, which keeps its calls; otherwise a
// call reads one pointer. The record contains what the driver receives, so that a check of it
// (core/schedule/call_decoder) checks what runs. Memory is named by its addresses; its contents may have
// changed when the record is read.
#pragma once

#include "device/gpu_api.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace jali {

struct DriverCall {
    enum class Kind : std::uint8_t {
        launch,
        copy, // between memory of devices, or of a device and the host
        fill,
        record,     // of an event, on a stream
        let_wait,   // a stream, for an event
        host_waits, // for an event, or for a stream
        send,       // a message of the communicator's; its bytes are free at the next `complete`
        receive,
        complete, // of all messages before, on the host
        ccl_send, // a message of the library's; parts of a group are followed by group_end
        ccl_receive,
        group_end,
        begin_graph, // a graph is launched on `stream`: what follows was put on `captured` and other streams
        end_graph,
        refused, // a call that cannot be described
        mark,    // a note of the recorder
    };
    Kind kind;
    std::string name = {}; // of a kernel
    void *stream = nullptr, *event = nullptr, *function = nullptr, *captured = nullptr;
    unsigned blocks = 0, threads = 0;
    std::int64_t resident =
        0; // blocks that find a place at a time, of a launch that has the device for itself
    std::uint64_t device = 0;              // Gpu::number
    std::vector<std::byte> arguments = {}; // of a launch
    std::uint64_t to = 0, from = 0, bytes = 0;
    int peer = -1, tag = 0;
};

const char* name_of(DriverCall::Kind kind);

class DriverRecord {
  public:
    DriverRecord(); // of this thread, from now on until it stops; meanwhile an earlier one gets nothing
    ~DriverRecord() { stop(); }
    DriverRecord(const DriverRecord&) = delete;
    void stop();
    std::vector<DriverCall> calls;

    static bool on() { return current_ != nullptr; }
    static void note(DriverCall call) {
        if (current_ != nullptr) current_->calls.push_back(std::move(call));
    }

  private:
    static thread_local DriverRecord* current_;
    DriverRecord* before_;
};

} // namespace jali
