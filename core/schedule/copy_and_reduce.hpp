// Copy and reduce steps on memory, block by block, with a call between the blocks of long copies.
#pragma once

#include "device/copy_bytes.hpp"
#include "schedule/schedule.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

namespace jali {

constexpr std::size_t bytes_per_block = std::size_t{1} << 18, bytes_per_copy = std::size_t{1} << 20;

inline std::byte* address(std::span<std::byte* const> buffers, const Region& region) {
    return buffers[region.buffer] + region.offset;
}

// Blocks of a copy, which any threads may do in any order.
struct CopyBlocks {
    CopyBlocks(const CopySpec& spec, std::span<std::byte* const> buffers)
        : spec(spec), from(address(buffers, spec.from)), to(address(buffers, spec.to)),
          unit(spec.rows ? spec.row_bytes * std::max<std::size_t>(
                                                1, bytes_per_block / std::max<std::size_t>(1, spec.row_bytes))
                         : bytes_per_copy),
          count(unit > 0 ? (spec.to.bytes + unit - 1) / unit : 0) {}

    std::size_t bytes(std::size_t block) const { return std::min(unit, spec.to.bytes - block * unit); }

    void copy(std::size_t block) const {
        const std::size_t begin = block * unit, size = bytes(block);
        if (!spec.rows) return copy_bytes(to + begin, from + begin, size);
        const std::int32_t* rows = spec.rows->data() + spec.first_row;
        for (std::size_t k = begin / spec.row_bytes; k < (begin + size) / spec.row_bytes; ++k)
            copy_bytes(to + k * spec.row_bytes, from + rows[k] * spec.row_bytes, spec.row_bytes);
    }

    const CopySpec& spec;
    const std::byte* from;
    std::byte* to;
    std::size_t unit, count; // bytes of a block but the last, blocks
};

// `between(bytes)` is called between blocks, with the bytes that were touched since the last call.
template <class Between>
void run_copy(const CopySpec& spec, std::span<std::byte* const> buffers, Between&& between) {
    const CopyBlocks blocks(spec, buffers);
    for (std::size_t k = 0; k < blocks.count; ++k) {
        blocks.copy(k);
        if (k + 1 < blocks.count) between(blocks.bytes(k));
    }
}

template <class Between>
void run_reduce(const Reduction& how, const ReduceSpec& spec, std::span<std::byte* const> buffers,
                Between&& between) {
    constexpr std::size_t few = 16;
    const void* some[few];
    std::vector<const void*> many;
    if (spec.from.size() > few) many.resize(spec.from.size());
    const std::span<const void*> sources(spec.from.size() > few ? many.data() : some, spec.from.size());
    const std::size_t element = size_of(how.type);
    for (std::size_t done = 0; done < spec.into.bytes;) {
        const std::size_t bytes = std::min(bytes_per_block, spec.into.bytes - done);
        for (std::size_t k = 0; k < sources.size(); ++k) sources[k] = address(buffers, spec.from[k]) + done;
        reduce(how, address(buffers, spec.into) + done, sources, bytes / element);
        if ((done += bytes) < spec.into.bytes) between(bytes * sources.size());
    }
}

} // namespace jali
