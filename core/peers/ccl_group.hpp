// The one communicator of NCCL or RCCL for the ranks of a Communicator and a device, for all that uses it:
// halos, messages, collectives.
//
// Made from a Communicator, which remains the control plane: over it the ranks agree on the setup and report
// failures to each other, which the library itself cannot do (its ranks would wait for ever).
//
// Order. The library matches what ranks do by the order in which they do it. So all ranks issue their common
// operations in the same order, for any purpose and on any stream: two that exchange a message and a halo in
// different orders wait for ever, or until the watchdog. Programs in which all ranks run the same code do so
// by themselves. On a device operations run one after the other in the order in which they were issued: the
// library lets a stream wait for the operation before if that is on another one, also where one of them is
// recorded in a graph (enqueue.cc of NVIDIA/nccl: a kernel waits for the communicator's own stream, which
// waits for the kernel; graphs: unless NCCL_GRAPH_MIXING_SUPPORT is 0), so that no events of ours are needed.
// An operation is issued by one host thread at a time.
//
// The host waits with wait() or synchronize(), which check for failures of all ranks and time out after the
// watchdog's time; so does Gpu::synchronize() while the device has a group. A bare wait of the driver would
// not end after another rank's failure. Calls in which the library first connects to other ranks are watched
// in the same way. After an error the library's communicator is aborted and unusable; ending it takes a few
// seconds at most, whatever the other ranks do.
#pragma once

#include "device/ccl_api.hpp"
#include "device/gpu.hpp"
#include "messaging/communicator.hpp"
#include "peers/device_waits.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace jali {

struct CclMessage {
    GpuAddress at; // of what is sent, or where it arrives
    std::size_t bytes;
    int peer;
    bool sends;
};

// An operation for the library, with its numbers of types and operations. What only moves goes as bytes.
struct CclCall {
    enum class Kind {
        send,
        receive,
        all_reduce,
        reduce_scatter,
        reduce,
        broadcast,
        all_gather,
        gather,
        scatter,
        all_to_all,
        copy
    };
    Kind kind;
    GpuAddress from, to;
    std::size_t count; // elements of `type`
    int type, operation, peer;
    void* stream;
};

// Used by one thread at a time, the one that may use the control communicator. Work is put on streams through
// CclOperations (ccl_operations.hpp), which chooses memory that the library may take. Every error of the
// library or the device is a GpuError, failures of other ranks are RankFailure, impossible arguments
// std::invalid_argument.
class CclGroup {
  public:
    // The group of these ranks and this device, made at the first call, which is collective; it exists as
    // long as `ranks`. `library` is a path known to the caller, see CclApi::get. Throws GpuError on all ranks
    // if one of them has no library, another version or another kind of device, or if two ranks have the same
    // device; the same GpuError is thrown by later calls.
    static std::shared_ptr<CclGroup> shared(Communicator& ranks, const std::shared_ptr<Gpu>& gpu,
                                            const std::string& library = "");
    // Empty if shared() works, else what it would throw. Collective at first.
    static std::string why_not(Communicator& ranks, const std::shared_ptr<Gpu>& gpu);

    CclGroup(std::shared_ptr<Communicator> control, std::shared_ptr<Gpu> gpu, const std::string& library);
    ~CclGroup();
    CclGroup(const CclGroup&) = delete;

    int rank() const { return control_->rank(); }
    int size() const { return control_->size(); }
    const std::shared_ptr<Gpu>& gpu() const { return gpu_; }
    const CclApi& api() const { return *api_; }

    void check_usable() const; // throws GpuError if it has ended, or failed

    // Puts `calls` on their streams as one operation with concurrent parts; messages between two ranks match
    // in order. Copies precede it.
    void issue(std::vector<CclCall> calls);
    // Bytes that this rank reads and writes in a call.
    struct Extent {
        std::size_t read, written;
    };
    Extent extent_of(const CclCall& call) const;
    bool in_window(GpuAddress address) const;
    // Whether memory at this address is of the kind that all ranks give to the library, outside and inside of
    // graphs.
    bool takes(GpuAddress address, bool in_graph) const;
    GpuMemory allocate(std::size_t bytes, std::string_view label); // of that kind

    // Device memory of the same size on all ranks, registered with the library as a symmetric window:
    // collectives between windows use the library's kernels for them. Collective. Whole pages; memory that
    // all ranks have released is reused or, at a later call, freed. Throws GpuError where there are no
    // windows (see why_no_windows), OutOfMemory on the rank that has none, std::invalid_argument if ranks
    // differ; on all ranks.
    std::shared_ptr<GpuMemory> symmetric(std::size_t bytes);
    const std::string& why_no_windows() const { return why_no_windows_; } // the same on all ranks

    // Throws GpuError if the library has met an error since, RankFailure if another rank has failed.
    void check();

    // The host waits for work on a stream; `what` names the work in errors.
    void wait(const GpuEvent& event, const std::string& what);
    void synchronize(const std::string& what, void* stream);

    // Ends the group, as the destructor does otherwise; to be called by all ranks. Does not throw, and stops
    // waiting for other ranks after 10 seconds (or the watchdog's time, if less).
    void close() noexcept;

  private:
    struct Window {
        std::shared_ptr<GpuMemory> memory; // in use while it has other owners
        CclWindow handle;
    };

    void agree(const std::string& library);
    void note(const std::vector<CclCall>& calls) const; // if calls are recorded
    bool met_before(const CclCall& call);
    void settle(int error, const std::string& what);
    int with_timeout(const std::string& what, std::function<int()> call);
    template <class Done>
    void await(const std::string& what, Done&& done); // done(): polls, may rest, true at the end
    template <class Observe>
    void guard(const std::string& what, Observe&& observe); // aborts the group if it throws
    void deregister(const std::vector<char>& which);
    [[noreturn]] void give_up(const std::string& cause);
    void abandon() noexcept;
    void finish(int (*function)(CclHandle)) noexcept;
    std::string here() const; // "NCCL on rank 1 of 4"
    std::string in_words(const std::vector<CclCall>& calls) const;

    std::shared_ptr<Communicator> control_;
    std::shared_ptr<Gpu> gpu_;
    const CclApi* api_ = nullptr;
    double limit_; // the watchdog's
    std::shared_ptr<DeviceWaits> waits_;
    CclHandle comm_ = nullptr;
    std::string why_not_;               // it is of no more use
    std::set<std::pair<int, int>> met_; // kinds of calls that have connected what they need
    bool with_handles_ = false;         // so is the memory of all ranks' pools
    std::string why_no_windows_;
    std::vector<Window> windows_; // in the order in which they were made, as on all ranks
};

} // namespace jali
