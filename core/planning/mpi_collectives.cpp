#include "planning/mpi_collectives.hpp"
#include "messaging/mpi_operation.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

namespace jali {

namespace {

constexpr std::int64_t most_elements = std::numeric_limits<int>::max(); // MPI's counts and displacements

bool combines(Collective collective) {
    return collective == Collective::all_reduce || collective == Collective::reduce ||
           collective == Collective::reduce_scatter;
}

bool is_even(const CollectiveCall& call) {
    return std::ranges::adjacent_find(call.counts, std::not_equal_to<>()) == call.counts.end();
}

// Places in MpiAbi's tables; -1: there is none.
int index_of(DataType type) {
    switch (type) {
    case DataType::fp16:
    case DataType::bf16:
        return -1;
    case DataType::fp32:
        return 8;
    case DataType::fp64:
        return 9;
    case DataType::complex64:
        return 10;
    case DataType::complex128:
        return 11;
    default:
        return static_cast<int>(type); // integers, in the same order
    }
}
static_assert(static_cast<int>(DataType::uint64) == 7);

int index_of(Operation operation) {
    constexpr Operation displacements[] = {
        Operation::sum,         Operation::prod,       Operation::min,         Operation::max,
        Operation::logical_and, Operation::logical_or, Operation::logical_xor, Operation::bit_and,
        Operation::bit_or,      Operation::bit_xor};
    const auto found = std::ranges::find(displacements, operation);
    return found != std::end(displacements) ? static_cast<int>(found - displacements) : -1;
}

// MPI defines sums and products of all numbers, order of real ones, and the rest of integers.
bool has(Operation operation, DataType type) {
    const int index = index_of(type);
    if (operation == Operation::sum || operation == Operation::prod) return true;
    if (operation == Operation::min || operation == Operation::max) return index < 10;
    return index < 8;
}

// Of elements that are moved, as they are: a type of the same size.
int moved_as(DataType type) {
    if (const int index = index_of(type); index >= 0) return index;
    return index_of(DataType::uint16);
}

// Counts and displacements of the parts for or from each rank, in elements.
struct Parts {
    std::vector<int> counts, displacements;

    static Parts of(const std::vector<std::int64_t>& counts) {
        Parts parts;
        std::int64_t at = 0;
        for (const std::int64_t count : counts) {
            parts.counts.push_back(static_cast<int>(count));
            parts.displacements.push_back(static_cast<int>(at));
            at += count;
        }
        return parts;
    }
};

// Elements that a rank sends to each, or receives from each, in an all-to-all.
std::vector<std::int64_t> line_of(const CollectiveCall& call, int ranks, int rank, bool receives) {
    std::vector<std::int64_t> line;
    for (int other = 0; other < ranks; ++other)
        line.push_back(call.counts[receives ? other * ranks + rank : rank * ranks + other]);
    return line;
}

// The call to MPI, with the arguments that it reads besides the arrays.
struct MpiCall {
    Collective collective;
    int type, operation, root;
    bool is_root, even, in_place;
    int count = 0; // of the whole vector, or of each chunk
    Parts sent = {},
          received = {}; // where they differ between ranks; `sent` also of a scatter, `received` of a gather
    int mine = 0;        // of this rank's chunk
    std::size_t own_offset = 0; // of it, in bytes, where all chunks lie in one buffer
    const char* function = "";

