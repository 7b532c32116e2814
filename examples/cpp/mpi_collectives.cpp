// Collectives between MPI processes, in C++ alone: mpiexec -n 4 mpi_collectives
#include <jali/jali.hpp>

#include <cstdint>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <vector>

#include <mpi.h>

using namespace jali;

namespace {

void require(bool right, const char* what) {
    if (!right) throw std::runtime_error(what);
}

void program(const std::shared_ptr<Communicator>& world) {
    const int rank = world->rank(), ranks = world->size();
    const std::shared_ptr<Collectives> collectives = Collectives::make(world);

    // The way that this takes, here and at this size, is chosen by rules.
    const std::int64_t count = 100'000;
    CollectiveCall sum;
    sum.collective = Collective::all_reduce;
    sum.type = DataType::fp64;
    sum.counts = {count};
    std::vector<double> x(count, rank + 1.0), total(count);
    collectives->run(sum, buffers_of(x.data(), total.data()));
    for (const double value : total) require(value == ranks * (ranks + 1) / 2.0, "a wrong sum");
    const CollectiveChoice choice = collectives->algorithm_of(sum);
    if (rank == 0) std::printf("a sum goes by '%s': %s\n", choice.spec.name.c_str(), choice.why.c_str());

    // Rows of different lengths, gathered while the rank does something else.
    CollectiveCall gathering;
    gathering.collective = Collective::all_gather;
    gathering.type = DataType::int64;
    for (int r = 0; r < ranks; ++r) gathering.counts.push_back(r + 1);
    std::vector<std::int64_t> mine(rank + 1, rank), all(ranks * (ranks + 1) / 2);
    const auto under_way = collectives->start(gathering, buffers_of(mine.data(), all.data()));
    while (!under_way->test()) {
    }
    std::int64_t place = 0;
    for (int r = 0; r < ranks; ++r)
        for (int k = 0; k <= r; ++k) require(all[place++] == r, "a wrong row");

    if (rank == 0) std::printf("%d ranks, all is right\n", ranks);
}

} // namespace

int main(int argc, char** argv) {
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    int status = 0;
    {
        // The handle is a number or a pointer, as the library has it.
        const auto handle = (std::uintptr_t)MPI_COMM_WORLD;
        const std::shared_ptr<Communicator> world = make_mpi_communicator(handle, "");
        status = run_rank(world, [&] { program(world); });
    }
    if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
    MPI_Finalize();
    return status;
}
