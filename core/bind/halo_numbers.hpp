// Conversions that the bindings of core/halo share.
#pragma once

#include "halo/local_layout.hpp"

#include <cstdint>

#include <nanobind/nanobind.h>

namespace jali {

inline std::uintptr_t address(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

inline nanobind::dict dict_of(const HaloCounters& counters) {
    nanobind::dict dict;
    dict["exchanged"] = counters.exchanged;
    dict["avoided"] = counters.avoided;
    dict["messages"] = counters.messages;
    dict["bytes"] = counters.bytes;
    return dict;
}

} // namespace jali
