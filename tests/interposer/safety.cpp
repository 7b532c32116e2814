// What may go wrong around collectives of device memory: right results or an error, never a hang, never
// success after a failure. The arguments say what happens, one after the other; "right" is printed where all
// went well.
#include "memory.hpp"

#include <mpi.h>

#include <csignal>
#include <string>
#include <thread>

int rank, ranks;

[[noreturn]] void wrong(const std::string& what) {
    std::fprintf(stderr, "rank %d: %s\n", rank, what.c_str());
    MPI_Abort(MPI_COMM_WORLD, 4);
    std::abort();
}

std::vector<unsigned char> bytes_of(const std::vector<int>& numbers) {
    std::vector<unsigned char> bytes(numbers.size() * sizeof(int));
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return bytes;
}

// An all-reduce of so many numbers; 0, the code of MPI, or -1: it said success and the result is wrong.
int sum(test::Driver* driver, MPI_Comm comm, int count, int salt) {
    int size = 0, me = 0;
    MPI_Comm_size(comm, &size);
    MPI_Comm_rank(comm, &me);
    std::vector<int> mine(count), wanted(count);
    for (int k = 0; k < count; ++k) {
        mine[k] = me + k + salt;
        wanted[k] = size * (size - 1) / 2 + size * (k + salt);
    }
    test::Buffer from(driver, bytes_of(mine)), to(driver, bytes_of(std::vector<int>(count, -1)));
    const int code = MPI_Allreduce(from.data(), to.data(), count, MPI_INT, MPI_SUM, comm);
    if (code != MPI_SUCCESS) return code;
    return to.contents() == bytes_of(wanted) ? 0 : -1;
}
void must_sum(test::Driver* driver, MPI_Comm comm, int count, int salt, const char* what) {
    if (const int code = sum(driver, comm, count, salt); code != 0)
        wrong(std::string(what) + ": " + std::to_string(code));
}

void threads(test::Driver* driver) {
    std::vector<MPI_Comm> comms(4);
    for (MPI_Comm& comm : comms) MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    std::vector<std::thread> all;
    for (int t = 0; t < 4; ++t)
        all.emplace_back([&, t] {
            if (driver != nullptr) test::Driver::check(driver->set(driver->context));
            for (int k = 0; k < 30; ++k)
                must_sum(t % 2 ? driver : nullptr, comms[t], 3000 + 100 * t, k, "a thread");
        });
    for (std::thread& each : all) each.join();
    for (MPI_Comm& comm : comms) MPI_Comm_free(&comm);
}

void lifetimes(test::Driver* driver) {
    for (int k = 0; k < 300; ++k) { // more than MPI has at once, with jali's own
        MPI_Comm comm;
        MPI_Comm_split(MPI_COMM_WORLD, 0, k % 2 ? rank : -rank, &comm);
        must_sum(driver, comm, 2000, k, "a communicator that is soon freed");
        MPI_Comm_free(&comm);
    }
    std::vector<MPI_Comm> comms(6);
    for (std::size_t k = 0; k < comms.size(); ++k) {
        MPI_Comm_dup(k == 0 ? MPI_COMM_WORLD : comms[k - 1], &comms[k]);
        must_sum(driver, comms[k], 2000, static_cast<int>(k), "a duplicate of a duplicate");
    }
    MPI_Comm_free(&comms[2]);
    MPI_Comm_disconnect(&comms[0]);
    must_sum(driver, comms[5], 2000, 1, "one whose origin is gone");
    MPI_Comm_free(&comms[4]); // the others stay until the end
    MPI_Comm_set_errhandler(comms[5], MPI_ERRORS_RETURN);
}

// While others wait for it in a collective that a plan does.
void killed(test::Driver* driver) {
    must_sum(driver, MPI_COMM_WORLD, 5000, 0, "before");
    if (rank == ranks - 1) std::raise(SIGKILL);
    const int code = sum(driver, MPI_COMM_WORLD, 5000, 1);
    std::fprintf(stderr, "rank %d: went on, with %d\n", rank, code);
    MPI_Abort(MPI_COMM_WORLD, 6);
}

// Whatever fails, MPI does not say that it went well.
void failing(test::Driver* driver) {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    const int code = sum(driver, MPI_COMM_WORLD, 200000, 0);
    if (code == -1) wrong("success, and a wrong result");
    std::printf("%s\n", code == 0 ? "right" : "an error");
    std::fflush(stdout);
    if (code != 0) MPI_Abort(MPI_COMM_WORLD, 7);
}

