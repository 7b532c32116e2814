// The Python object of a collective on a device that was not awaited.
#pragma once

#include "device/gpu.hpp"

#include <memory>

#include <nanobind/nanobind.h>

namespace jali {

// It is on its stream already: the event is reached when the stream has done it.
struct DeviceRequest {
    std::unique_ptr<GpuEvent> end;
    void* stream = nullptr;
    bool captured = false; // work on the stream becomes part of a graph
    nanobind::object result;

    // Records the stream's current end. May wait, if the stream is full: without the lock.
    static DeviceRequest begun(const std::shared_ptr<Gpu>& gpu, void* stream);
};

} // namespace jali
