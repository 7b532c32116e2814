// Every collective of MPI, by the names that programs call (MPI_...) and by those that nobody stands in front
// of (PMPI_...), on the same numbers: both must leave the same bytes everywhere, gaps and what is beside
// included.
//
// Arguments: seed, number of cases. TEST_DRIVER: memory of devices takes part (memory.hpp). Prints "same" and
// how many.
#include "memory.hpp"

#include <mpi.h>

#include <algorithm>
#include <complex>
#include <cstring>
#include <random>

using Bytes = std::vector<unsigned char>;

struct Kind {
    const char* name;
    MPI_Datatype type;
    int size;                                    // bytes of an element in memory
    void (*fill)(unsigned char*, std::mt19937&); // small numbers, so that sums are exact in any order
    bool computes, whole, real;                  // has operations; bitwise ones; an order
};

template <class T>
void fill_number(unsigned char* at, std::mt19937& random) {
    const T value = static_cast<T>(static_cast<int>(random() % 3) + 1);
    std::memcpy(at, &value, sizeof value);
}
template <class T>
void fill_complex(unsigned char* at, std::mt19937& random) {
    const std::complex<T> value(static_cast<T>(random() % 3 + 1),
                                static_cast<T>(random() % 2)); // no zero has a sign
    std::memcpy(at, &value, sizeof value);
}
void fill_pair(unsigned char* at, std::mt19937& random) {
    struct {
        double value;
        int displacement;
    } pair{static_cast<double>(random() % 5), static_cast<int>(random() % 100)};
    std::memcpy(at, &pair, 12);
}

MPI_Datatype holes, backwards; // derived types
void (*const fill_bytes)(unsigned char*, std::mt19937&) = [](unsigned char* at, std::mt19937& random) {
    for (int k = 0; k < 24; ++k) at[k] = static_cast<unsigned char>(random());
};

std::vector<Kind> kinds() {
    std::vector<Kind> all{
        {"int", MPI_INT, 4, fill_number<int>, true, true, true},
        {"int8", MPI_INT8_T, 1, fill_number<signed char>, true, true, true},
        {"unsigned short", MPI_UNSIGNED_SHORT, 2, fill_number<unsigned short>, true, true, true},
        {"uint64", MPI_UINT64_T, 8, fill_number<std::uint64_t>, true, true, true},
        {"long", MPI_LONG, 8, fill_number<long>, true, true, true},
        {"float", MPI_FLOAT, 4, fill_number<float>, true, false, true},
        {"double", MPI_DOUBLE, 8, fill_number<double>, true, false, true},
        {"complex", MPI_C_FLOAT_COMPLEX, 8, fill_complex<float>, true, false, false},
        {"double complex", MPI_C_DOUBLE_COMPLEX, 16, fill_complex<double>, true, false, false},
        {"double, int", MPI_DOUBLE_INT, 16, fill_pair, false, false, false},
        {"byte", MPI_BYTE, 1, fill_number<unsigned char>, false, false, false},
        {"char", MPI_CHAR, 1, fill_number<char>, false, false, false},
        {"with holes", holes, 24, fill_bytes, false, false, false},
        {"backwards", backwards, 24, fill_bytes, false, false, false},
    };
    return all;
}

void sum_of_squares(void* in, void* inout, int* count, MPI_Datatype*) { // commutative, of int
    for (int k = 0; k < *count; ++k) static_cast<int*>(inout)[k] += static_cast<int*>(in)[k] + 1;
}

struct Case {
    std::mt19937 random;
    MPI_Comm comm;
    int ranks, rank;
    Kind kind;
    int count;
    bool in_place;
    int memory; // bits: send, receive of this rank on the device
    test::Driver* driver;
    MPI_Op op;
    int root;
    std::vector<int> counts, displacements, send_counts, send_displacements; // of ranks
};

constexpr int margin = 32; // bytes before and after, which nobody may touch

