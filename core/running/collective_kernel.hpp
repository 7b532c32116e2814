// The kernel of collectives, compiled for a wire and a reduction, and its parameters: the same structure as
// in src/jali/codegen/prelude/collective.hpp. Entries of its table are those of device_program.hpp.
#pragma once

#include "device/gpu.hpp"
#include "device/kernel_cache.hpp"
#include "running/device_program.hpp"

#include <cstdint>

namespace jali {

constexpr int most_collective_buffers = 16;
constexpr std::int64_t small_table_words = 160;
struct CollectiveArguments {
    GpuAddress buffers[most_collective_buffers];
    GpuAddress table;
    std::int64_t table_words, instructions, sources, actions, waits, first_last_action;
    std::int64_t iterations, channels, ranks, rank, leads;
    GpuAddress memories, own_memory;
    std::int64_t arrived, freed, queues, slots, slot_bytes;
    GpuAddress numbers, watch, overflows;
    std::int64_t small_table[small_table_words];
};

// Its text for collectives whose messages have this wire and that combine elements by `how`; null: no
// combining. `checked` counts finite numbers that become infinite.
KernelText collective_text(Wire wire, const Reduction* how, bool checked);

// The kernel on a device, compiled when it is first needed. Throws CompileError, GpuError.
GpuFunction collective_kernel(Gpu& gpu, Wire wire, const Reduction* how, bool checked);

} // namespace jali
