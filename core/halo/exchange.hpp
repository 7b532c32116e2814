// The exchange of one set of stale ghost parts, built as a schedule around a kernel.
//
// One message per slab, tagged by the slab's number, carries the stale parities of every field that is read
// there. Messages are matched by slab, not by peer: with two ranks in a direction both neighbours are the
// same peer. Where the neighbour's memory is exposed, its ghosts are packed into,
// between two signals: that they may be written, and that they are. Else a message with one field lands in
// its ghosts directly; otherwise it is unpacked. Ghost blocks are whole blocks of the sender, so packing
// gathers blocks; for a halo item a kernel writes them. What the kernel's parts compute is the caller's
// business.
#pragma once

#include "halo/policy.hpp"
#include "halo/storage.hpp"
#include "schedule/executor.hpp"
#include "schedule/moments.hpp"

#include <memory>
#include <vector>

namespace jali {

class HaloExchange {
  public:
    // `stale` is [request][parity]. `body` runs part 0 and, if `overlap`, part 1 of the kernel; the last part
    // runs after all arrivals. Requests and staleness must be the same on all ranks. `written` are the fields
    // that the kernel writes. Collective where memory is `exposed`. Throws TransportError.
    HaloExchange(std::shared_ptr<PlacedLayout> layout, const std::vector<HaloRequest>& requests,
                 const std::vector<char>& stale, bool exposed, bool overlap,
                 std::shared_ptr<Communicator> communicator, std::shared_ptr<ThreadPool> pool,
                 std::vector<FieldStorage*> written, std::function<void(int part, const Progress*)> body);

    // Exchanges, computes, marks the ghosts as filled with the versions at the start, and counts.
    void run();
    void leave_out(); // only marks them: the ghosts keep what they hold

    const Schedule& schedule() const { return executor_->schedule(); }
    RankMoments moments(); // of some runs; throws ScheduleError

  private:
    struct Filled {
        FieldStorage* field;
        int slab, parity;
        std::uint64_t version;
    };
    // A field's owned blocks; its ghosts, or those of its part on another rank.
    enum class Of : std::uint8_t { owned, ghosts, their_ghosts };
    struct FieldBuffer {
        FieldStorage* field;
        Of of;
        int rank; // whose ghosts
        bool operator==(const FieldBuffer&) const = default;
    };
    int buffer_of(Schedule& schedule, FieldStorage* field, Of of = Of::owned, int rank = -1);
    // Adds the step that writes this field's part of the message at `to`; returns it.
    int add_pack(Schedule& schedule, const Slab& slab, FieldStorage* field, int parity, Region to,
                 std::vector<Port> needs);
    // Whether a message of so many bytes to or from this rank is put.
    bool is_put(int rank, std::size_t bytes) const;

    std::shared_ptr<PlacedLayout> layout_;
    std::shared_ptr<Communicator> communicator_;
    std::shared_ptr<ExposedMemory> exposed_; // null: everything goes as messages
    std::vector<std::shared_ptr<FieldStorage>>
        kept_;                        // keeps the fields below alive, in an order all ranks share
    std::vector<FieldBuffer> fields_; // of buffer 2 + k
    std::vector<Filled> filled_;
    std::vector<std::pair<FieldStorage*, HaloCounters>> counts_; // per run
    HaloCounters total_;                                         // per run
    std::size_t send_bytes_ = 0, receive_bytes_ = 0;
    std::vector<std::byte*> addresses_;
    std::unique_ptr<Executor> executor_;
};

// Parameters 0 to 7 of the kernel ABI for positions of a block list, without sums, masks and counters.
void fill_device_parameters(std::uint64_t* parameters,
                            PlacedLayout& layout); // the same with addresses on the device
void fill_standard_parameters(std::uint64_t* parameters, const PlacedLayout& layout,
                              const std::int32_t* blocks);

} // namespace jali
