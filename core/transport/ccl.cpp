#include "transport/ccl.hpp"
#include "settings/counted.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace jali {

namespace {

struct TypeRow {
    int number, parts; // of the library, how many of these make one element; -1: it has none
};

// by DataType
constexpr TypeRow type_rows[data_types] = {
    {ccl_int8, 1}, {-1, 1},         {ccl_int32, 1},  {ccl_int64, 1}, {ccl_uint8, 1},
    {-1, 1},       {ccl_uint32, 1}, {ccl_uint64, 1}, {ccl_fp16, 1},  {ccl_bf16, 1},
    {ccl_fp32, 1}, {ccl_fp64, 1},   {ccl_fp32, 2},   {ccl_fp64, 2},
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

} // namespace

CclCommunicator::CclCommunicator(std::shared_ptr<CclGroup> ranks) : ranks_(std::move(ranks)) {
}

std::shared_ptr<CclCommunicator> CclCommunicator::shared(Communicator& ranks,
                                                         const std::shared_ptr<Gpu>& gpu) {
    return std::make_shared<CclCommunicator>(CclGroup::shared(ranks, gpu));
}

std::string CclCommunicator::why_not(Communicator& ranks, const std::shared_ptr<Gpu>& gpu) {
    return CclGroup::why_not(ranks, gpu);
}

void CclCommunicator::check_combines(DataType type, Operation operation) const {
    if (operation == Operation::user || number_of(operation) < 0)
        throw GpuError(std::string(api().name()) + " has no operation '" + std::string(name_of(operation)) +
                       "'; it has sum, prod, min, max and avg");
    check_reduction({type, operation, 1, nullptr});
    const TypeRow& row = row_of(type);
    if (row.number < 0)
        throw GpuError(std::string(api().name()) + " cannot combine elements of type " +
                       std::string(name_of(type)) +
                       "; 8, 32 and 64-bit integers and floating-point numbers can be");
    if (row.parts > 1 && operation != Operation::sum && operation != Operation::avg)
        throw GpuError(std::string(api().name()) + " knows no complex numbers: sum and avg of " +
                       std::string(name_of(type)) + " work, '" + std::string(name_of(operation)) +
                       "' does not");
}

void CclCommunicator::check_rank(int rank, const char* what) const {
    if (rank < 0 || rank >= size())
        throw std::invalid_argument(std::string(what) + " " + std::to_string(rank) +
                                    " does not exist among " + counted(size(), "rank"));
}

void CclCommunicator::add(CclCall call) {
    ranks_->check_usable();
    if (depth_ > 0) {
        waiting_.push_back(call);
    } else {
        ranks_->issue({call});
    }
}

void CclCommunicator::group_end() {
    if (depth_ == 0) throw std::invalid_argument("a group of operations ends that has not begun");
    if (--depth_ == 0) ranks_->issue(std::exchange(waiting_, {}));
}

void CclCommunicator::group_drop() noexcept {
    depth_ = 0;
    waiting_.clear();
}

void CclCommunicator::move(Kind kind, GpuAddress from, GpuAddress to, std::size_t bytes, int peer,
                           void* stream) {
    add({kind, from, to, bytes, ccl_uint8, 0, peer, stream});
}

void CclCommunicator::combine(Kind kind, GpuAddress from, GpuAddress to, std::size_t count, DataType type,
                              Operation operation, int root, Stream stream) {
    check_combines(type, operation);
    check_rank(root, "root");
    const TypeRow& row = row_of(type);
    if (count > 0)
        add({kind, from, to, count * row.parts, row.number, number_of(operation), root, handle(stream)});
}

void CclCommunicator::exchange(std::span<const CclMessage> messages, Stream stream) {
    std::vector<CclCall> calls;
    for (const CclMessage& m : messages) {
        check_rank(m.peer, "rank");
        if (m.bytes == 0) continue;
        calls.push_back({m.sends ? Kind::send : Kind::receive, m.sends ? m.at : 0, m.sends ? 0 : m.at,
                         m.bytes, ccl_uint8, 0, m.peer, handle(stream)});
    }
    ranks_->issue(std::move(calls));
}

void CclCommunicator::send(GpuAddress from, std::size_t count, DataType type, int to_rank, Stream stream) {
    check_rank(to_rank, "rank");
    if (count > 0) move(Kind::send, from, 0, count * size_of(type), to_rank, handle(stream));
}

void CclCommunicator::receive(GpuAddress to, std::size_t count, DataType type, int from_rank, Stream stream) {
    check_rank(from_rank, "rank");
    if (count > 0) move(Kind::receive, 0, to, count * size_of(type), from_rank, handle(stream));
}

void CclCommunicator::all_reduce(GpuAddress from, GpuAddress to, std::size_t count, DataType type,
                                 Operation operation, Stream stream) {
    combine(Kind::all_reduce, from, to, count, type, operation, 0, stream);
}

void CclCommunicator::reduce(GpuAddress from, GpuAddress to, std::size_t count, DataType type,
                             Operation operation, int root, Stream stream) {
    combine(Kind::reduce, from, to, count, type, operation, root, stream);
}

void CclCommunicator::reduce_scatter(GpuAddress from, GpuAddress to, std::size_t count, DataType type,
                                     Operation operation, Stream stream) {
    combine(Kind::reduce_scatter, from, to, count, type, operation, 0, stream);
}

void CclCommunicator::broadcast(GpuAddress data, std::size_t count, DataType type, int root, Stream stream) {
    check_rank(root, "root");
    if (count > 0) move(Kind::broadcast, data, data, count * size_of(type), root, handle(stream));
}

std::size_t CclCommunicator::bytes_before(std::span<const std::size_t> counts, DataType type,
                                          int rank) const {
    if (counts.size() != static_cast<std::size_t>(size()))
        throw std::invalid_argument(std::to_string(counts.size()) + " counts for " + counted(size(), "rank"));
    return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0}) * size_of(type);
}