Bytes filled(Case& c, std::int64_t elements, bool numbers) {
    Bytes bytes(static_cast<std::size_t>(2 * margin + elements * c.kind.size), 0xa5);
    if (numbers)
        for (std::int64_t k = 0; k < elements; ++k)
            c.kind.fill(bytes.data() + margin + k * c.kind.size, c.random);
    return bytes;
}

enum Which {
    allreduce,
    bcast,
    reduce,
    allgather,
    allgatherv,
    reduce_scatter,
    reduce_scatter_block,
    alltoall,
    alltoallv,
    alltoallw,
    gather,
    gatherv,
    scatter,
    scatterv,
    scan,
    exscan,
    number_of_collectives
};
const char* const names[] = {"allreduce",
                             "bcast",
                             "reduce",
                             "allgather",
                             "allgatherv",
                             "reduce_scatter",
                             "reduce_scatter_block",
                             "alltoall",
                             "alltoallv",
                             "alltoallw",
                             "gather",
                             "gatherv",
                             "scatter",
                             "scatterv",
                             "scan",
                             "exscan"};

// MPI_Allreduce, PMPI_Allreduce; MPI_Iallreduce: the names differ in the case of a letter as well.
#define EITHER(Blocking, nonblocking, ...)                                                                   \
    (!ours   ? PMPI_##Blocking(__VA_ARGS__)                                                                  \
     : begun ? MPI_I##nonblocking(__VA_ARGS__, &request)                                                     \
             : MPI_##Blocking(__VA_ARGS__))

void run(Which which, Case& c, void* send, void* receive, bool ours, bool begun) {
    MPI_Request request = MPI_REQUEST_NULL;
    const MPI_Datatype type = c.kind.type;
    const int n = c.count;
    const bool root_in_place = c.in_place && c.rank == c.root;
    void* from = c.in_place ? MPI_IN_PLACE : send;
    void* roots_from = root_in_place ? MPI_IN_PLACE : send;
    std::vector<MPI_Datatype> types(c.ranks, type);
    std::vector<int> bytes(c.displacements), send_bytes(c.send_displacements);
    for (int& displacement : bytes) displacement *= c.kind.size;
    for (int& displacement : send_bytes) displacement *= c.kind.size;
    int code = 0;
    switch (which) {
    case allreduce:
        code = EITHER(Allreduce, allreduce, from, receive, n, type, c.op, c.comm);
        break;
    case bcast:
        code = EITHER(Bcast, bcast, receive, n, type, c.root, c.comm);
        break;
    case reduce:
        code = EITHER(Reduce, reduce, roots_from, receive, n, type, c.op, c.root, c.comm);
        break;
    case allgather:
        code = EITHER(Allgather, allgather, from, n, type, receive, n, type, c.comm);
        break;
    case allgatherv:
        code = EITHER(Allgatherv, allgatherv, from, c.counts[c.rank], type, receive, c.counts.data(),
                      c.displacements.data(), type, c.comm);
        break;
    case reduce_scatter:
        code = EITHER(Reduce_scatter, reduce_scatter, from, receive, c.counts.data(), type, c.op, c.comm);
        break;
    case reduce_scatter_block:
        code = EITHER(Reduce_scatter_block, reduce_scatter_block, from, receive, n, type, c.op, c.comm);
        break;
    case alltoall:
        code = EITHER(Alltoall, alltoall, from, n, type, receive, n, type, c.comm);
        break;
    case alltoallv:
        code = EITHER(Alltoallv, alltoallv, from, c.send_counts.data(), c.send_displacements.data(), type,
                      receive, c.counts.data(), c.displacements.data(), type, c.comm);
        break;
    case alltoallw:
        code = EITHER(Alltoallw, alltoallw, from, c.send_counts.data(), send_bytes.data(), types.data(),
                      receive, c.counts.data(), bytes.data(), types.data(), c.comm);
        break;
    case gather:
        code = EITHER(Gather, gather, roots_from, n, type, receive, n, type, c.root, c.comm);
        break;
    case gatherv:
        code = EITHER(Gatherv, gatherv, roots_from, c.counts[c.rank], type, receive, c.counts.data(),
                      c.displacements.data(), type, c.root, c.comm);
        break;
    case scatter:
        code = EITHER(Scatter, scatter, send, n, type, root_in_place ? MPI_IN_PLACE : receive, n, type,
                      c.root, c.comm);
        break;
    case scatterv:
        code = EITHER(Scatterv, scatterv, send, c.counts.data(), c.displacements.data(), type,
                      root_in_place ? MPI_IN_PLACE : receive, c.counts[c.rank], type, c.root, c.comm);
        break;
    case scan:
        code = EITHER(Scan, scan, from, receive, n, type, c.op, c.comm);
        break;
    case exscan:
        code = EITHER(Exscan, exscan, from, receive, n, type, c.op, c.comm);
        break;
    default:
        break;
    }
    if (code == 0 && ours && begun) code = MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (code != 0) {
        std::fprintf(stderr, "%s returned %d\n", names[which], code);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

// Open MPI 4.1 never completes some non-blocking collectives, without jali as well.
bool begun_ones_hang() {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(version, &length);
    return std::strncmp(version, "Open MPI v4", 11) == 0;
}

bool reduces(Which which) {
    return which == allreduce || which == reduce || which == reduce_scatter ||
           which == reduce_scatter_block || which == scan || which == exscan;
}

int main(int count, char** words) {
    int given = 0;
    MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &given);
    const unsigned seed = static_cast<unsigned>(std::atoi(words[1]));
    const int cases = std::atoi(words[2]);
    int world_rank = 0, world_ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_ranks);
    const int lengths[] = {1, 2}, distances[] = {0, 8};
    MPI_Type_indexed(2, lengths, distances, MPI_BYTE, &holes);
    MPI_Type_create_resized(holes, 0, 24, &backwards);
    MPI_Type_free(&holes);
    holes = backwards;
    MPI_Type_commit(&holes);
    const int turned[] = {16, 0};
    MPI_Datatype raw;
    MPI_Type_indexed(2, lengths, turned, MPI_BYTE, &raw);
    MPI_Type_create_resized(raw, 0, 24, &backwards);
    MPI_Type_commit(&backwards);
    MPI_Op user;
    MPI_Op_create(sum_of_squares, 1, &user);
    MPI_Comm turned_around, some;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &turned_around);
    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, 0, &some);
    const std::vector<MPI_Comm> comms{MPI_COMM_WORLD, turned_around, some, MPI_COMM_SELF};
    test::Driver* driver = test::Driver::of(world_rank);
    void* context = nullptr;
    if (driver != nullptr) driver->current(&context);

    std::mt19937 common(seed), mine(seed * 1000 + world_rank);
    int done = 0;
    for (int k = 0; k < cases; ++k) {
        common.seed(seed * 100003 +
                    static_cast<unsigned>(k)); // groups of several sizes draw different numbers of times
        Case c;
        c.random.seed(mine());
        const auto which = static_cast<Which>(common() % number_of_collectives);
        c.comm = comms[common() % comms.size()];
        MPI_Comm_size(c.comm, &c.ranks);
        MPI_Comm_rank(c.comm, &c.rank);
        const std::vector<Kind> all = kinds();
        c.kind = all[common() % all.size()];
        while (reduces(which) && !c.kind.computes) c.kind = all[common() % all.size()];
        const int sizes[] = {0, 1, 3, 17, 1000, 4099, 20011};
        c.count = sizes[common() % std::size(sizes)];
        c.in_place = common() % 3 == 0;
        if (which == exscan) c.in_place = false;
        c.root = static_cast<int>(common() % c.ranks);
        const unsigned pattern = common() % 4; // all on devices, none, as it comes, half of the ranks
        c.driver = driver;
        c.memory = driver == nullptr ? 0
                   : pattern == 0    ? 3
                   : pattern == 1    ? 0
                   : pattern == 2    ? mine() % 4
                                     : c.rank % 2 * 3;
        std::vector<MPI_Op> ops{MPI_SUM, MPI_PROD};
        if (c.kind.real) ops.insert(ops.end(), {MPI_MIN, MPI_MAX});
        if (c.kind.whole) ops.insert(ops.end(), {MPI_LAND, MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR});
        if (c.kind.type == MPI_INT) ops.push_back(user);
        c.op = ops[common() % ops.size()];
        const bool drawn = common() % 4 == 0;
        const bool begun = drawn && !begun_ones_hang();
        // parts of ranks: in other orders than theirs, with gaps
        int at = 0;
        const int spread = c.count / 8 + 1;
        for (int r = 0; r < c.ranks; ++r) {
            c.counts.push_back(static_cast<int>(common() % spread) * (common() % 5 != 0));
            c.displacements.push_back(at);
            at += c.counts.back() + static_cast<int>(common() % 3);
        }
        int room = at;
        if (which == alltoallv || which == alltoallw) {
            // what rank r sends to me is as much as I say: all draw the same table
            std::vector<int> table(static_cast<std::size_t>(c.ranks * c.ranks));
            for (int& entry : table) entry = static_cast<int>(common() % spread);
            if (c.in_place)
                for (int i = 0; i < c.ranks; ++i)
                    for (int j = 0; j < i; ++j) table[i * c.ranks + j] = table[j * c.ranks + i];
            c.counts.clear(), c.displacements.clear();
            int to = 0, from = 0;
            for (int r = 0; r < c.ranks; ++r) {
                c.counts.push_back(table[r * c.ranks + c.rank]);
                c.send_counts.push_back(table[c.rank * c.ranks + r]);
                c.displacements.push_back(to), c.send_displacements.push_back(from);
                to += c.counts.back() + 1, from += c.send_counts.back() + 2;
            }
            room = std::max(to, from);
        } else {
            c.send_displacements.assign(c.ranks, 0);
        }
        const std::int64_t many = std::max<std::int64_t>(std::int64_t{c.count} * c.ranks, room);
        const Bytes send = filled(c, many, true), receive = filled(c, many, c.in_place || which == bcast);
        test::Buffer one(c.memory & 1 ? driver : nullptr, send),
            two(c.memory & 2 ? driver : nullptr, receive);
        Bytes reference_send = send, reference = receive;
        run(which, c, one.data() + margin, two.data() + margin, true, begun);
        run(which, c, reference_send.data() + margin, reference.data() + margin, false, false);
        // In place, MPI says nothing about what a reduce-scatter leaves beyond the own part.
        std::size_t compared = reference.size();
        if (c.in_place && (which == reduce_scatter || which == reduce_scatter_block))
            compared = margin + static_cast<std::size_t>(c.kind.size) *
                                    (which == reduce_scatter ? c.counts[c.rank] : c.count);
        Bytes result = two.contents();
        result.resize(compared), reference.resize(compared);
        if (one.contents() != reference_send || result != reference) {
            const auto displacement =
                std::mismatch(result.begin(), result.end(), reference.begin()).first - result.begin();
            std::fprintf(stderr,
                         "case %d: %s of %d x %s on %d ranks, root %d, in place %d, memory %d, begun %d: "
                         "rank %d differs "
                         "at byte %d of what it received (of what it sent: %d)\n",
                         k, names[which], c.count, c.kind.name, c.ranks, c.root, c.in_place, c.memory, begun,
                         c.rank, static_cast<int>(displacement) - margin, one.contents() != reference_send);
            MPI_Abort(MPI_COMM_WORLD, 4);
        }
        if (driver != nullptr) {
            void* now = nullptr;
            driver->current(&now);
            if (now != context) {
                std::fprintf(stderr, "case %d: another context is current\n", k);
                MPI_Abort(MPI_COMM_WORLD, 5);
            }
        }
        ++done;
    }
    MPI_Comm_free(&turned_around);
    MPI_Comm_free(&some);
    MPI_Op_free(&user);
    MPI_Finalize();
    if (world_rank == 0) std::printf("same %d\n", done);
    return 0;
}