    // On the addresses of sent and received data; null: none on this rank, or both are one.
    int begin(const MpiAbi& mpi, MpiHandle comm, MpiHandle* request, const void* send, void* receive) const {
        const MpiHandle t = mpi.types[type], op = operation >= 0 ? mpi.operations[operation] : 0;
        const void* const from = in_place ? mpi.in_place : send;
        switch (collective) {
        case Collective::broadcast:
            return mpi.Ibcast(is_root && !in_place ? const_cast<void*>(send) : receive, count, t, root, comm,
                              request);
        case Collective::reduce:
            return mpi.Ireduce(is_root ? from : send, receive, count, t, op, root, comm, request);
        case Collective::all_reduce:
            return mpi.Iallreduce(from, receive, count, t, op, comm, request);
        case Collective::reduce_scatter: // never in place, see below
            if (even) return mpi.Ireduce_scatter_block(send, receive, count, t, op, comm, request);
            return mpi.Ireduce_scatter(send, receive, sent.counts.data(), t, op, comm, request);
        case Collective::all_gather:
            if (even) return mpi.Iallgather(from, count, t, receive, count, t, comm, request);
            return mpi.Iallgatherv(from, mine, t, receive, received.counts.data(),
                                   received.displacements.data(), t, comm, request);
        case Collective::gather: {
            const void* const part = is_root ? from : send;
            if (even) return mpi.Igather(part, count, t, receive, count, t, root, comm, request);
            return mpi.Igatherv(part, mine, t, receive, received.counts.data(), received.displacements.data(),
                                t, root, comm, request);
        }
        case Collective::scatter: {
            void* const part = is_root && in_place ? mpi.in_place : receive;
            if (even) return mpi.Iscatter(send, count, t, part, count, t, root, comm, request);
            return mpi.Iscatterv(send, sent.counts.data(), sent.displacements.data(), t, part, mine, t, root,
                                 comm, request);
        }
        case Collective::all_to_all:
            if (even) return mpi.Ialltoall(from, count, t, receive, count, t, comm, request);
            return mpi.Ialltoallv(from, sent.counts.data(), sent.displacements.data(), t, receive,
                                  received.counts.data(), received.displacements.data(), t, comm, request);
        }
        return -1;
    }
};

const char* function_of(Collective collective, bool even) {
    switch (collective) {
    case Collective::broadcast:
        return "MPI_Ibcast";
    case Collective::reduce:
        return "MPI_Ireduce";
    case Collective::all_reduce:
        return "MPI_Iallreduce";
    case Collective::reduce_scatter:
        return even ? "MPI_Ireduce_scatter_block" : "MPI_Ireduce_scatter";
    case Collective::all_gather:
        return even ? "MPI_Iallgather" : "MPI_Iallgatherv";
    case Collective::gather:
        return even ? "MPI_Igather" : "MPI_Igatherv";
    case Collective::scatter:
        return even ? "MPI_Iscatter" : "MPI_Iscatterv";
    case Collective::all_to_all:
        return even ? "MPI_Ialltoall" : "MPI_Ialltoallv";
    }
    return "";
}

MpiCall call_of_mpi(const CollectiveCall& call, int ranks, int rank) {
    const bool even = is_even(call);
    MpiCall made{call.collective,
                 combines(call.collective) ? index_of(call.type) : moved_as(call.type),
                 combines(call.collective) ? index_of(call.operation) : -1,
                 call.root,
                 rank == call.root,
                 even,
                 call.in_place};
    made.function = function_of(call.collective, even);
    const std::size_t element = size_of(call.type);
    if (even) {
        made.count = made.mine = static_cast<int>(call.counts.at(0));
        made.own_offset = element * static_cast<std::size_t>(made.count) * static_cast<std::size_t>(rank);
    } else if (call.collective == Collective::all_to_all) {
        made.sent = Parts::of(line_of(call, ranks, rank, false));
        made.received = Parts::of(line_of(call, ranks, rank, true));
    } else {
        made.sent = made.received = Parts::of(call.counts);
        made.mine = made.sent.counts[rank];
        made.own_offset = element * static_cast<std::size_t>(made.sent.displacements[rank]);
    }
    return made;
}

// Elements of the largest buffer of any rank.
std::int64_t largest_of(const CollectiveCall& call, int ranks) {
    const auto sum = [](const std::vector<std::int64_t>& counts) {
        std::int64_t all = 0;
        for (const std::int64_t count : counts)
            if (__builtin_add_overflow(all, count, &all)) return std::numeric_limits<std::int64_t>::max();
        return all;
    };
    if (call.counts.size() == 1) {
        std::int64_t all = call.counts[0];
        const bool whole = call.collective == Collective::broadcast ||
                           call.collective == Collective::reduce || call.collective == Collective::all_reduce;
        if (!whole && __builtin_mul_overflow(all, std::int64_t{ranks}, &all))
            return std::numeric_limits<std::int64_t>::max();
        return all;
    }
    if (call.collective != Collective::all_to_all) return sum(call.counts);
    if (call.counts.size() != static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) return 0;
    std::int64_t largest = 0;
    for (int rank = 0; rank < ranks; ++rank)
        for (const bool receives : {false, true})
            largest = std::max(largest, sum(line_of(call, ranks, rank, receives)));
    return largest;
}

} // namespace

std::string why_mpi_has_not(const CollectiveCall& call, int ranks) {
    const std::string type(name_of(call.type)), operation(name_of(call.operation));
    if (combines(call.collective)) {
        if (index_of(call.operation) < 0) return "MPI has no operation '" + operation + "' of its own";
        if (index_of(call.type) < 0) return "MPI has no type " + type;
        if (!has(call.operation, call.type)) return "MPI has no '" + operation + "' of " + type;
        if (call.reproducible) return "MPI does not promise to combine in the order of ranks";
    }
    if (call.collective == Collective::all_to_all && call.in_place && !is_even(call))
        return "MPI has no all-to-all in place with other counts from a rank than to it";
    if (largest_of(call, ranks) > most_elements)
        return "MPI counts up to " + std::to_string(most_elements) + " elements";
    return "";
}

Schedule schedule_by_mpi(const CollectiveCall& call, int ranks, int rank) {
    check_call(ranks, call, forms_of(call.collective).front());
    if (const std::string why = why_mpi_has_not(call, ranks); !why.empty())
        throw CollectiveError(std::string(name_of(call.collective)) + " by mpi: " + why);
    const std::vector<std::size_t> bytes = bytes_of_buffers(call, ranks, rank);
    const auto mpi_call = std::make_shared<const MpiCall>(call_of_mpi(call, ranks, rank));
    const MpiCall& made = *mpi_call;
    Schedule schedule;
    schedule.set_libraries({std::string(by_mpi)});
    const auto whole = [&](int buffer) { return Region{buffer, 0, schedule.buffers()[buffer].bytes}; };
    const int send = schedule.add_buffer(call.in_place ? "data" : "send", bytes[0], true);
    const int receive = call.in_place ? send : schedule.add_buffer("recv", bytes[1]);
    // In place, MPI stores a reduce-scatter's result at the beginning, jali at the rank's part.
    const bool aside = call.in_place && call.collective == Collective::reduce_scatter;
    const std::size_t part = size_of(call.type) * static_cast<std::size_t>(made.mine);
    const int scratch = schedule.add_buffer("scratch", aside ? part : 0);
    const int into = aside ? scratch : receive;

    LibraryCollective action;
    if (bytes[0] > 0) action.reads.push_back(whole(send));
    const bool root_alone = call.collective == Collective::reduce || call.collective == Collective::gather;
    const bool copies_root =
        call.collective == Collective::broadcast && !call.in_place && made.is_root; // it sends from `send`
    if (schedule.buffers()[into].bytes > 0 && !(root_alone && !made.is_root) && !copies_root)
        action.writes.push_back(whole(into));
    action.begin = [mpi_call, send, into](Communicator& communicator, std::span<std::byte* const> buffers) {
        return begin_in_mpi(
            communicator, mpi_call->function,
            [&](const MpiAbi& mpi, MpiHandle comm, MpiHandle* request) {
                return mpi_call->begin(mpi, comm, request, buffers[send], buffers[into]);
            },
            mpi_call);
    };
    const std::string name = std::string(name_of(call.collective)) + " by mpi";
    const int step = schedule.add(name, std::move(action));
    if (copies_root && bytes[1] > 0)
        schedule.add("copy", Copy{{{whole(send), whole(receive), 0, nullptr, 0}}});
    if (aside && part > 0)
        schedule.add("copy", Copy{{{whole(scratch), Region{send, made.own_offset, part}, 0, nullptr, 0}}},
                     {{step, 0}});
    return schedule;
}

} // namespace jali
