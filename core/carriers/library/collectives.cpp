// The vendor's library, NCCL or RCCL: messages of a stage are one group on the stream, and it has collectives
// itself, which do not say in which order they combine.
#include "carriers/carriers.hpp"
#include "collective/collective_transport.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace jali {

namespace {

struct TypeRow {
    int number, parts; // of the library, how many of these make one element; -1: it has none
};

// by DataType
constexpr TypeRow type_rows[data_types] = {
    {ccl_int8, 1}, {-1, 1},         {ccl_int32, 1},  {ccl_int64, 1}, {ccl_uint8, 1},
    {-1, 1},       {ccl_uint32, 1}, {ccl_uint64, 1}, {ccl_fp16, 1},  {ccl_bf16, 1},
    {ccl_fp32, 1}, {ccl_fp64, 1},   {ccl_fp32, 2},   {ccl_fp64, 2}, // complex numbers are pairs
};

const TypeRow& row_of(DataType type) {
    return type_rows[static_cast<int>(type)];
}

// The library's number, or -1.
int number_of(Operation operation) {
    switch (operation) {
    case Operation::sum:
        return ccl_sum;
    case Operation::prod:
        return ccl_prod;
    case Operation::min:
        return ccl_min;
    case Operation::max:
        return ccl_max;
    case Operation::avg:
        return ccl_avg;
    default:
        return -1;
    }
}

// Throws GpuError unless the library can combine elements of this type in this way, CollectiveError if the
// operation makes no sense for them.
void check_combines(const std::string& library, DataType type, Operation operation) {
    if (operation == Operation::user || number_of(operation) < 0)
        throw GpuError(library + " has no operation '" + std::string(name_of(operation)) +
                       "'; it has sum, prod, min, max and avg");
    try {
        check_reduction({type, operation, 1, nullptr});
    } catch (const std::invalid_argument& error) {
        throw CollectiveError(error.what());
    }
    const TypeRow& row = row_of(type);
    if (row.number < 0)
        throw GpuError(library + " cannot combine elements of type " + std::string(name_of(type)) +
                       "; 8, 32 and 64-bit integers and floating-point numbers can be");
    if (row.parts > 1 && operation != Operation::sum && operation != Operation::avg)
        throw GpuError(library + " knows no complex numbers: sum and avg of " + std::string(name_of(type)) +
                       " work, '" + std::string(name_of(operation)) + "' does not");
}

class LibraryPlan final : public DevicePlan {
  public:
    LibraryPlan(std::shared_ptr<Gpu> gpu, std::shared_ptr<CclGroup> ccl, const CollectiveCall& call,
                std::string what)
        : DevicePlan(std::move(gpu), std::move(what), vendors_library.traits.recordable),
          ccl_(std::move(ccl)), rank_(ccl_->rank()), ranks_(ccl_->size()) {
        bytes_ = bytes_of_buffers(call, ranks_, rank_);
        add_calls(call);
    }

    std::string describe() const override {
        const std::string& why = ccl_->why_no_windows();
        return why.empty() ? "  the library's own; by its kernels for symmetric windows where all that ranks "
                             "send and receive lies in memory of CclCommunicator.symmetric\n"
                           : "  the library's own; no symmetric windows here: " + why + "\n";
    }

  private:
    using Kind = CclCall::Kind;

    void put(std::span<const GpuAddress> buffers, void* stream) override {
        std::vector<CclCall> calls = calls_;
        for (CclCall& call : calls) {
            if (call.kind != Kind::receive) call.from += buffers.front();
            if (call.kind != Kind::send) call.to += buffers.back();
            call.stream = stream;
        }
        ccl_->issue(std::move(calls));
    }