// A communicator that another job's ranks have part in, and one between two groups.
void between(test::Driver* driver) {
    if (ranks < 2) return;
    MPI_Comm half, bridge, merged;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 9, &bridge);
    const int count = 3000;
    int others = 0;
    MPI_Comm_remote_size(bridge, &others);
    test::Buffer from(driver, bytes_of(std::vector<int>(count, rank % 2 + 1)));
    test::Buffer to(driver, bytes_of(std::vector<int>(count, -1)));
    MPI_Allreduce(from.data(), to.data(), count, MPI_INT, MPI_SUM, bridge);
    if (to.contents() != bytes_of(std::vector<int>(count, others * (2 - rank % 2))))
        wrong("between two groups");
    // from one rank of the even group to all of the odd one
    test::Buffer sent(driver, bytes_of(std::vector<int>(count, 7)));
    const int root = rank % 2 ? 0 : rank == 0 ? MPI_ROOT : MPI_PROC_NULL;
    MPI_Bcast(sent.data(), count, MPI_INT, root, bridge);
    std::vector<int> gathered(static_cast<std::size_t>(count) * others, -1);
    test::Buffer all(driver, bytes_of(gathered));
    MPI_Allgather(from.data(), count, MPI_INT, all.data(), count, MPI_INT, bridge);
    if (all.contents() != bytes_of(std::vector<int>(static_cast<std::size_t>(count) * others, 2 - rank % 2)))
        wrong("all-gather between two groups");
    MPI_Intercomm_merge(bridge, rank % 2, &merged);
    must_sum(driver, merged, 3000, 1, "a merged group");
    MPI_Comm_free(&merged);
    MPI_Comm_free(&bridge);
    MPI_Comm_free(&half);
}

// Parts of neighbours, at the edges of a line and in a ring.
void neighbours(test::Driver* driver) {
    for (const int periodic : {0, 1}) {
        MPI_Comm line;
        MPI_Cart_create(MPI_COMM_WORLD, 1, &ranks, &periodic, 0, &line);
        const int count = 700;
        test::Buffer from(driver, bytes_of(std::vector<int>(count, rank)));
        test::Buffer to(driver, bytes_of(std::vector<int>(2 * count, -5)));
        MPI_Neighbor_allgather(from.data(), count, MPI_INT, to.data(), count, MPI_INT, line);
        std::vector<int> host(2 * count, -5), mine(count, rank);
        PMPI_Neighbor_allgather(mine.data(), count, MPI_INT, host.data(), count, MPI_INT, line);
        if (to.contents() != bytes_of(host)) wrong("neighbours on a line");
        const int displacements[] = {5, count + 9};
        test::Buffer parts(driver, bytes_of(std::vector<int>(3 * count, -5)));
        std::vector<int> parts_host(3 * count, -5);
        MPI_Neighbor_allgatherv(from.data(), 3, MPI_INT, parts.data(), std::vector<int>{3, 3}.data(),
                                displacements, MPI_INT, line);
        PMPI_Neighbor_allgatherv(mine.data(), 3, MPI_INT, parts_host.data(), std::vector<int>{3, 3}.data(),
                                 displacements, MPI_INT, line);
        if (parts.contents() != bytes_of(parts_host)) wrong("parts of neighbours");
        MPI_Comm_free(&line);
    }
}

// Threads whose requests get each other's handles.
void requests_of_threads(test::Driver* driver) {
    std::vector<MPI_Comm> comms(4);
    for (MPI_Comm& comm : comms) MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    std::vector<std::thread> all;
    for (int t = 0; t < 4; ++t)
        all.emplace_back([&, t] {
            if (driver != nullptr) test::Driver::check(driver->set(driver->context));
            for (int k = 0; k < 150; ++k) {
                const int n = 500 + 37 * t, to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
                test::Buffer out(driver, bytes_of(std::vector<int>(n, 1000 * t + k)));
                test::Buffer in(driver, bytes_of(std::vector<int>(n, -1)));
                MPI_Request requests[2];
                MPI_Irecv(in.data(), n, MPI_INT, from, 0, comms[t], &requests[0]);
                MPI_Isend(out.data(), n, MPI_INT, to, 0, comms[t], &requests[1]);
                MPI_Wait(&requests[k % 2], MPI_STATUS_IGNORE);
                MPI_Wait(&requests[1 - k % 2], MPI_STATUS_IGNORE);
                if (in.contents() != bytes_of(std::vector<int>(n, 1000 * t + k)))
                    wrong("a message of another thread");
            }
        });
    for (std::thread& each : all) each.join();
    for (MPI_Comm& comm : comms) MPI_Comm_free(&comm);
}