// Whether the library's own function can do it: it has one, and all parts are equal and not empty.
bool CclCommunicator::native(bool present, std::span<const std::size_t> counts) const {
    return present && counts[0] > 0 &&
           std::all_of(counts.begin(), counts.end(), [&](std::size_t count) { return count == counts[0]; });
}

void CclCommunicator::all_gather(GpuAddress from, GpuAddress to, std::span<const std::size_t> counts,
                                 DataType type, Stream stream) {
    const std::size_t mine = bytes_before(counts, type, rank()), bytes = counts[rank()] * size_of(type);
    if (native(true, counts)) return move(Kind::all_gather, from, to, bytes, 0, handle(stream));
    group_start();
    if (from != to + mine && bytes > 0) move(Kind::copy, from, to + mine, bytes, 0, handle(stream));
    for (int other = 0; other < size(); ++other) {
        if (other == rank()) continue;
        send(from, counts[rank()], type, other, stream);
        receive(to + bytes_before(counts, type, other), counts[other], type, other, stream);
    }
    group_end();
}

void CclCommunicator::gather(GpuAddress from, GpuAddress to, std::span<const std::size_t> counts,
                             DataType type, int root, Stream stream) {
    check_rank(root, "root");
    const std::size_t mine = bytes_before(counts, type, rank()), bytes = counts[rank()] * size_of(type);
    if (native(api().gather != nullptr, counts))
        return move(Kind::gather, from, to, bytes, root, handle(stream));
    if (rank() != root) return send(from, counts[rank()], type, root, stream);
    group_start();
    if (from != to + mine && bytes > 0) move(Kind::copy, from, to + mine, bytes, 0, handle(stream));
    for (int other = 0; other < size(); ++other)
        if (other != root)
            receive(to + bytes_before(counts, type, other), counts[other], type, other, stream);
    group_end();
}

void CclCommunicator::scatter(GpuAddress from, GpuAddress to, std::span<const std::size_t> counts,
                              DataType type, int root, Stream stream) {
    check_rank(root, "root");
    const std::size_t mine = bytes_before(counts, type, rank()), bytes = counts[rank()] * size_of(type);
    if (native(api().scatter != nullptr, counts))
        return move(Kind::scatter, from, to, bytes, root, handle(stream));
    if (rank() != root) return receive(to, counts[rank()], type, root, stream);
    group_start();
    if (to != from + mine && bytes > 0) move(Kind::copy, from + mine, to, bytes, 0, handle(stream));
    for (int other = 0; other < size(); ++other)
        if (other != root) send(from + bytes_before(counts, type, other), counts[other], type, other, stream);
    group_end();
}

void CclCommunicator::all_to_all(GpuAddress from, GpuAddress to, std::size_t count, DataType type,
                                 Stream stream) {
    if (api().all_to_all != nullptr && count > 0)
        return move(Kind::all_to_all, from, to, count * size_of(type), 0, handle(stream));
    const std::vector<std::size_t> counts(size(), count);
    all_to_all(from, to, counts, counts, type, stream);
}

void CclCommunicator::all_to_all(GpuAddress from, GpuAddress to, std::span<const std::size_t> sent,
                                 std::span<const std::size_t> received, DataType type, Stream stream) {
    const std::size_t mine = bytes_before(sent, type, rank()), bytes = sent[rank()] * size_of(type);
    const std::size_t place = bytes_before(received, type, rank());
    if (sent[rank()] != received[rank()])
        throw std::invalid_argument("rank " + std::to_string(rank()) + " sends itself " +
                                    counted(sent[rank()], "element") + " and expects " +
                                    std::to_string(received[rank()]));
    group_start();
    if (bytes > 0) move(Kind::copy, from + mine, to + place, bytes, 0, handle(stream));
    for (int other = 0; other < size(); ++other) {
        if (other == rank()) continue;
        send(from + bytes_before(sent, type, other), sent[other], type, other, stream);
        receive(to + bytes_before(received, type, other), received[other], type, other, stream);
    }
    group_end();
}

} // namespace jali
