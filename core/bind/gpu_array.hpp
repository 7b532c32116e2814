// Arrays in device memory as the bindings see them: src/jali/comm/device_arrays.py derives from GpuArray.
#pragma once

#include "device/gpu.hpp"
#include "schedule/element.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <nanobind/nanobind.h>

namespace jali {

// What arrays that look alike have in common. They share it where one is made like another.
struct ArrayKind {
    ArrayKind(nanobind::object gpu, nanobind::tuple shape, const std::string& element);
    bool operator==(const ArrayKind& other) const;

    nanobind::object gpu_object; // `gpu` as Python has it: that arrays are on one device is seen by identity
    std::shared_ptr<Gpu> gpu;
    nanobind::tuple shape;
    DataType type;
    nanobind::object element; // the name of the type
    std::size_t size = 1;     // elements
    std::size_t nbytes = 0;
    std::int64_t rows = 1, row = 1; // along the first dimension, 1 where there is none; elements of one
};

// A C-contiguous array somewhere on a device, valid as long as whoever owns the memory.
struct GpuArray {
    std::shared_ptr<const ArrayKind> kind;
    GpuAddress address = 0;
    std::shared_ptr<GpuMemory> memory; // null: it is somebody else's
    // Handle of the stream on which the owner goes on to use the array.
    std::uintptr_t owner_stream = 0;
    bool read_only = false;
    nanobind::object owner; // the array of another library; not valid: it is jali's

    // A new array in memory of jali's; `label` says in reports what it is.
    static GpuArray like(const std::shared_ptr<const ArrayKind>& kind, const char* label);
};

// Whoever owns these arrays (null is none) goes on with them when jali's work so far is done.
void let_owners_go_on(std::span<const GpuArray* const> arrays);

// A stream as users name it; none: jali's own. Raises ParameterError for what is no stream.
std::optional<void*> stream_of(nanobind::handle given);

// The array in a Python object; null if it is none.
const GpuArray* gpu_array_of(nanobind::handle object);

} // namespace jali
