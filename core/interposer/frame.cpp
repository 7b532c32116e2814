// Begin and end of MPI, and of communicators.
#include "interposer/call.hpp"
#include "settings/settings.hpp"

#include <cstdio>
#include <exception>
#include <thread>

namespace jali::interposer {

namespace {

// Errors of settings, or differences between ranks, end the program at its start.
int begin(int code) {
    if (code != 0) return code;
    const Inside inside;
    try {
        for (const std::string& note : start_settings()) std::fprintf(stderr, "jali: %s\n", note.c_str());
        start_service();
    } catch (const std::exception& error) {
        int rank = -1;
        mpi().Comm_rank(mpi().world, &rank);
        std::fprintf(stderr, "jali: rank %d: %s\n", rank, error.what());
        std::this_thread::sleep_for(event);
        mpi().Abort(mpi().world, 1);
    }
    return 0;
}

struct Frame {
    static int Init(int* count, char*** words) { return begin(mpi().Init(count, words)); }
    static int Init_thread(int* count, char*** words, int wanted, int* given) {
        return begin(mpi().Init_thread(count, words, wanted, given));
    }
    static int Finalize() {
        const Inside inside;
        const CurrentContexts contexts;
        end_requests();
        report_counters();
        end_service();
        return mpi().Finalize();
    }
    // Types are identified by the names that MPI gives them.
    static int Type_set_name(H type, const char* name) {
        if (!Inside::is()) {
            const Inside inside;
            try {
                layout_of(type);
            } catch (const BadType&) { // no type: MPI reports it
            }
        }
        return mpi().Type_set_name(type, name);
    }
    static int Comm_free(void* comm) {
        give_up_communicator(comm);
        return mpi().Comm_free(comm);
    }
    static int Comm_disconnect(void* comm) {
        give_up_communicator(comm);
        return mpi().Comm_disconnect(comm);
    }

  private:
    static void give_up_communicator(void* comm) {
        const Inside inside;
        const CurrentContexts contexts;
        try {
            forget(mpi().handle_at(comm, 0));
        } catch (const std::exception& error) {
            failed("MPI_Comm_free", 0, error);
        }
    }
};

} // namespace

#define JALI_FRAME(name, parameters, arguments)                                                              \
    JALI_SHOWN int MPI_##name parameters {                                                                   \
        return Frame::name arguments;                                                                        \
    }
JALI_MPI_FRAME(JALI_FRAME)

} // namespace jali::interposer
