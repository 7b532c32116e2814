// What the kernels that carry halos between devices take; the same structures as in prelude/builtin.hpp.
#pragma once

#include "device/gpu.hpp"

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
// Of a kernel that computes sites and exchanges halos: what its blocks do, one kind after the other.
struct HaloRoles {
    std::int64_t pack_blocks, bulk_blocks, late_blocks;
    std::int64_t begin, end; // of the boundary, which is late
    GpuAddress blocks, sums;
    std::int64_t sites_wait; // not 0: they write what is packed
    std::int64_t counted;    // blocks with which the exchange ends; 0: it goes on
    GpuAddress packed, retired;
    PackArguments pack;
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
