#include "interposer/call.hpp"

#include <cstdio>
#include <thread>

namespace jali::interposer {

thread_local int Inside::depth = 0;

Inside::Inside(H comm) {
    ++depth;
    use_for_packing(comm);
}

Inside::~Inside() {
    --depth;
}

Described& Described::empty(bool asks) {
    static thread_local Described described; // calls are never nested in a thread: see Inside
    described.send.elements.clear();
    described.receive.elements.clear();
    described.send.use = Use::read;
    described.receive.use = Use::written;
    described.plan.reset();
    described.asks = asks;
    return described;
}

int failed(const char* function, H comm, const std::exception& error) {
    int rank = -1;
    mpi().Comm_rank(mpi().world, &rank);
    std::fprintf(stderr, "jali: %s on rank %d: %s\n", function, rank, error.what());
    std::this_thread::sleep_for(event);
    mpi().Comm_call_errhandler(comm != 0 ? comm : mpi().world, mpi().error_other);
    return mpi().error_other;
}

} // namespace jali::interposer
