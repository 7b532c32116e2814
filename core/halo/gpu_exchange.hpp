// The exchange of one set of stale ghost parts between devices, put on streams around a kernel.
//
// Messages are those of halo_messages.hpp; packing is one launch for all of them. Who carries them is the
// policy's transport (halo_transport.hpp): here is the order in which it is called, and on which streams.
// What the kernel's parts compute is the caller's business.
#pragma once

#include "halo/exchange.hpp"
#include "halo/halo_transport.hpp"
#include "halo/policy.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace jali {

class GpuExchange {
  public:
    // `stale` is [request][parity]; the same on all ranks. Collective where the policy's transport maps
    // memory or sets up a library. `written` are the fields and parities that the kernel writes. Throws
    // GpuError; CannotMap, on all ranks, where a field's ghosts cannot be mapped.
    GpuExchange(std::shared_ptr<PlacedLayout> layout, const std::vector<HaloRequest>& requests,
                const std::vector<char>& stale, const HaloPolicy& policy,
                std::shared_ptr<Communicator> communicator,
                const std::vector<std::pair<std::shared_ptr<FieldStorage>, int>>& written);

    // Exchanges; calls bulk (if overlapped, and if there is one) and boundary when what they need is ordered
    // before them on the stream that they are given. What comes next on the device's own stream comes after
    // all of it. Marks the ghosts as filled with the versions at the start, and counts. Throws CannotMap
    // before anything has been done. The last part of the boundary comes after the exchange and the bulk, or,
    // if it fills, after the exchange alone, for the places that the end of the bulk leaves.
    using Bulk = std::function<void(void* stream)>;
    using Boundary = std::function<void(int stage, void* stream)>;
    void run(const Bulk& bulk_if_any, const Boundary& boundary, bool boundary_fills);

    // The same by a kernel that has roles for it (prelude/halos.hpp), in one launch or two, as the policy
    // says. `roles` has the blocks of bulk and boundary, and the boundary's sites.
    using InKernel =
        std::function<void(const HaloRoles& roles, std::int64_t sites, Phase phase, void* stream)>;
    void run_in_kernel(HaloRoles roles, std::int64_t most_pack_blocks, const InKernel& launch,
                       std::int64_t bulk_sites, std::int64_t late_sites);

    // The stages of the boundary: stage s needs the messages of slabs that reach into directions up to this,
    // in ascending order. One that needs all, unless the policy goes by directions.
    int stages() const { return static_cast<int>(halo_.stages.size()); }
    int direction_of(int stage) const { return halo_.stages[stage].direction; }

    ~GpuExchange();

  private:
    using Message = HaloMessages::Message;
    using Part = HaloMessages::Part;
    struct Filled {
        FieldStorage* field;
        int slab, parity;
        std::uint64_t version;
    };

    void make_messages(const std::vector<HaloRequest>& requests, const std::vector<char>& stale);
    void make_tables(); // the kernels' descriptions of what to do, with present addresses
    void begin();       // of every run
    void produce_items(void* stream);
    PackArguments pack_arguments() const;
    void pack(void* stream);
    void count();

    HaloPolicy policy_;
    HaloMessages halo_;
    std::unique_ptr<HaloCarrier> carrier_;
    std::vector<Filled> filled_;
    GpuMemory produced_; // what producers of halo items compute
    HaloBlocks pack_blocks_ = halo_blocks;
    GpuMemory all_packed_; // for roles: the last exchange whose messages are packed
    GpuMemory parts_, sends_, send_jobs_;
    std::int64_t send_job_count_ = 0;
    std::vector<std::uint64_t> addresses_; // that the tables were made for
    std::unique_ptr<GpuEvent> before_, side_done_;
    std::vector<std::unique_ptr<GpuEvent>> stage_arrived_; // of all stages but the last
};

} // namespace jali
