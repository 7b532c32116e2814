#include "interposer/call_parts.hpp"
#include "messaging/communicator.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>

namespace jali::interposer {

namespace {

std::optional<Operation> operation_of_mpi(H op) {
    constexpr Operation known[] = {Operation::sum,         Operation::prod,        Operation::min,
                                   Operation::max,         Operation::logical_and, Operation::logical_or,
                                   Operation::logical_xor, Operation::bit_and,     Operation::bit_or,
                                   Operation::bit_xor};
    op = mpi().handle(op);
    for (std::size_t k = 0; k < std::size(known); ++k)
        if (op == mpi().operations[k]) return known[k];
    return std::nullopt;
}

template <class Do>
void in_pieces(const std::vector<Elements>& elements, const std::byte* base, Do&& work) {
    constexpr std::int64_t most = std::int64_t{1} << 30; // MPI_Pack counts with int
    for (const Elements& each : elements) {
        if (each.count <= 0) continue;
        const auto layout = layout_of(each.type);
        if (layout->size == 0) continue;
        if (layout->size > most) throw TransportError("an element of an MPI type of more than 1 GiB");
        const std::int64_t step = std::max<std::int64_t>(1, most / layout->size);
        for (std::int64_t k = 0; k < each.count; k += step)
            work(base + each.offset + k * layout->extent, static_cast<int>(std::min(step, each.count - k)),
                 each.type, std::min(step, each.count - k) * layout->size);
    }
}

void pack(const std::vector<Elements>& elements, const void* from, std::vector<std::byte>& into) {
    std::size_t at = 0;
    in_pieces(elements, static_cast<const std::byte*>(from),
              [&](const std::byte* piece, int count, H type, std::int64_t bytes) {
                  int position = 0;
                  MpiAbi::find("").check(mpi().Pack(piece, count, type, into.data() + at,
                                                    static_cast<int>(bytes), &position, for_packing()),
                                         "MPI_Pack");
                  at += bytes;
              });
}

void unpack(const std::vector<Elements>& elements, const std::vector<std::byte>& from, void* into) {
    std::size_t at = 0;
    in_pieces(elements, static_cast<const std::byte*>(into),
              [&](const std::byte* piece, int count, H type, std::int64_t bytes) {
                  int position = 0;
                  MpiAbi::find("").check(mpi().Unpack(from.data() + at, static_cast<int>(bytes), &position,
                                                      const_cast<std::byte*>(piece), count, type,
                                                      for_packing()),
                                         "MPI_Unpack");
                  at += bytes;
              });
}

std::byte* begin(const Part& part, void* host) {
    return part.bytes > 0 ? static_cast<std::byte*>(host) : nullptr;
}

} // namespace

std::int64_t bytes_of(const CollectiveCallWithHandles& call_with_handles, int ranks) {
    std::int64_t count = 0;
    for (std::int64_t each : call_with_handles.counts) count += each;
    const bool whole = call_with_handles.collective == Collective::broadcast ||
                       call_with_handles.collective == Collective::reduce ||
                       call_with_handles.collective == Collective::all_reduce;
    if (!whole && call_with_handles.counts.size() == 1) count *= ranks;
    return call_with_handles.op == 0 ? count : count * layout_of(call_with_handles.type)->size;
}

namespace {

std::optional<CollectiveCall> call_of(const CollectiveCallWithHandles& call_with_handles) {
    CollectiveCall call;
    call.collective = call_with_handles.collective;
    call.counts = call_with_handles.counts;
    call.root = call_with_handles.root;
    call.in_place = call_with_handles.in_place;
    if (call_with_handles.op == 0) {
        call.type = DataType::uint8;
        return call;
    }
    const std::optional<DataType> type = layout_of(call_with_handles.type)->element;
    const std::optional<Operation> operation = operation_of_mpi(call_with_handles.op);
    if (!type || !operation) return std::nullopt;
    call.type = *type;
    call.operation = *operation;
    try {
        check_reduction({call.type, call.operation, 1, nullptr});
    } catch (const std::invalid_argument&) {
        return std::nullopt; // the MPI library reports the error
    }
    return call;
}

} // namespace

const Translated* translated(const CollectiveCallWithHandles& call_with_handles, int ranks, int rank) {
    struct Latest {
        CollectiveCallWithHandles call_with_handles;
        int ranks, rank;
        Translated is;
    };
    // Programs repeat calls. Translated types and operations are MPI's own, and never change.
    static thread_local std::optional<Latest> latest;
    if (latest && latest->call_with_handles == call_with_handles && latest->ranks == ranks &&
        latest->rank == rank)
        return &latest->is;
    const std::size_t counts = call_with_handles.counts.size();
    if (counts != 1 && counts != static_cast<std::size_t>(ranks)) return nullptr; // between two groups
    std::optional<CollectiveCall> call = call_of(call_with_handles);
    if (!call) return nullptr;
    std::vector<std::size_t> bytes = bytes_of_buffers(*call, ranks, rank);
    latest = Latest{call_with_handles, ranks, rank, {std::move(*call), std::move(bytes)}};
    return &latest->is;
}

bool Part::is_dense() const {
    std::int64_t end = 0;
    for (const Elements& each : *elements) {
        if (each.count <= 0) continue;
        const auto layout = layout_of(each.type);
        if (!layout->dense || each.offset != end) return false;
        end = each.offset + each.count * layout->size;
    }
    return true;
}

Parts parts_of(const Translated& translated, const CollectiveCallWithHandles& call_with_handles,
               const void* send, const void* receive, const std::vector<Elements>& sent,
               const std::vector<Elements>& received) {
    const auto& [call, bytes] = translated;
    Parts parts;
    parts.one = call.in_place;
    if (parts.one) {
        // A broadcast's root sends what others receive.
        if (!sent.empty()) parts.send = {send, &sent, bytes[0]};
        if (!received.empty()) parts.receive = {receive, &received, bytes[0]};
        return parts;
    }
    if (call_with_handles.root_in_place) {
        if (call.collective == Collective::scatter)
            parts.send = {send, &sent, bytes[0]};
        else
            parts.receive = {receive, &received, bytes[1]};
        return parts;
    }
    if (!sent.empty() && bytes[0] > 0) parts.send = {send, &sent, bytes[0]};
    if (!received.empty() && bytes[1] > 0) parts.receive = {receive, &received, bytes[1]};
    return parts;
}

std::size_t own_offset(const CollectiveCall& call, int rank) {
    if (call.collective == Collective::reduce) return 0;
    const std::size_t size = size_of(call.type);
    if (call.counts.size() == 1) return static_cast<std::size_t>(rank * call.counts[0]) * size;
    std::size_t at = 0;
    for (int k = 0; k < rank; ++k) at += static_cast<std::size_t>(call.counts[k]) * size;
    return at;
}

OnHost::OnHost(const Translated& translated, const CollectiveCallWithHandles& call_with_handles,
               const Parts& parts, int rank, bool devices)
    : parts_(parts), devices_(devices) {
    const auto& [call, bytes] = translated;
    if (parts.one) {
        const bool reads = parts.send.address != nullptr || parts.send.elements != nullptr;
        const bool both = !reads && call.collective != Collective::broadcast;
        std::byte* data = nullptr;
        if (reads)
            data = read(parts.send, send_);
        else
            data = write(parts.receive, receive_, both);
        buffers_ = {data, nullptr};
        return;
    }
    std::byte* from = parts.send.elements != nullptr ? read(parts.send, send_) : nullptr;
    std::byte* to = parts.receive.elements != nullptr
                        ? write(parts.receive, receive_, call_with_handles.root_in_place)
                        : nullptr;
    if (call_with_handles.root_in_place) { // only the root knows: its part is copied
        const bool scatters = call.collective == Collective::scatter;
        own_.resize(scatters ? bytes[1] : bytes[0]);
        if (scatters)
            to = own_.data();
        else
            std::memcpy(own_.data(), to + own_offset(call, rank), own_.size());
        if (!scatters) from = own_.data();
    }
    buffers_ = {from, to};
}

void OnHost::finish() {
    if (receive_.packed) unpack(*parts_.receive.elements, receive_.bytes, receive_.host);
    staging_.write_back();
}

std::byte* OnHost::read(const Part& part, Held& held) {
    held.host = given(part, Use::read);
    if (part.is_dense()) return begin(part, held.host);
    held.packed = true;
    held.bytes.resize(part.bytes);
    pack(*part.elements, held.host, held.bytes);
    return held.bytes.data();
}

std::byte* OnHost::write(const Part& part, Held& held, bool both) {
    held.host = given(part, both ? Use::both : Use::written);
    if (part.is_dense()) return begin(part, held.host);
    held.packed = true;
    held.bytes.resize(part.bytes);
    if (both) pack(*part.elements, held.host, held.bytes);
    return held.bytes.data();
}

void* OnHost::given(const Part& part, Use use) {
    return devices_ ? staging_.give(part.address, *part.elements, use) : const_cast<void*>(part.address);
}

} // namespace jali::interposer
