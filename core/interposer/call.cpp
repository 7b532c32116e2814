#include "interposer/call.hpp"

#include <cstdio>

namespace jali::interposer {

thread_local int Inside::depth = 0;

int failed(const char* function, H comm, const std::exception& error) noexcept {
    int rank = -1;
    mpi().Comm_rank(mpi().world, &rank);
    std::fprintf(stderr, "jali: %s on rank %d: %s\n", function, rank, error.what());
    mpi().Comm_call_errhandler(comm != 0 ? comm : mpi().world, mpi().error_other);
    return mpi().error_other;
}

} // namespace jali::interposer
