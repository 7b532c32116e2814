// The exchange of one set of stale ghost parts between devices, put on streams around a kernel.
//
// Its steps are those of halo_schedule.hpp, and of their batches a program for two streams is made: the
// device's own and one beside it. Packing is one launch for all messages; the policy's transport carries them
// (halo_transport.hpp). The caller defines what the kernel's parts compute.
#pragma once

#include "device/stream_program.hpp"
#include "halo/exchange.hpp"
#include "halo/halo_transport.hpp"
#include "halo/policy.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace jali {

// The computation of the sites whose halos are exchanged.
class HaloComputation {
  public:
    virtual ~HaloComputation() = default;
    virtual bool has_bulk() const { return false; }
    // Whether the last part of the boundary follows only the exchange, to use places that the end of the bulk
    // leaves.
    virtual bool boundary_fills() const { return false; }
    virtual void bulk(void*) {}
    virtual void boundary(int, void*) {} // the sites of a stage

    // By a kernel that has roles for it (prelude/halos.hpp), if there is one: the blocks of these sites, and
    // how many the device has places for; and its launch.
    struct Roles {
        HaloRoles blocks{};
        std::int64_t resident_blocks = 1;
    };
    virtual bool has_roles() const { return false; }
    virtual Roles roles(const Batch&) { return {}; }
    virtual void launch(const Batch&, const HaloRoles&, void*) {}
};

class GpuExchange {
  public:
    // `stale` is [request][parity]; the same on all ranks. Collective where the policy's transport maps
    // memory or sets up a library. `written` are the fields and parities that the kernel writes. Throws
    // GpuError; CannotMap, on all ranks, where a field's ghosts cannot be mapped.
    GpuExchange(std::shared_ptr<LocalLayout> layout, const std::vector<HaloRequest>& requests,
                const std::vector<char>& stale, const HaloPolicy& policy,
                std::shared_ptr<Communicator> communicator,
                const std::vector<std::pair<std::shared_ptr<FieldStorage>, int>>& written);

    // Exchanges and computes, in the steps of the policy; later work on the device's own stream follows all
    // of it. Marks the ghosts as filled with the versions at the start, and counts. Throws CannotMap before
    // any work is started.
    void run(HaloComputation& computation);
    // All that a run needs of the host and of other ranks, so that the next one can be recorded in a graph.
    // Marks the ghosts as filled, as a run does, and counts nothing. Throws as run() does.
    void warm_up(HaloComputation& computation);

    const Schedule& schedule() const { return halo_.steps.schedule; }
    std::string describe() const { return program_ ? program_->describe() : ""; } // as it ran

    // The stages of the boundary: stage s needs the messages of slabs that reach into directions up to this,
    // in ascending order. One stage that needs all, unless the policy works by directions.
    int stages() const { return halo_.stages(); }
    int direction_of(int stage) const { return halo_.directions[stage]; }

  private:
    void allocate();    // the schedule's buffers that neither fields nor the transport provide
    void make_tables(); // the kernels' descriptions of what to do, with present addresses
    GpuAddress address_of(const HaloBuffer& buffer) const;
    void prepare(HaloComputation& computation); // of every run
    void produce_items(void* stream);
    PackArguments pack_arguments(const Batch& batch) const;
    void make_program(const HaloShape& shape);
    StreamProgram::Work work_of(const Batch& batch);
    void pack(const Batch& batch, void* stream);
    void run_in_kernel(const Batch& batch, void* stream);

    HaloPolicy policy_;
    HaloOnDevice halo_;
    std::vector<FieldStorage*> written_;
    bool writes_packed_ = false;
    std::unique_ptr<HaloConnection> connection_;
    GpuMemory items_, packed_;       // results of producers of halo items; messages to be sent
    PinnedMemory staged_, received_; // messages on the host
    HaloBlocks pack_blocks_ = halo_blocks;
    GpuMemory all_packed_; // for roles: the last exchange whose messages are packed
    GpuMemory parts_, sends_, send_jobs_;
    std::int64_t send_job_count_ = 0;
    std::optional<std::vector<std::uint64_t>> addresses_; // that the tables were made for, maybe none
    HaloShape shape_;                                     // that the program was made for
    std::unique_ptr<StreamProgram> program_;
    HaloComputation* computation_ = nullptr; // of this run
};

} // namespace jali
