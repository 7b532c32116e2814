// The vendor's library, NCCL or RCCL: messages of a stage are one group on the stream, and its own
// collectives combine in an unspecified order. For some it has faster kernels between symmetric windows:
// arrays in such memory use them automatically, a separate entry copies other arrays into and out of windows.
// Another entry cuts an array into parts, each of which is a collective on a stream of its own.
#include "device/stream_order.hpp"
#include "device_transports/device_transports.hpp"
#include "peers/ccl_operations.hpp"
#include "running/collective_transport.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace jali {

namespace {

struct TypeSpec {
    int number, parts; // of the library, how many of these make one element; -1: it has none
};

// by DataType
constexpr TypeSpec type_specs[data_types] = {
    {ccl_int8, 1}, {-1, 1},         {ccl_int32, 1},  {ccl_int64, 1}, {ccl_uint8, 1},
    {-1, 1},       {ccl_uint32, 1}, {ccl_uint64, 1}, {ccl_fp16, 1},  {ccl_bf16, 1},
    {ccl_fp32, 1}, {ccl_fp64, 1},   {ccl_fp32, 2},   {ccl_fp64, 2}, // complex numbers are pairs
};

const TypeSpec& spec_of(DataType type) {
    return type_specs[static_cast<int>(type)];
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
    const TypeSpec& spec = spec_of(type);
    if (spec.number < 0)
        throw GpuError(library + " cannot combine elements of type " + std::string(name_of(type)) +
                       "; 8, 32 and 64-bit integers and floating-point numbers can be");
    if (spec.parts > 1 && operation != Operation::sum && operation != Operation::avg)
        throw GpuError(library + " knows no complex numbers: sum and avg of " + std::string(name_of(type)) +
                       " work, '" + std::string(name_of(operation)) + "' does not");
}

class LibraryPlan : public DevicePlan {
  public:
    LibraryPlan(std::shared_ptr<Gpu> gpu, std::shared_ptr<CclGroup> ccl, const CollectiveCall& call,
                std::string what)
        : DevicePlan(std::move(gpu), std::move(what), vendors_library.traits.recordable),
          operations_(std::move(ccl)), rank_(operations_.group().rank()), ranks_(operations_.group().size()) {
        bytes_ = bytes_of_buffers(call, ranks_, rank_);
        add_calls(call);
    }

    std::string describe() const override {
        const std::string& why = operations_.group().why_no_windows();
        return why.empty() ? "  the library's own; by its kernels for symmetric windows where all that ranks "
                             "send and receive lies in memory of CclCommunicator.symmetric\n"
                           : "  the library's own; no symmetric windows here: " + why + "\n";
    }

  protected:
    void put(std::span<const GpuAddress> buffers, void* stream) override {
        std::vector<CclCall> calls = calls_;
        for (CclCall& call : calls) {
            if (call.kind != Kind::receive) call.from += buffers.front();
            if (call.kind != Kind::send) call.to += buffers.back();
            call.stream = stream;
        }
        operations_.issue(std::move(calls));
    }

    CclOperations operations_;
    std::vector<CclCall> calls_; // addresses are offsets in the buffers

