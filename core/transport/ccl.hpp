// The collectives and messages of NCCL or RCCL between ranks that each have a GPU.
//
// Operations take device addresses and a stream; they return when they are on the stream and run in its
// order, and in the order of all operations of the group (ccl_group.hpp). Data moves as bytes, so everything
// that only moves takes all types; what is combined must be of a type and an operation that the library has,
// complex numbers being pairs for sums and averages.
#pragma once

#include "schedule/element.hpp"
#include "transport/ccl_group.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace jali {

struct CclMessage {
    GpuAddress at; // of what is sent, or where it arrives
    std::size_t bytes;
    int peer;
    bool sends;
};

// What one user puts on the group that all share; groups of operations that one has begun are its own.
// Errors as those of CclGroup.
class CclCommunicator {
  public:
    using Stream = std::optional<void*>; // of the driver; by default the device's own

    explicit CclCommunicator(std::shared_ptr<CclGroup> ranks);

    // On the group of these ranks and this device; see CclGroup::shared, whose errors these are.
    static std::shared_ptr<CclCommunicator> shared(Communicator& ranks, const std::shared_ptr<Gpu>& gpu);
    static std::string why_not(Communicator& ranks, const std::shared_ptr<Gpu>& gpu);

    int rank() const { return ranks_->rank(); }
    int size() const { return ranks_->size(); }
    const CclApi& api() const { return ranks_->api(); }
    CclGroup& ranks() const { return *ranks_; }

    // Throws GpuError unless the library can combine elements of this type in this way, std::invalid_argument
    // if the operation makes no sense for them.
    void check_combines(DataType type, Operation operation) const;

    // What comes between these becomes one operation, whose parts go on at once: needed wherever ranks send
    // and receive in turn. May be nested. An operation outside of them is a group of its own.
    void group_start() { ++depth_; }
    void group_end();
    void group_drop() noexcept; // leaves all groups; what was in them does not happen

    // Messages that go on at once, whatever group is open. Those between two ranks match in this order; empty
    // ones are none.
    void exchange(std::span<const CclMessage> messages, Stream stream = {});

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

    void synchronize(const std::string& what, Stream stream = {}) {
        ranks_->synchronize(what, handle(stream));
    }

  private:
    using Kind = CclCall::Kind;

    void add(CclCall call);
    void move(Kind kind, GpuAddress from, GpuAddress to, std::size_t bytes, int peer, void* stream);
    void combine(Kind kind, GpuAddress from, GpuAddress to, std::size_t count, DataType type,
                 Operation operation, int root, Stream stream);
    void check_rank(int rank, const char* what) const;
    std::size_t bytes_before(std::span<const std::size_t> counts, DataType type, int rank) const;
    bool native(bool present, std::span<const std::size_t> counts) const;
    void* handle(Stream stream) const { return stream ? *stream : ranks_->gpu()->stream(); }

    std::shared_ptr<CclGroup> ranks_;
    int depth_ = 0;
    std::vector<CclCall> waiting_; // of the group that is open
};

} // namespace jali
