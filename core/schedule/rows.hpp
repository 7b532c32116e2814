// What copy and reduce steps do to memory, block by block, with a call between the blocks of long rows.
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

// `between(bytes)` is called between blocks, with the bytes that were touched since the last call.
template <class Between>
void copy_rows(const CopyRows& row, std::span<std::byte* const> buffers, Between&& between) {
    const std::byte* from = address(buffers, row.from);
    std::byte* to = address(buffers, row.to);
    if (!row.rows) {
        for (std::size_t done = 0; done < row.to.bytes;) {
            const std::size_t bytes = std::min(bytes_per_copy, row.to.bytes - done);
            copy_bytes(to + done, from + done, bytes);
            if ((done += bytes) < row.to.bytes) between(bytes);
        }
        return;
    }
    if (row.row_bytes == 0) return;
    const std::size_t count = row.to.bytes / row.row_bytes;
    const std::size_t rows_per_block = std::max<std::size_t>(1, bytes_per_block / row.row_bytes);
    const std::int32_t* rows = row.rows->data() + row.first_row;
    for (std::size_t k = 0; k < count;) {
        for (const std::size_t end = std::min(count, k + rows_per_block); k < end; ++k)
            copy_bytes(to + k * row.row_bytes, from + rows[k] * row.row_bytes, row.row_bytes);
        if (k < count) between(rows_per_block * row.row_bytes);
    }
}

template <class Between>
void reduce_row(const Reduction& how, const ReduceRow& row, std::span<std::byte* const> buffers,
                Between&& between) {
    constexpr std::size_t few = 16;
    const void* some[few];
    std::vector<const void*> many;
    if (row.from.size() > few) many.resize(row.from.size());
    const std::span<const void*> sources(row.from.size() > few ? many.data() : some, row.from.size());
    const std::size_t element = size_of(how.type);
    for (std::size_t done = 0; done < row.into.bytes;) {
        const std::size_t bytes = std::min(bytes_per_block, row.into.bytes - done);
        for (std::size_t k = 0; k < sources.size(); ++k) sources[k] = address(buffers, row.from[k]) + done;
        reduce(how, address(buffers, row.into) + done, sources, bytes / element);
        if ((done += bytes) < row.into.bytes) between(bytes * sources.size());
    }
}

} // namespace jali