  private:
    using Kind = CclCall::Kind;

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
        const CclApi& api = operations_.group().api();
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
        const TypeSpec& spec = spec_of(call.type);
        if (call.counts[0] > 0)
            calls_.push_back({kind, 0, to, std::size_t(call.counts[0]) * spec.parts, spec.number,
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

    const int rank_, ranks_;
};

class Library : public CollectiveConnection {
  public:
    explicit Library(const CollectiveRanks& ranks,
                     const CollectiveTransport& transport = collectives_by_library)
        : CollectiveConnection(transport, *ranks.gpu), gpu_(ranks.gpu),
          ccl_(CclGroup::shared(*ranks.communicator, ranks.gpu)) {}

    // With memory of its own for copies, since graphs of several plans may exist at once.
    std::vector<StageExchange> prepare(std::span<const std::span<const StageMessage>> stages,
                                       std::span<const GpuAddress>) override {
        std::vector<StageExchange> made;
        for (const std::span<const StageMessage> stage : stages)
            made.push_back([operations = std::make_shared<CclOperations>(ccl_),
                            messages = std::vector(stage.begin(), stage.end())](
                               std::span<const GpuAddress> buffers, void* stream) {
                operations->exchange(between(messages, buffers), stream);
            });
        return made;
    }

    void check(const CollectiveCall& call) const override {
        const auto refuse = [&](const char* reason) {
            throw CollectiveError("algorithm '" + name + "' " + reason);
        };
        const bool reduce_scatter = call.collective == Collective::reduce_scatter;
        const bool even = std::ranges::all_of(call.counts, [&](auto n) { return n == call.counts[0]; });
        if (call.reproducible) refuse("does not say in which order it combines; leave reproducible out");
        if (reduce_scatter && !even)
            refuse("has no reduce_scatter of parts that differ; choose another, or none");
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

  protected:
    static std::vector<CclMessage> between(std::span<const StageMessage> messages,
                                           std::span<const GpuAddress> buffers) {
        std::vector<CclMessage> all;
        for (const StageMessage& m : messages)
            all.push_back({buffers[m.region.buffer] + m.region.offset, m.region.bytes, m.peer, m.sends});
        return all;
    }

    std::shared_ptr<Gpu> gpu_;
    std::shared_ptr<CclGroup> ccl_;
};

// Windows for input and output, which plans use in turn.
struct Windows {
    std::shared_ptr<GpuMemory> in, out;
    std::shared_ptr<StreamOrder> order;
};

class WindowsPlan final : public LibraryPlan {
  public:
    WindowsPlan(std::shared_ptr<Gpu> gpu, std::shared_ptr<CclGroup> ccl, const CollectiveCall& call,
                std::string what, Windows windows, std::size_t in, std::size_t out)
        : LibraryPlan(std::move(gpu), std::move(ccl), call, std::move(what)), windows_(std::move(windows)),
          in_(in), out_(out) {}
    // Its windows are reused by plans that run later on the device's own stream.
    ~WindowsPlan() override {
        try {
            if (!gpu_->is_capturing(gpu_->stream())) windows_.order->before(gpu_->stream());
        } catch (const GpuError&) { // the device is lost; other calls report it
        }
    }

    std::string describe() const override {
        return "  " + readable_bytes(in_) + " copied into a symmetric window, the library's own kernels, " +
               readable_bytes(out_) + " copied out of another\n";
    }

  private:
    void put(std::span<const GpuAddress> buffers, void* stream) override {
        if (calls_.empty()) return;
        const bool captured = gpu_->is_capturing(stream);
        windows_.order->before(stream, captured);
        CclCall call = calls_.front();
        const GpuAddress from = buffers.front() + call.from, to = buffers.back() + call.to;
        call.from = windows_.in->address();
        call.to = windows_.out->address();
        call.stream = stream;
        gpu_->copy(call.from, from, in_, stream);
        operations_.issue({call});
        gpu_->copy(to, windows_.out->address(), out_, stream);
        windows_.order->after(stream, captured);
    }

    Windows windows_;
    const std::size_t in_, out_; // bytes
};

class LibrarysWindows final : public Library {
  public:
    explicit LibrarysWindows(const CollectiveRanks& ranks)
        : Library(ranks, collectives_by_librarys_windows),
          windows_{ccl_->symmetric(1), ccl_->symmetric(1), std::make_shared<StreamOrder>(ranks.gpu)} {}

    void check(const CollectiveCall& call) const override {
        const bool even = std::ranges::all_of(call.counts, [&](auto n) { return n == call.counts[0]; });
        if ((call.collective != Collective::all_reduce && call.collective != Collective::all_gather &&
             call.collective != Collective::reduce_scatter) ||
            !even)
            throw CollectiveError("algorithm '" + name + "' has no " + std::string(name_of(call.collective)) +
                                  (even ? "" : " with counts") +
                                  "; all_reduce, all_gather and reduce_scatter of equal counts go that way");
        Library::check(call);
    }

    std::shared_ptr<DevicePlan> plan(const CollectiveCall& call, std::string what) override {
        const std::size_t piece = std::size_t(call.counts[0]) * size_of(call.type),
                          whole = piece * ccl_->size();
        const std::size_t in = call.collective == Collective::reduce_scatter ? whole : piece,
                          out = call.collective == Collective::all_gather ? whole : piece;
        // Sizes are equal on all ranks. Plans that were made before keep theirs.
        if (windows_.in->size() < in) windows_.in = ccl_->symmetric(std::bit_ceil(in));
        if (windows_.out->size() < out) windows_.out = ccl_->symmetric(std::bit_ceil(out));
        return std::make_shared<WindowsPlan>(gpu_, ccl_, call, std::move(what), windows_, in, out);
    }

  private:
    Windows windows_;
};

// Streams beside that of the caller, and events between them.
struct Streams {
    static constexpr int parts = 4;
    struct Beside {
        explicit Beside(const std::shared_ptr<Gpu>& gpu) : stream(gpu), done(gpu, false) {}
        GpuStream stream;
        GpuEvent done;
    };
    explicit Streams(const std::shared_ptr<Gpu>& gpu) : begin(gpu, false) {
        for (int part = 1; part < parts; ++part) beside.push_back(std::make_unique<Beside>(gpu));
    }
    GpuEvent begin;
    std::vector<std::unique_ptr<Beside>> beside;
};

class StreamsPlan final : public LibraryPlan {
  public:
    StreamsPlan(std::shared_ptr<Gpu> gpu, std::shared_ptr<CclGroup> ccl, const CollectiveCall& call,
                std::string what, std::shared_ptr<Streams> streams)
        : LibraryPlan(std::move(gpu), std::move(ccl), call, std::move(what)), streams_(std::move(streams)) {
        if (calls_.empty()) return;
        const std::size_t element = std::size_t(call.counts[0]) * size_of(call.type) / calls_.front().count;
        const std::size_t line = std::max<std::size_t>(1, line_bytes / element);
        part_ = (calls_.front().count / Streams::parts / line + 1) * line;
        element_ = element;
    }

    std::string describe() const override {
        const std::size_t count = calls_.empty() ? 0 : calls_.front().count;
        const std::size_t parts = count == 0 ? 0 : (count + part_ - 1) / part_;
        return "  the library's own, in " + std::to_string(parts) + " parts, each on a stream\n";
    }

  private:
    static constexpr std::size_t line_bytes = 512; // parts begin at such a place of the array

    // All ranks launch the parts in their order.
    void put(std::span<const GpuAddress> buffers, void* stream) override {
        if (calls_.empty()) return;
        CclCall call = calls_.front();
        call.from += buffers.front();
        call.to += buffers.back();
        const std::size_t count = call.count;
        if (part_ < count) streams_->begin.record(stream);
        for (std::size_t first = 0, number = 0; first < count; first += part_, ++number) {
            Streams::Beside* const beside = number > 0 ? streams_->beside[number - 1].get() : nullptr;
            call.stream = beside != nullptr ? beside->stream.handle() : stream;
            call.count = std::min(part_, count - first);
            if (beside != nullptr) streams_->begin.let_wait(call.stream);
            operations_.issue({call});
            if (beside != nullptr) beside->done.record(call.stream);
            call.from += call.count * element_;
            call.to += call.count * element_;
        }
        for (std::size_t number = 1; number * part_ < count; ++number)
            streams_->beside[number - 1]->done.let_wait(stream);
    }

    std::shared_ptr<Streams> streams_;
    std::size_t part_ = 1, element_ = 1; // elements of the library, and bytes of one
};

class LibrarysStreams final : public Library {
  public:
    explicit LibrarysStreams(const CollectiveRanks& ranks)
        : Library(ranks, collectives_by_librarys_streams), streams_(std::make_shared<Streams>(ranks.gpu)) {}

    void check(const CollectiveCall& call) const override {
        if (call.collective != Collective::all_reduce && call.collective != Collective::reduce &&
            call.collective != Collective::broadcast)
            throw CollectiveError("algorithm '" + name + "' has no " + std::string(name_of(call.collective)) +
                                  "; all_reduce, reduce and broadcast go that way");
        Library::check(call);
    }

    std::shared_ptr<DevicePlan> plan(const CollectiveCall& call, std::string what) override {
        return std::make_shared<StreamsPlan>(gpu_, ccl_, call, std::move(what), streams_);
    }

  private:
    std::shared_ptr<Streams> streams_;
};

} // namespace

const CollectiveTransport collectives_by_library{
    {vendors_library},
    [](const CollectiveRanks& ranks) -> std::shared_ptr<CollectiveConnection> {
        return std::make_shared<Library>(ranks);
    },
    {.carries = "the vendor's library", .itself = true, .costly = true}};

const CollectiveTransport collectives_by_librarys_windows{
    {librarys_windows},
    [](const CollectiveRanks& ranks) -> std::shared_ptr<CollectiveConnection> {
        return std::make_shared<LibrarysWindows>(ranks);
    },
    {.itself = true, .costly = true}};

const CollectiveTransport collectives_by_librarys_streams{
    {librarys_streams},
    [](const CollectiveRanks& ranks) -> std::shared_ptr<CollectiveConnection> {
        return std::make_shared<LibrarysStreams>(ranks);
    },
    {.itself = true, .costly = true}};

} // namespace jali