// Types whose elements stand in another order than in memory, though without gaps.
void orders(test::Driver* driver) {
    const int lengths[] = {1, 1}, turned[] = {1, 0}, count = 3000;
    MPI_Datatype type;
    MPI_Type_indexed(2, lengths, turned, MPI_INT, &type);
    MPI_Type_commit(&type);
    std::vector<int> numbers(2 * count), swapped(2 * count);
    for (int k = 0; k < 2 * count; ++k) numbers[k] = k, swapped[k ^ 1] = k;
    test::Buffer data(driver, bytes_of(rank == 0 ? numbers : std::vector<int>(2 * count, -1)));
    if (rank == 0)
        MPI_Bcast(data.data(), count, type, 0, MPI_COMM_WORLD);
    else
        MPI_Bcast(data.data(), 2 * count, MPI_INT, 0, MPI_COMM_WORLD);
    if (rank != 0 && data.contents() != bytes_of(swapped)) wrong("a broadcast of a type in another order");
    // one number for room of two: it is the second in memory
    test::Buffer two(driver, bytes_of({5, 6})), one(driver, bytes_of({7}));
    MPI_Sendrecv(one.data(), 1, MPI_INT, rank, 0, two.data(), 1, type, rank, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    if (two.contents() != bytes_of({5, 7})) wrong("a short message in another order");
    MPI_Type_free(&type);
}

// The device that is current stays so, and what failed leaves nothing behind.
void contexts(test::Driver* driver) {
    if (driver == nullptr) return;
    void *other = nullptr, *now = nullptr;
    test::Driver::check(driver->retain(&other, (rank + driver->devices / 2) % driver->devices));
    const std::vector<unsigned char> first = bytes_of(std::vector<int>(3000, rank));
    test::Buffer mine(driver, first), result(driver, first);
    for (int k = 0; k < 12; ++k) {
        test::Driver::check(driver->set(k % 2 ? other : nullptr));
        MPI_Request request;
        MPI_Sendrecv(mine.data(), 9, MPI_INT, rank, 0, result.data(), 9, MPI_INT, rank, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        MPI_Irecv(result.data(), 9, MPI_INT, rank, 0, MPI_COMM_WORLD, &request);
        MPI_Send(mine.data(), 9, MPI_INT, rank, 0, MPI_COMM_WORLD);
        MPI_Waitall(1, &request, MPI_STATUSES_IGNORE);
        MPI_Allreduce(mine.data(), result.data(), k % 3 ? 3000 : 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        driver->current(&now);
        if (now != (k % 2 ? other : nullptr)) wrong("another context is current");
    }
    test::Driver::check(driver->set(driver->context));
    // A message that is too long, then others that may get its request's handle. It is short, and another
    // rank's: of a longer one Open MPI 5.0 writes all, and its own it takes for right, without jali as well.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    test::Buffer small(driver, bytes_of({1, 2}));
    MPI_Request request;
    MPI_Irecv(small.data(), 2, MPI_INT, (rank + ranks - 1) % ranks, 1, MPI_COMM_WORLD, &request);
    MPI_Send(mine.data(), 100, MPI_INT, (rank + 1) % ranks, 1, MPI_COMM_WORLD);
    int index = 0, kind = 0;
    const int code = MPI_Waitany(1, &request, &index, MPI_STATUS_IGNORE);
    MPI_Error_class(code, &kind);
    if (kind != MPI_ERR_TRUNCATE) wrong("a message that is too long is none");
    small.assign(bytes_of({3, 4}));
    for (int k = 0; k < 20; ++k) {
        int in = 0, out = k;
        MPI_Irecv(&in, 1, MPI_INT, rank, 2, MPI_COMM_WORLD, &request);
        MPI_Send(&out, 1, MPI_INT, rank, 2, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        if (in != k || small.contents() != bytes_of({3, 4})) wrong("a failed message came later");
    }
    // prepared, under way, and given up
    MPI_Recv_init(small.data(), 2, MPI_INT, rank, 3, MPI_COMM_WORLD, &request);
    MPI_Start(&request);
    MPI_Request_free(&request);
    MPI_Send(mine.data(), 2, MPI_INT, rank, 3, MPI_COMM_WORLD);
    // what MPI is to judge, it judges
    if (MPI_Bcast(mine.data(), 3000, MPI_INT, ranks + 3, MPI_COMM_WORLD) != MPI_SUCCESS) {
        MPI_Error_class(MPI_Bcast(mine.data(), 3000, MPI_INT, ranks + 3, MPI_COMM_WORLD), &kind);
        if (kind != MPI_ERR_ROOT) wrong("a root that is none");
    }
}

void happens(const std::string& what, test::Driver* driver) {
    if (what == "threads")
        threads(driver);
    else if (what == "threads_of_requests")
        requests_of_threads(driver);
    else if (what == "orders")
        orders(driver);
    else if (what == "contexts")
        contexts(driver);
    else if (what == "lifetimes")
        lifetimes(driver);
    else if (what == "killed")
        killed(driver);
    else if (what == "failing")
        failing(driver);
    else if (what == "between")
        between(driver);
    else if (what == "neighbours")
        neighbours(driver);
    else if (what == "shared" || what == "plain")
        for (int k = 0; k < 20; ++k)
            must_sum(driver, MPI_COMM_WORLD, 10 + 3000 * k, k, "ranks of one device");
    else
        wrong("there is no " + what);
}

int main(int count, char** words) {
    const std::vector<std::string> all(words + 1, words + count);
    const std::string& first = all.at(0);
    int given = 0;
    MPI_Init_thread(&count, &words, first.starts_with("threads") ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED,
                    &given);
    if (first.starts_with("threads") && given < MPI_THREAD_MULTIPLE) wrong("MPI takes no threads");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    test::Driver* driver = test::Driver::of(first == "shared" ? 0 : rank);
    for (const std::string& what : all) happens(what, driver);
    MPI_Finalize();
    if (first != "failing" && rank == 0) std::printf("right\n");
    return 0;
}
