// The operations that one plan, exchange or halo passes to the library of collectives, on memory that it
// accepts.
//
// The library accesses registered memory of peers directly: symmetric windows and, in graphs, all memory with
// a handle of its own. Each of its ranks examines its own memory only, and all ranks of an operation, for
// sources and destinations, have to reach the same result; else it waits for ever (User Buffer Registration,
// in NCCL's user guide). So all ranks pass memory of one kind, that of their pools: windows only to
// collectives between windows, and memory of another kind from another library through a copy.
#pragma once

#include "device/stream_order.hpp"
#include "peers/ccl_group.hpp"

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace jali {

class CclOperations {
  public:
    explicit CclOperations(std::shared_ptr<CclGroup> group) : group_(std::move(group)) {}
    ~CclOperations();
    CclOperations(const CclOperations&) = delete;

    CclGroup& group() const { return *group_; }

    // As those of the group. Calls are those of one collective; memory of copies that are recorded in a graph
    // stays as long as this.
    void issue(std::vector<CclCall> calls) { put(std::move(calls), true); }
    void exchange(std::span<const CclMessage> messages, void* stream);

  private:
    struct Copy {
        GpuAddress of, at;
        std::size_t bytes;
    };
    void put(std::vector<CclCall> calls, bool between_windows);
    GpuAddress copy_of(GpuAddress address, std::size_t bytes, std::size_t number, bool captured);

    std::shared_ptr<CclGroup> group_;
    std::vector<GpuMemory> in_turn_; // of runs on streams, one after the other
    std::map<std::pair<GpuAddress, std::size_t>, GpuMemory> recorded_;
    std::unique_ptr<StreamOrder> order_; // null: nothing has been copied
};

} // namespace jali
