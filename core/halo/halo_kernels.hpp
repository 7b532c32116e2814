// Parameters of the kernels that carry halos between devices; the same structures as in prelude/builtin.hpp.
#pragma once

#include "device/gpu.hpp"

#include <algorithm>
#include <cstdint>

namespace jali {

struct HaloJob {
    std::int32_t item, message, turn, turns;
};
struct PackPart {
    GpuAddress field, sites;
    std::int64_t count, packets, packet_bytes, group_bytes, row_bytes;
    GpuAddress to;
};
struct PackMessage {
    std::int64_t jobs;
    GpuAddress arrived, credit;
    std::int64_t ahead;
};
struct PackArguments {
    GpuAddress parts, messages, jobs;
    std::int64_t count, job_count, busy, slot_bytes;
    GpuAddress epoch, retired, opened;
    std::int64_t opened_count;
    GpuAddress awaited;
    std::int64_t awaited_count, last;
    GpuAddress watch;
};
// The roles of blocks of a kernel that computes sites and exchanges halos. Bulk blocks are the first or
// follow the packing blocks, late blocks are the last.
struct HaloRoles {
    std::int64_t pack_blocks, bulk_blocks, late_blocks;
    std::int64_t first_bulk; // block
    std::int64_t begin, end; // of the boundary, which is late
    GpuAddress blocks, sums;
    std::int64_t sites_wait; // not 0: sites wait for packing, since they write packed data
    std::int64_t counted;    // blocks with which the exchange ends; 0: it continues
    GpuAddress packed, retired;
    PackArguments pack;

    // Sets the packing blocks; the computing blocks are set already. Half of the places are for packing: with
    // a quarter other ranks wait longer than the bulk gains. Beside a bulk of a few waves packing blocks
    // would add one wave; there bulk blocks pack first, and some more of them (H200, H100: 3 to 5 %). In a
    // bulk that leaves places, and in a long one, this only delays the messages (6 % and 1 to 4 %).
    void deal_out(std::int64_t jobs, std::int64_t resident_blocks) {
        constexpr std::int64_t few_waves = 4;
        pack_blocks = std::clamp<std::int64_t>(jobs, 1, std::max<std::int64_t>(1, resident_blocks / 2));
        first_bulk = pack_blocks;
        if (sites_wait != 0 || grid() <= resident_blocks || bulk_blocks > few_waves * resident_blocks) return;
        first_bulk = 0;
        pack_blocks = std::clamp<std::int64_t>(
            jobs, 1,
            std::max<std::int64_t>(1, std::min(resident_blocks * 5 / 8, resident_blocks - 1 - late_blocks)));
    }
    std::int64_t grid() const { return std::max(pack_blocks, first_bulk + bulk_blocks) + late_blocks; }
    // The blocks that read the count of exchanges: the bulk does if it waits for packing.
    std::int64_t that_count() const {
        return pack_blocks + late_blocks + (sites_wait != 0 ? bulk_blocks : 0);
    }
};
struct ArrivalArguments {
    GpuAddress awaited;
    std::int64_t count;
    GpuAddress epoch;
    std::int64_t last;
    GpuAddress watch;
};
struct SignalArguments {
    GpuAddress messages;
    std::int64_t count;
    GpuAddress epoch;
};
struct AwaitArguments {
    GpuAddress messages;
    std::int64_t count;
    GpuAddress epoch, watch;
};
struct ReceiveSection {
    GpuAddress from, to;
    std::int64_t bytes;
    GpuAddress arrived;
};
struct ReceiveArguments {
    GpuAddress sections, jobs;
    std::int64_t job_count, slot_bytes;
    GpuAddress epoch, retired, senders;
    std::int64_t senders_count, last;
    GpuAddress watch;
};

} // namespace jali