    void add_calls(const CollectiveCall& call) {
        const int root = call.root;
        const auto count = static_cast<std::size_t>(call.counts[0]);
        std::vector<Part> parts; // by rank, as they lie in the larger buffer
        for (int r = 0; r < ranks_ && call.collective != Collective::all_to_all; ++r) {
            const std::size_t elements = call.counts.size() > 1 ? call.counts[r] : count;
            parts.push_back({r > 0 ? parts.back().end() : 0, elements * size_of(call.type)});
        }
        // Where this rank's part of the smaller buffer is: in place, within the larger one.
        const Part mine =
            parts.empty() ? Part{} : Part{call.in_place ? parts[rank_].offset : 0, parts[rank_].bytes};
        const Part mine_at_root = rank_ == root ? mine : Part{0, mine.bytes};
        const bool alike =
            count > 0 && std::ranges::all_of(call.counts, [&](auto n) { return n == call.counts[0]; });
        const CclApi& api = ccl_->api();
        std::vector<Part> sent(ranks_), received(ranks_);
        switch (call.collective) {
        case Collective::all_reduce:
            return combine(Kind::all_reduce, call, 0);
        case Collective::reduce:
            return combine(Kind::reduce, call, 0);
        case Collective::reduce_scatter:
            return combine(Kind::reduce_scatter, call, mine.offset);
        case Collective::broadcast:
            return move(Kind::broadcast, 0, 0, count * size_of(call.type), root);
        case Collective::all_gather:
            if (alike) return move(Kind::all_gather, mine.offset, 0, mine.bytes, 0);
            sent.assign(ranks_, mine);
            received = parts;
            break;
        case Collective::gather:
            if (alike && api.gather != nullptr)
                return move(Kind::gather, mine_at_root.offset, 0, mine.bytes, root);
            sent[root] = mine_at_root;
            if (rank_ == root) received = parts;
            break;
        case Collective::scatter:
            if (alike && api.scatter != nullptr)
                return move(Kind::scatter, 0, mine_at_root.offset, mine.bytes, root);
            if (rank_ == root) sent = parts;
            received[root] = mine_at_root;
            break;
        case Collective::all_to_all:
            if (call.counts.size() == 1 && count > 0 && api.all_to_all != nullptr)
                return move(Kind::all_to_all, 0, 0, count * size_of(call.type), 0);
            for (int r = 0; r < ranks_; ++r) {
                const auto bytes = [&](int from, int to) {
                    return size_of(call.type) *
                           (call.counts.size() > 1 ? call.counts[std::size_t(from) * ranks_ + to] : count);
                };
                sent[r] = {r > 0 ? sent[r - 1].end() : 0, bytes(rank_, r)};
                received[r] = {r > 0 ? received[r - 1].end() : 0, bytes(r, rank_)};
            }
            break;
        }
        exchange(sent, received);
    }

    struct Part {
        std::size_t offset = 0, bytes = 0;
        std::size_t end() const { return offset + bytes; }
    };

    void combine(Kind kind, const CollectiveCall& call, std::size_t to) {
        const TypeRow& row = row_of(call.type);
        if (call.counts[0] > 0)
            calls_.push_back({kind, 0, to, std::size_t(call.counts[0]) * row.parts, row.number,
                              number_of(call.operation), call.root, nullptr});
    }
    void move(Kind kind, std::size_t from, std::size_t to, std::size_t bytes, int peer) {
        if (bytes > 0) calls_.push_back({kind, from, to, bytes, ccl_uint8, 0, peer, nullptr});
    }
    void exchange(const std::vector<Part>& sent, const std::vector<Part>& received) {
        move(Kind::copy, sent[rank_].offset, received[rank_].offset, received[rank_].bytes, 0);
        for (int r = 0; r < ranks_; ++r) {
            if (r == rank_) continue;
            move(Kind::send, sent[r].offset, 0, sent[r].bytes, r);
            move(Kind::receive, 0, received[r].offset, received[r].bytes, r);
        }
    }

    std::shared_ptr<CclGroup> ccl_;
    const int rank_, ranks_;
    std::vector<CclCall> calls_; // addresses are offsets in the buffers
};

class Library final : public CollectiveCarrier {
  public:
    explicit Library(const CollectiveRanks& ranks)
        : CollectiveCarrier(collectives_by_library, *ranks.gpu), gpu_(ranks.gpu),
          ccl_(CclGroup::shared(*ranks.communicator, ranks.gpu)) {}

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
            check_combines(ccl_->api().name(), call.type, call.operation);
    }

    std::shared_ptr<DevicePlan> plan(const CollectiveCall& call, std::string what) override {
        return std::make_shared<LibraryPlan>(gpu_, ccl_, call, std::move(what));
    }

  private:
    std::shared_ptr<Gpu> gpu_;
    std::shared_ptr<CclGroup> ccl_;
};

} // namespace

const CollectiveTransport collectives_by_library{
    {vendors_library},
    [](const CollectiveRanks& ranks) -> std::shared_ptr<CollectiveCarrier> {
        return std::make_shared<Library>(ranks);
    },
    {.carries = "the vendor's library", .itself = true, .costly = true}};

} // namespace jali
