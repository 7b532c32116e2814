// The vendor's library, NCCL or RCCL: messages of a stage are one group on the stream, and it has collectives
// itself, which do not say in which order they combine.
#include "carriers/carriers.hpp"
#include "collective/collective_transport.hpp"

#include <numeric>
#include <utility>

namespace jali {

namespace {

class LibraryPlan final : public DevicePlan {
  public:
    LibraryPlan(std::shared_ptr<Gpu> gpu, std::shared_ptr<CclCommunicator> ccl, const CollectiveCall& call,
                std::string what)
        : DevicePlan(std::move(gpu), std::move(what), vendors_library.traits.recordable),
          ccl_(std::move(ccl)), call_(call), counts_(call.counts.begin(), call.counts.end()) {
        const int ranks = ccl_->size(), rank = ccl_->rank();
        bytes_ = bytes_of_buffers(call, ranks, rank);
        if (call.collective == Collective::all_to_all) {
            if (counts_.size() == 1) counts_.assign(std::size_t(ranks) * ranks, counts_[0]);
            for (int r = 0; r < ranks; ++r) received_.push_back(counts_[std::size_t(r) * ranks + rank]);
            const auto mine = counts_.begin() + std::ptrdiff_t(rank) * ranks;
            counts_ = {mine, mine + ranks};
        } else if (counts_.size() == 1) {
            counts_.assign(ranks, counts_[0]);
        }
        if (call.in_place) before_ = std::accumulate(counts_.begin(), counts_.begin() + rank, std::size_t{0});
        before_ *= size_of(call.type);
    }

    std::string describe() const override {
        const std::string& why = ccl_->ranks().why_no_windows();
        return why.empty() ? "  the library's own; by its kernels for symmetric windows where all that ranks "
                             "send and receive lies in memory of CclCommunicator.symmetric\n"
                           : "  the library's own; no symmetric windows here: " + why + "\n";
    }

  private:
    void put(std::span<const GpuAddress> buffers, void* stream) override {
        const GpuAddress from = buffers.front(), to = buffers.back();
        const DataType type = call_.type;
        const Operation how = call_.operation;
        const int root = call_.root;
        const GpuAddress at_root = ccl_->rank() == root ? before_ : 0;
        switch (call_.collective) {
        case Collective::all_reduce:
            return ccl_->all_reduce(from, to, counts_[0], type, how, stream);
        case Collective::reduce:
            return ccl_->reduce(from, to, counts_[0], type, how, root, stream);
        case Collective::broadcast:
            return ccl_->broadcast(from, counts_[0], type, root, stream);
        case Collective::reduce_scatter:
            return ccl_->reduce_scatter(from, to + before_, counts_[0], type, how, stream);
        case Collective::all_gather:
            return ccl_->all_gather(from + before_, to, counts_, type, stream);
        case Collective::gather:
            return ccl_->gather(from + at_root, to, counts_, type, root, stream);
        case Collective::scatter:
            return ccl_->scatter(from, to + at_root, counts_, type, root, stream);
        case Collective::all_to_all:
            if (call_.counts.size() == 1) return ccl_->all_to_all(from, to, counts_[0], type, stream);
            return ccl_->all_to_all(from, to, counts_, received_, type, stream);
        }
    }

    std::shared_ptr<CclCommunicator> ccl_;
    CollectiveCall call_;
    std::vector<std::size_t> counts_, received_; // elements: by rank, of all to all what this one sends
    std::size_t before_ = 0;                     // bytes of other ranks before this one's, in place
};

class Library final : public CollectiveCarrier {
  public:
    explicit Library(const CollectiveRanks& ranks)
        : CollectiveCarrier(collectives_by_library, *ranks.gpu), gpu_(ranks.gpu),
          ccl_(CclCommunicator::shared(*ranks.communicator, ranks.gpu)) {}

    void exchange(std::span<const StageMessage> messages, std::span<const GpuAddress> buffers,
                  void* stream) override {
        std::vector<CclMessage> all;
        for (const StageMessage& m : messages)
            all.push_back({buffers[m.region.buffer] + m.region.offset, m.region.bytes, m.peer, m.sends});
        ccl_->exchange(all, stream);
    }

    void check(const CollectiveCall& call) const override {
        const auto refuse = [&](const char* reason) {
            throw CollectiveError("algorithm '" + name + "' " + reason);
        };
        const bool reduce_scatter = call.collective == Collective::reduce_scatter;
        if (call.reproducible) refuse("does not say in which order it combines; leave reproducible out");
        if (reduce_scatter && call.counts.size() > 1)
            refuse("has no reduce_scatter with counts; choose another, or none");
        if (call.collective == Collective::broadcast && !call.in_place)
            refuse("has no broadcast into another array; choose another, or none");
        if (call.collective == Collective::all_to_all && call.in_place)
            refuse("has no all_to_all in place; choose another, or none");
        if (reduce_scatter || call.collective == Collective::all_reduce ||
            call.collective == Collective::reduce)
            ccl_->check_combines(call.type, call.operation);
    }

    std::shared_ptr<DevicePlan> plan(const CollectiveCall& call, std::string what) override {
        return std::make_shared<LibraryPlan>(gpu_, ccl_, call, std::move(what));
    }

  private:
    std::shared_ptr<Gpu> gpu_;
    std::shared_ptr<CclCommunicator> ccl_;
};

} // namespace

const CollectiveTransport collectives_by_library{
    {vendors_library},
    [](const CollectiveRanks& ranks) -> std::shared_ptr<CollectiveCarrier> {
        return std::make_shared<Library>(ranks);
    },
    {.carries = "the vendor's library", .itself = true, .costly = true}};

} // namespace jali
