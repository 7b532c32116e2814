// A collective on a device that was not waited for, as Python has it.
#pragma once

#include "device/gpu.hpp"

#include <memory>

#include <nanobind/nanobind.h>

namespace jali {

// It is on its stream already: the event is reached when the stream has done it.
struct DeviceRequest {
    std::unique_ptr<GpuEvent> end;
    void* stream = nullptr;
    bool captured = false; // what the stream is given becomes part of a graph
    nanobind::object result;

    // The moment that the stream has now come to. May wait, for a stream that is full: without the lock.
    static DeviceRequest begun(const std::shared_ptr<Gpu>& gpu, void* stream);
};

} // namespace jali
