// Ranks that each have a GPU, and the collectives of NCCL or RCCL between these.
//
// Made from a Communicator, which stays the control plane: over it the ranks agree before anything starts,
// and tell each other of failures, which the library itself cannot do (its ranks would wait for ever).
// Operations take device addresses and a stream; they return when they are on the stream and run in its
// order. Data moves as bytes, so everything that only moves takes all types; what is combined must be of a
// type and an operation that the library has, complex numbers being pairs for sums and averages.
//
// The host waits with wait() or synchronize(), which listen for failures of all ranks and lose patience after
// the watchdog's time; so does Gpu::synchronize() while there is a communicator on the device. A bare wait of
// the driver would not end when another rank has gone. Calls in which the library connects to others for the
// first time are watched in the same way. After an error the
// communicator is aborted and of no more use; ending it never takes longer than a few seconds, whatever the
// other ranks do.
#pragma once

#include "device/ccl_api.hpp"
#include "device/gpu.hpp"
#include "schedule/element.hpp"
#include "transport/communicator.hpp"

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

// Used by one thread at a time, the one that may use the control communicator. Every error of the library or
// the device is a GpuError, failures of other ranks are RankFailure, impossible arguments
// std::invalid_argument.
class CclCommunicator {
  public:
    using Stream = std::optional<void*>; // of the driver; by default the device's own

    // Collective over `control`. `library` is where the caller has seen one, see CclApi::get. Throws GpuError
    // on all ranks if one of them has no library, another version or another kind of device, or if two ranks
    // have the same device.
    CclCommunicator(std::shared_ptr<Communicator> control, std::shared_ptr<Gpu> gpu,
                    const std::string& library = "");
    ~CclCommunicator();
    CclCommunicator(const CclCommunicator&) = delete;

    // The one that everything on these ranks and this device shares, made at the first call, which is
    // collective; it lives as long as `ranks`. After a failure that all ranks have seen the same GpuError is
    // thrown again.
    static std::shared_ptr<CclCommunicator> shared(Communicator& ranks, const std::shared_ptr<Gpu>& gpu);
    // Empty if shared() works, else what it would throw. Collective at first.
    static std::string why_not(Communicator& ranks, const std::shared_ptr<Gpu>& gpu);

    int rank() const { return control_->rank(); }
    int size() const { return control_->size(); }
    const std::shared_ptr<Gpu>& gpu() const { return gpu_; }
    const CclApi& api() const { return *api_; }

    // Throws GpuError unless the library can combine elements of this type in this way, std::invalid_argument
    // if the operation makes no sense for them.
    void check_combines(DataType type, Operation operation) const;

    // What comes between these becomes one operation, whose parts go on at once: needed wherever ranks send
    // and receive in turn. May be nested. An operation outside of them is a group of its own.
    void group_start() { ++depth_; }
    void group_end();
    void group_drop() noexcept; // leaves all groups; what was in them does not happen

    // Counts are elements. `from` and `to` may be the same where the whole of one is the whole of the other;
    // gathers and scatters also take this rank's part of the larger one in place.
    void send(GpuAddress from, std::size_t count, DataType type, int to_rank, Stream stream = {});
    void receive(GpuAddress to, std::size_t count, DataType type, int from_rank, Stream stream = {});
    void all_reduce(GpuAddress from, GpuAddress to, std::size_t count, DataType type, Operation operation,
                    Stream stream = {});
    void reduce(GpuAddress from, GpuAddress to, std::size_t count, DataType type, Operation operation,
                int root, Stream stream = {}); // `to` matters on the root only
    // Of count elements per rank.
    void reduce_scatter(GpuAddress from, GpuAddress to, std::size_t count, DataType type, Operation operation,
                        Stream stream = {});
    void broadcast(GpuAddress data, std::size_t count, DataType type, int root, Stream stream = {});
    // Each rank has counts[rank] elements, and they lie one after the other in the larger buffer.
    void all_gather(GpuAddress from, GpuAddress to, std::span<const std::size_t> counts, DataType type,
                    Stream stream = {});
    void gather(GpuAddress from, GpuAddress to, std::span<const std::size_t> counts, DataType type, int root,
                Stream stream = {}); // `to` matters on the root only
    void scatter(GpuAddress from, GpuAddress to, std::span<const std::size_t> counts, DataType type, int root,
                 Stream stream = {}); // `from` matters on the root only
    // Not in place. Between any two ranks count elements, or sent[r] to rank r and received[r] from it.
    void all_to_all(GpuAddress from, GpuAddress to, std::size_t count, DataType type, Stream stream = {});
    void all_to_all(GpuAddress from, GpuAddress to, std::span<const std::size_t> sent,
                    std::span<const std::size_t> received, DataType type, Stream stream = {});

    // Throws GpuError if the library has met an error since, RankFailure if another rank has failed.
    void check();

    // Of the host, for what is on a stream; `what` names it in errors.
    void wait(const GpuEvent& event, const std::string& what);
    void synchronize(const std::string& what, Stream stream = {});

    // Ends it; to be called by all ranks, like the destructor, which does it otherwise. Does not throw, and
    // gives up waiting for other ranks after 10 seconds (or the watchdog's time, if that is less).
    void close() noexcept;

  private:
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
    struct Call {
        Kind kind;
        GpuAddress from, to;
        std::size_t count; // elements of `type`
        int type, operation, peer;
        void* stream;
    };

    void agree(const std::string& library);
    void add(Call call);
    void move(Kind kind, GpuAddress from, GpuAddress to, std::size_t bytes, int peer, void* stream);
    void combine(Kind kind, GpuAddress from, GpuAddress to, std::size_t count, DataType type,
                 Operation operation, int root, Stream stream);
    void check_rank(int rank, const char* what) const;
    std::size_t bytes_before(std::span<const std::size_t> counts, DataType type, int rank) const;
    bool native(bool present, std::span<const std::size_t> counts) const;
    void* handle(Stream stream) const { return stream ? *stream : gpu_->stream(); }

    void issue(std::vector<Call> calls);
    void note(const std::vector<Call>& calls) const; // for who records calls
    bool met_before(const Call& call);
    void settle(int error, const std::string& what);
    int patiently(const std::string& what, std::function<int()> call);
    template <class Done>
    void await(const std::string& what, Done&& done); // done(): looks, may rest, true at the end
    template <class Look>
    void guard(const std::string& what, Look&& look); // gives up where it throws
    [[noreturn]] void give_up(const std::string& cause);
    void abandon() noexcept;
    void finish(int (*function)(CclHandle)) noexcept;
    std::string here() const; // "NCCL on rank 1 of 4"

    std::shared_ptr<Communicator> control_;
    std::shared_ptr<Gpu> gpu_;
    const CclApi* api_ = nullptr;
    double limit_; // the watchdog's
    CclHandle comm_ = nullptr;
    std::string why_not_; // it is of no more use
    int depth_ = 0;
    std::vector<Call> waiting_;         // of the group that is open
    std::set<std::pair<int, int>> met_; // kinds of calls that have connected what they need
};

} // namespace jali
