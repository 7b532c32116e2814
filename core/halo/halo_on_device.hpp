// The data of an exchange of halos between devices for its transport: messages, steps, and their memory.
#pragma once

#include "device/timeline.hpp"
#include "halo/halo_kernels.hpp"
#include "halo/halo_schedule.hpp"
#include "messaging/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace jali {

// Blocks of a launch that packs or unpacks: how many, about, and their threads.
struct HaloBlocks {
    std::size_t most;
    unsigned threads;
};
// The blocks that fill a link. Beside a bulk, whose blocks often take a multiprocessor each, the fewest
// multiprocessors that nearly fill it (measured on H200).
constexpr HaloBlocks halo_blocks{128, 256}, beside_bulk{12, 1024};

// Deals an item of a message out to blocks; how many there are.
std::int64_t deal_out(std::vector<HaloJob>& jobs, std::size_t item, std::size_t message, std::size_t bytes,
                      std::size_t all_bytes, const HaloBlocks& blocks);

struct HaloOnDevice : HaloMessages {
    using HaloMessages::HaloMessages;

    GpuAddress at(const Region& region) const { return memory[region.buffer] + region.offset; }
    // The word that counts finished blocks or messages: of a message, or of another numbered object.
    GpuAddress retired_word(std::size_t number) const {
        return retired.address() + number * sizeof(std::int64_t);
    }
    Work sent() const; // for profiles
    Work received(int stage) const;

    template <class Entry>
    GpuMemory upload(const std::vector<Entry>& entries) const {
        return gpu->upload(entries.data(), entries.size() * sizeof(Entry), "halo tables");
    }

    std::shared_ptr<Gpu> gpu;
    std::shared_ptr<Communicator> communicator;
    HaloSchedule steps;
    std::vector<GpuAddress> memory; // [buffer of the schedule], in this run
    GpuMemory retired;              // [message], then those of the transport: zero before and after
};

} // namespace jali
