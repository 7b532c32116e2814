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

// The common properties of arrays of one kind, shared by arrays that are made like another.
struct ArrayKind {
    ArrayKind(nanobind::object gpu, nanobind::tuple shape, const std::string& element);
    bool operator==(const ArrayKind& other) const;

    nanobind::object gpu_object; // the Python object of `gpu`: arrays on one device are recognized by its
                                 // identity
    std::shared_ptr<Gpu> gpu;
    nanobind::tuple shape;
    DataType type;
    nanobind::object element; // the name of the type
    std::size_t size = 1;     // elements
    std::size_t nbytes = 0;
    std::int64_t rows = 1, row = 1; // along the first dimension, 1 where there is none; elements of one
};

// A C-contiguous array on a device, valid as long as the owner of the memory.
struct GpuArray {
    std::shared_ptr<const ArrayKind> kind;
    GpuAddress address = 0;
    std::shared_ptr<GpuMemory> memory; // null: owned by another library
    // Handle of the stream on which the owner uses the array afterwards.
    std::uintptr_t owner_stream = 0;
    bool read_only = false;
    nanobind::object owner; // the array of another library; not valid: it is jali's

    // A new array in memory of jali's; `label` names it in reports.
    static GpuArray like(const std::shared_ptr<const ArrayKind>& kind, const char* label);
};

// Makes the owners' streams of these arrays (null is none) wait for jali's work so far.
void let_owners_go_on(std::span<const GpuArray* const> arrays);

// The stream of a user's argument; none: jali's own. Raises ParameterError if it is no stream.
std::optional<void*> stream_of(nanobind::handle given);

// The array in a Python object; null if it is none.
const GpuArray* gpu_array_of(nanobind::handle object);

} // namespace jali
