// What benchmarks/mpi_programs.py times: calls of MPI as any program makes them, in turns with the same by
// MPI's PMPI_ names, which nobody stands in front of, and by libjali, of which this program has a copy of its
// own.
//
//     program passed|served|asked BATCHES CALLS BYTES
//
// Prints for each side a line: its name, then of each batch the ns of a call on the slowest rank. Where
// TEST_DRIVER names a driver of devices it is loaded, and a context of its first device current.
#include "memory.hpp"

#include <jali/jali.hpp>

#include <chrono>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <mpi.h>
#include <sched.h>
#include <unistd.h>

using namespace jali;

namespace {

struct Side {
    std::string name;
    std::function<void(int calls)> run;
};

void check(int code, const char* what) {
    if (code != MPI_SUCCESS) throw std::runtime_error(std::string(what) + " failed");
}

void take_core(int rank) {
    cpu_set_t mine, one;
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) return;
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &mine)) cores.push_back(core);
    CPU_ZERO(&one);
    CPU_SET(cores[rank % cores.size()], &one);
    sched_setaffinity(0, sizeof one, &one);
}

// Each batch begins with another side, so that none is always the one after the barrier's end.
void in_turns(const std::vector<Side>& sides, MPI_Comm comm, int batches, int calls) {
    std::vector<std::vector<double>> times(sides.size());
    for (int batch = -1; batch < batches; ++batch) // the first one connects, plans and fills caches
        for (std::size_t k = 0; k < sides.size(); ++k) {
            const std::size_t which = (k + batch + 1) % sides.size();
            check(PMPI_Barrier(comm), "MPI_Barrier");
            const auto start = std::chrono::steady_clock::now();
            sides[which].run(calls);
            const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
            if (batch >= 0) times[which].push_back(took.count() / calls);
        }
    int rank = 0;
    PMPI_Comm_rank(comm, &rank);
    for (std::size_t k = 0; k < sides.size(); ++k) {
        std::vector<double> slowest(times[k].size());
        check(PMPI_Reduce(times[k].data(), slowest.data(), static_cast<int>(slowest.size()), MPI_DOUBLE,
                          MPI_MAX, 0, comm),
              "MPI_Reduce");
        if (rank != 0) continue;
        std::printf("%s", sides[k].name.c_str());
        for (const double time : slowest) std::printf("\t%.2f", time);
        std::printf("\n");
    }
}

// One element after the other, so that every call is the same work.
struct Sum {
    std::vector<double> x, total;
    MPI_Comm comm;

    Sum(std::size_t bytes, MPI_Comm of) : x(bytes / sizeof(double), 1.0), total(x.size()), comm(of) {}
    int count() const { return static_cast<int>(x.size()); }
    Side by_mpi(const char* name) {
        return {name, [this](int calls) {
                    for (int k = 0; k < calls; ++k)
                        check(MPI_Allreduce(x.data(), total.data(), count(), MPI_DOUBLE, MPI_SUM, comm),
                              "MPI_Allreduce");
                }};
    }
    Side by_library(const char* name) {
        return {name, [this](int calls) {
                    for (int k = 0; k < calls; ++k)
                        check(PMPI_Allreduce(x.data(), total.data(), count(), MPI_DOUBLE, MPI_SUM, comm),
                              "PMPI_Allreduce");
                }};
    }
};

// The driver's answers to what is asked about the two addresses of a call.
Side by_driver(const Sum& sum) {
    constexpr int of_memory_type = 2;
    using Question = int (*)(void* value, int which, test::Address address);
    void* const library = dlopen(std::getenv("TEST_DRIVER"), RTLD_NOW | RTLD_NOLOAD);
    void* const address = library != nullptr ? dlsym(library, "cuPointerGetAttribute") : nullptr;
    if (address == nullptr) throw std::runtime_error("the driver has no cuPointerGetAttribute");
    return {"driver", [&sum, ask = reinterpret_cast<Question>(address)](int calls) {
                unsigned type = 0;
                for (int k = 0; k < calls; ++k)
                    for (const std::vector<double>* each : {&sum.x, &sum.total})
                        ask(&type, of_memory_type, reinterpret_cast<test::Address>(each->data()));
            }};
}

// Of rank 0 alone; others sleep, so that they take no core from it.
void passed(bool devices, int rank, int batches, int calls, std::size_t bytes) {
    if (rank == 0) {
        Sum sum(bytes, MPI_COMM_SELF);
        std::vector<Side> sides = {sum.by_mpi("MPI"), sum.by_library("PMPI")};
        if (devices) sides.push_back(by_driver(sum));
        in_turns(sides, MPI_COMM_SELF, batches, calls);
    }
    MPI_Request all_here;
    check(PMPI_Ibarrier(MPI_COMM_WORLD, &all_here), "MPI_Ibarrier");
    for (int done = 0; !done; std::this_thread::sleep_for(std::chrono::milliseconds(1)))
        check(PMPI_Test(&all_here, &done, MPI_STATUS_IGNORE), "MPI_Test");
}

void served(const std::shared_ptr<Communicator>& world, int batches, int calls, std::size_t bytes) {
    const std::shared_ptr<Collectives> collectives = Collectives::make(world);
    Sum sum(bytes, MPI_COMM_WORLD);
    CollectiveCall call;
    call.collective = Collective::all_reduce;
    call.type = DataType::fp64;
    call.counts = {sum.count()};
    call.algorithm = "one_shot"; // as the rule for calls of MPI has it
    const auto buffers = buffers_of(sum.x.data(), sum.total.data());
    in_turns({sum.by_mpi("MPI"),
              sum.by_library("PMPI"),
              {"direct",
               [&](int n) {
                   for (int k = 0; k < n; ++k) collectives->run(call, buffers);
               }}},
             MPI_COMM_WORLD, batches, calls);
}

// Calls of so many bytes, about which ranks ask each other, and of one element less, about which they do not.
void asked(int batches, int calls, std::size_t bytes) {
    Sum asks(bytes, MPI_COMM_WORLD), less(bytes - sizeof(double), MPI_COMM_WORLD);
    in_turns({asks.by_mpi("asks"), less.by_mpi("less")}, MPI_COMM_WORLD, batches, calls);
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: %s passed|served|asked BATCHES CALLS BYTES\n", argv[0]);
        return 2;
    }
    const std::string what = argv[1];
    const int batches = std::atoi(argv[2]), calls = std::atoi(argv[3]);
    const std::size_t bytes = std::strtoull(argv[4], nullptr, 10);
    MPI_Init(&argc, &argv);
    int rank = 0, status = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    take_core(rank);
    const bool devices = test::Driver::of(0) != nullptr;
    {
        const auto handle = (std::uintptr_t)MPI_COMM_WORLD; // a number or a pointer, as the library has it
        const std::shared_ptr<Communicator> world = make_mpi_communicator(handle, "");
        status = run_rank(world, [&] {
            if (what == "passed")
                passed(devices, rank, batches, calls, bytes);
            else if (what == "served")
                served(world, batches, calls, bytes);
            else if (what == "asked")
                asked(batches, calls, bytes);
            else
                throw std::invalid_argument("nothing to time is called " + what);
        });
    }
    if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
    MPI_Finalize();
    return status;
}
