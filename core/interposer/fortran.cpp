// The functions that Fortran programs call: mpi_allreduce_ and, with mpi_f08, mpi_allreduce_f08_.
//
// MPICH's call MPI_Allreduce, which is ours already, and are only passed on; but those without buffers call
// PMPI_Wait etc. with mpi_f08. Open MPI's all call the internals of PMPI_Allreduce. Where a call concerns
// jali and would bypass it, its handles, constants and statuses are translated here and the C function is
// called instead.
#include "interposer/call.hpp"

#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <dlfcn.h>

namespace jali::interposer {

#define JALI_DECLARE(blocking, nonblocking, initialising, parameters, arguments)                             \
    extern "C" int MPI_##blocking parameters;                                                                \
    extern "C" int MPI_##nonblocking(JALI_OPEN parameters, void* request);
#define JALI_DECLARE_SEND(name)                                                                              \
    extern "C" int MPI_##name(const void* buffer, int count, H type, int to, int tag, H comm);
#define JALI_DECLARE_BEGUN(name)                                                                             \
    extern "C" int MPI_##name(const void* buffer, int count, H type, int to, int tag, H comm, void* request);
#define JALI_DECLARE_OTHER(name, parameters, arguments) extern "C" int MPI_##name parameters;
namespace classic {
using Count = int;
using Displacement = int;
JALI_MPI_COLLECTIVES(JALI_DECLARE)
JALI_MPI_SENDS(JALI_DECLARE_SEND)
JALI_MPI_BEGUN_SENDS(JALI_DECLARE_BEGUN)
JALI_MPI_PREPARED_SENDS(JALI_DECLARE_BEGUN)
JALI_MPI_MESSAGES(JALI_DECLARE_OTHER)
} // namespace classic
JALI_MPI_COMPLETIONS(JALI_DECLARE_OTHER)
JALI_MPI_FRAME(JALI_DECLARE_OTHER)
using namespace classic;

namespace {

struct Translation {
    bool of_open_mpi = false, of_mpich = false;
    // MPICH's handles are the same in both languages.
    H (*type)(int) = [](int handle) { return H{static_cast<std::uint32_t>(handle)}; };
    H (*op)(int) = type;
    H (*comm)(int) = type;
    H (*request)(int) = type;
    int (*request_back)(H) = [](H handle) { return static_cast<int>(handle); };
    int (*comm_back)(H) = request_back;
    H (*message)(int) = type;
    int (*message_back)(H) = request_back;
    int (*status_back)(const void*, int*) = [](const void* status, int* given) {
        std::memcpy(given, status, mpi().status_bytes);
        return 0;
    };
    std::vector<const void*> in_place, bottom, ignored; // addresses, as compilers name the variables

    Translation() {
        of_mpich = MpiAbi::find("").name == "MPICH";
        if (of_mpich)
            for (const char* name : {"MPI_F08_STATUS_IGNORE", "MPI_F08_STATUSES_IGNORE"})
                if (void* const* address = static_cast<void* const*>(dlsym(RTLD_DEFAULT, name)))
                    ignored.push_back(*address);
        of_open_mpi = MpiAbi::find("").name == "Open MPI";
        if (!of_open_mpi) return;
        find(type, "PMPI_Type_f2c");
        find(op, "PMPI_Op_f2c");
        find(comm, "PMPI_Comm_f2c");
        find(request, "PMPI_Request_f2c");
        find(request_back, "PMPI_Request_c2f");
        find(comm_back, "PMPI_Comm_c2f");
        find(message, "PMPI_Message_f2c");
        find(message_back, "PMPI_Message_c2f");
        find(status_back, "PMPI_Status_c2f");
        variables(in_place, "mpi_fortran_in_place", "MPI_FORTRAN_IN_PLACE");
        variables(bottom, "mpi_fortran_bottom", "MPI_FORTRAN_BOTTOM");
        variables(ignored, "mpi_fortran_status_ignore", "MPI_FORTRAN_STATUS_IGNORE");
        variables(ignored, "mpi_fortran_statuses_ignore", "MPI_FORTRAN_STATUSES_IGNORE");
    }

    static bool is_among(const std::vector<const void*>& addresses, const void* address) {
        for (const void* each : addresses)
            if (each == address) return true;
        return false;
    }

  private:
    template <class Function>
    static void find(Function*& function, const char* name) {
        void* address = mpi_function(name);
        std::memcpy(&function, &address, sizeof function);
    }
    static void variables(std::vector<const void*>& addresses, const std::string& lower,
                          const std::string& upper) {
        for (const std::string& name : {lower, lower + "_", lower + "__", upper})
            if (const void* address = dlsym(RTLD_DEFAULT, name.c_str())) addresses.push_back(address);
    }
};

const Translation& translation() {
    static const Translation made;
    return made;
}

// Kinds of arguments: Fortran's form, C's form, and the conversion of results.
struct Choice {
    void* given;
    void* value() const {
        if (Translation::is_among(translation().in_place, given)) return mpi().in_place;
        return Translation::is_among(translation().bottom, given) ? nullptr : given;
    }
    void finish() const {}
};
struct Number {
    void* given;
    int value() const { return *static_cast<const int*>(given); }
    void finish() const {}
};
struct Numbers {
    void* given;
    int* value() const { return static_cast<int*>(given); }
    void finish() const {}
};
struct Type : Number {
    H value() const { return translation().type(Number::value()); }
};
struct Op : Number {
    H value() const { return translation().op(Number::value()); }
};
struct Comm : Number {
    H value() const { return translation().comm(Number::value()); }
};
struct Status {
    void* given;
    std::array<std::byte, 128> status{};
    bool wanted() const { return !Translation::is_among(translation().ignored, given); }
    void* value() { return wanted() ? status.data() : mpi().status_ignore; }
    void finish() const {
        if (wanted()) translation().status_back(status.data(), static_cast<int*>(given));
    }
};
struct NewRequest {
    void* given;
    H handle = mpi().request_null;
    void* value() { return &handle; }
    void finish() const { *static_cast<int*>(given) = translation().request_back(handle); }
};
struct OldRequest {
    void* given;
    H handle = translation().request(*static_cast<const int*>(given));
    void* value() { return &handle; }
    void finish() const { *static_cast<int*>(given) = translation().request_back(handle); }
};
struct OldMessage {
    void* given;
    H handle = translation().message(*static_cast<const int*>(given));
    void* value() { return &handle; }
    void finish() const { *static_cast<int*>(given) = translation().message_back(handle); }
};
struct OldComm {
    void* given;
    H handle = translation().comm(*static_cast<const int*>(given));
    void* value() { return &handle; }
    void finish() const { *static_cast<int*>(given) = translation().comm_back(handle); }
};

// Lists of requests and statuses, whose length is another argument.
struct Requests {
    Requests(int count, void* given)
        : given(static_cast<int*>(given)), count(count),
          handles(mpi().handle_bytes * static_cast<std::size_t>(count) + sizeof(H)) {
        for (int k = 0; k < count; ++k)
            mpi().put_handle(handles.data(), k, translation().request(this->given[k]));
    }
    void* value() { return handles.data(); }
    void finish() const {
        for (int k = 0; k < count; ++k)
            given[k] = translation().request_back(mpi().handle_at(handles.data(), k));
    }
    int* given;
    int count;
    std::vector<std::byte> handles; // as wide as the ABI's
};
struct Statuses {
    Statuses(int count, void* given)
        : given(static_cast<int*>(given)), wanted(!Translation::is_among(translation().ignored, given)),
          bytes(wanted ? mpi().status_bytes * static_cast<std::size_t>(count) + 16 : 0) {}
    void* value() { return wanted ? bytes.data() : mpi().status_ignore; }
    void finish(int count) const {
        const std::size_t words = mpi().status_bytes / sizeof(int); // of a status in Fortran
        for (int k = 0; wanted && k < count; ++k)
            translation().status_back(bytes.data() + mpi().status_bytes * static_cast<std::size_t>(k),
                                      given + words * static_cast<std::size_t>(k));
    }
    int* given;
    bool wanted;
    std::vector<std::byte> bytes;
};

template <class... Kinds, class Function, std::size_t... I>
int called(Function* function, void* const* given, std::index_sequence<I...>) {
    std::tuple<Kinds...> arguments{Kinds{given[I]}...};
    const int code = function(std::get<I>(arguments).value()...);
    (std::get<I>(arguments).finish(), ...); // after an error, too: requests may be freed
    return code;
}

// The target of passed calls: Fortran's own function of the library.
template <class Function>
Function* library_function(Function*, const std::string& name) {
    void* address = nullptr;
    if (translation().of_open_mpi) address = dlsym(RTLD_DEFAULT, ("p" + name).c_str());
    if (address == nullptr) address = dlsym(RTLD_NEXT, name.c_str());
    if (address == nullptr) address = mpi_function(name.c_str());
    Function* function = nullptr;
    std::memcpy(&function, &address, sizeof function);
    return function;
}

// Calls with buffers, those without, and the latter with mpi_f08 pass jali by.
bool with_buffers() {
    return translation().of_open_mpi;
}
bool without_buffers() {
    return translation().of_open_mpi;
}
bool without_buffers_f08() {
    return translation().of_open_mpi || translation().of_mpich;
}

} // namespace

// Parameters are addresses, and the last is that of the code, which mpi_f08 lets programs leave out.
#define JALI_P1 void* a0
#define JALI_P2 JALI_P1, void* a1
#define JALI_P3 JALI_P2, void* a2
#define JALI_P4 JALI_P3, void* a3
#define JALI_P5 JALI_P4, void* a4
#define JALI_P6 JALI_P5, void* a5
#define JALI_P7 JALI_P6, void* a6
#define JALI_P8 JALI_P7, void* a7
#define JALI_P9 JALI_P8, void* a8
#define JALI_P10 JALI_P9, void* a9
#define JALI_P11 JALI_P10, void* a10
#define JALI_P12 JALI_P11, void* a11
#define JALI_G1 a0
#define JALI_G2 JALI_G1, a1
#define JALI_G3 JALI_G2, a2
#define JALI_G4 JALI_G3, a3
#define JALI_G5 JALI_G4, a4
#define JALI_G6 JALI_G5, a5
#define JALI_G7 JALI_G6, a6
#define JALI_G8 JALI_G7, a7
#define JALI_G9 JALI_G8, a8
#define JALI_G10 JALI_G9, a9
#define JALI_G11 JALI_G10, a10
#define JALI_G12 JALI_G11, a11

#define JALI_FORTRAN_AS(symbol, name, n, when, ...)                                                          \
    JALI_SHOWN void symbol(JALI_P##n, int* code) {                                                           \
        static const auto function = library_function(&symbol, #symbol);                                     \
        if (!(when)) return function(JALI_G##n, code);                                                       \
        void* given[] = {JALI_G##n};                                                                         \
        const int result = called<__VA_ARGS__>(&MPI_##name, given, std::make_index_sequence<n>());           \
        if (code != nullptr) *code = result;                                                                 \
    }
#define JALI_FORTRAN(lower, name, n, ...)                                                                    \
    JALI_FORTRAN_AS(mpi_##lower##_, name, n, with_buffers() && concerns_us(), __VA_ARGS__)                   \
    JALI_FORTRAN_AS(mpi_##lower##_f08_, name, n, with_buffers() && concerns_us(), __VA_ARGS__)
// Begun ones beside those that are done when they return.
#define JALI_FORTRAN_BOTH(lower, name, n, begun, m, ...)                                                     \
    JALI_FORTRAN(lower, name, n, __VA_ARGS__)                                                                \
    JALI_FORTRAN(i##lower, begun, m, __VA_ARGS__, NewRequest)

JALI_FORTRAN_BOTH(bcast, Bcast, 5, Ibcast, 6, Choice, Number, Type, Number, Comm)
JALI_FORTRAN_BOTH(reduce, Reduce, 7, Ireduce, 8, Choice, Choice, Number, Type, Op, Number, Comm)
JALI_FORTRAN_BOTH(allreduce, Allreduce, 6, Iallreduce, 7, Choice, Choice, Number, Type, Op, Comm)
JALI_FORTRAN_BOTH(scan, Scan, 6, Iscan, 7, Choice, Choice, Number, Type, Op, Comm)
JALI_FORTRAN_BOTH(exscan, Exscan, 6, Iexscan, 7, Choice, Choice, Number, Type, Op, Comm)
JALI_FORTRAN_BOTH(reduce_scatter, Reduce_scatter, 6, Ireduce_scatter, 7, Choice, Choice, Numbers, Type, Op,
                  Comm)
JALI_FORTRAN_BOTH(reduce_scatter_block, Reduce_scatter_block, 6, Ireduce_scatter_block, 7, Choice, Choice,
                  Number, Type, Op, Comm)
JALI_FORTRAN_BOTH(allgather, Allgather, 7, Iallgather, 8, Choice, Number, Type, Choice, Number, Type, Comm)
JALI_FORTRAN_BOTH(allgatherv, Allgatherv, 8, Iallgatherv, 9, Choice, Number, Type, Choice, Numbers, Numbers,
                  Type, Comm)
JALI_FORTRAN_BOTH(gather, Gather, 8, Igather, 9, Choice, Number, Type, Choice, Number, Type, Number, Comm)
JALI_FORTRAN_BOTH(gatherv, Gatherv, 9, Igatherv, 10, Choice, Number, Type, Choice, Numbers, Numbers, Type,
                  Number, Comm)
JALI_FORTRAN_BOTH(scatter, Scatter, 8, Iscatter, 9, Choice, Number, Type, Choice, Number, Type, Number, Comm)
JALI_FORTRAN_BOTH(scatterv, Scatterv, 9, Iscatterv, 10, Choice, Numbers, Numbers, Type, Choice, Number, Type,
                  Number, Comm)
JALI_FORTRAN_BOTH(alltoall, Alltoall, 7, Ialltoall, 8, Choice, Number, Type, Choice, Number, Type, Comm)
JALI_FORTRAN_BOTH(alltoallv, Alltoallv, 9, Ialltoallv, 10, Choice, Numbers, Numbers, Type, Choice, Numbers,
                  Numbers, Type, Comm)
JALI_FORTRAN_BOTH(neighbor_allgather, Neighbor_allgather, 7, Ineighbor_allgather, 8, Choice, Number, Type,
                  Choice, Number, Type, Comm)
JALI_FORTRAN_BOTH(neighbor_allgatherv, Neighbor_allgatherv, 8, Ineighbor_allgatherv, 9, Choice, Number, Type,
                  Choice, Numbers, Numbers, Type, Comm)
JALI_FORTRAN_BOTH(neighbor_alltoall, Neighbor_alltoall, 7, Ineighbor_alltoall, 8, Choice, Number, Type,
                  Choice, Number, Type, Comm)
JALI_FORTRAN_BOTH(neighbor_alltoallv, Neighbor_alltoallv, 9, Ineighbor_alltoallv, 10, Choice, Numbers,
                  Numbers, Type, Choice, Numbers, Numbers, Type, Comm)

JALI_FORTRAN(send, Send, 6, Choice, Number, Type, Number, Number, Comm)
JALI_FORTRAN(ssend, Ssend, 6, Choice, Number, Type, Number, Number, Comm)
JALI_FORTRAN(bsend, Bsend, 6, Choice, Number, Type, Number, Number, Comm)
JALI_FORTRAN(rsend, Rsend, 6, Choice, Number, Type, Number, Number, Comm)
JALI_FORTRAN(isend, Isend, 7, Choice, Number, Type, Number, Number, Comm, NewRequest)
JALI_FORTRAN(issend, Issend, 7, Choice, Number, Type, Number, Number, Comm, NewRequest)
JALI_FORTRAN(ibsend, Ibsend, 7, Choice, Number, Type, Number, Number, Comm, NewRequest)
JALI_FORTRAN(irsend, Irsend, 7, Choice, Number, Type, Number, Number, Comm, NewRequest)
JALI_FORTRAN(irecv, Irecv, 7, Choice, Number, Type, Number, Number, Comm, NewRequest)
JALI_FORTRAN(send_init, Send_init, 7, Choice, Number, Type, Number, Number, Comm, NewRequest)
JALI_FORTRAN(ssend_init, Ssend_init, 7, Choice, Number, Type, Number, Number, Comm, NewRequest)
JALI_FORTRAN(bsend_init, Bsend_init, 7, Choice, Number, Type, Number, Number, Comm, NewRequest)
JALI_FORTRAN(rsend_init, Rsend_init, 7, Choice, Number, Type, Number, Number, Comm, NewRequest)
JALI_FORTRAN(recv_init, Recv_init, 7, Choice, Number, Type, Number, Number, Comm, NewRequest)
JALI_FORTRAN(recv, Recv, 7, Choice, Number, Type, Number, Number, Comm, Status)
JALI_FORTRAN(sendrecv, Sendrecv, 12, Choice, Number, Type, Number, Number, Choice, Number, Type, Number,
             Number, Comm, Status)
JALI_FORTRAN(sendrecv_replace, Sendrecv_replace, 9, Choice, Number, Type, Number, Number, Number, Number,
             Comm, Status)

JALI_FORTRAN(mrecv, Mrecv, 5, Choice, Number, Type, OldMessage, Status)
JALI_FORTRAN(imrecv, Imrecv, 5, Choice, Number, Type, OldMessage, NewRequest)
JALI_FORTRAN(pack, Pack, 7, Choice, Number, Type, Choice, Number, Numbers, Comm)
JALI_FORTRAN(unpack, Unpack, 7, Choice, Number, Numbers, Choice, Number, Type, Comm)
JALI_FORTRAN(reduce_local, Reduce_local, 5, Choice, Choice, Number, Type, Op)

// Once they concern requests that are kept.
#define JALI_FORTRAN_REQUEST(lower, name, n, ...)                                                            \
    JALI_FORTRAN_AS(mpi_##lower##_, name, n, without_buffers() && any_kept(), __VA_ARGS__)                   \
    JALI_FORTRAN_AS(mpi_##lower##_f08_, name, n, without_buffers_f08() && any_kept(), __VA_ARGS__)
JALI_FORTRAN_REQUEST(wait, Wait, 2, OldRequest, Status)
JALI_FORTRAN_REQUEST(request_free, Request_free, 1, OldRequest)
JALI_FORTRAN_REQUEST(start, Start, 1, OldRequest)
// In any case: jali has something of communicators.
#define JALI_FORTRAN_COMM(lower, name)                                                                       \
    JALI_FORTRAN_AS(mpi_##lower##_, name, 1, without_buffers(), OldComm)                                     \
    JALI_FORTRAN_AS(mpi_##lower##_f08_, name, 1, without_buffers_f08(), OldComm)
JALI_FORTRAN_COMM(comm_free, Comm_free)
JALI_FORTRAN_COMM(comm_disconnect, Comm_disconnect)

// Those with lists, and flags, which are true in Fortran where they are 1 (gfortran, Intel's: not 0).
#define JALI_FORTRAN_LIST(lower, n, ...)                                                                     \
    JALI_FORTRAN_LIST_AS(mpi_##lower##_, n, without_buffers(), __VA_ARGS__)                                  \
    JALI_FORTRAN_LIST_AS(mpi_##lower##_f08_, n, without_buffers_f08(), __VA_ARGS__)
#define JALI_FORTRAN_LIST_AS(symbol, n, passes_by, ...)                                                      \
    JALI_SHOWN void symbol(JALI_P##n, int* code) {                                                           \
        static const auto function = library_function(&symbol, #symbol);                                     \
        if (!(passes_by) || !any_kept()) return function(JALI_G##n, code);                                   \
        const int result = (__VA_ARGS__)(JALI_G##n);                                                         \
        if (code != nullptr) *code = result;                                                                 \
    }

namespace {
int number(void* given) {
    return *static_cast<const int*>(given);
}
// Indices begin with 1 in Fortran.
void put_index(void* given, int index) {
    *static_cast<int*>(given) = index == mpi().undefined ? index : index + 1;
}

int wait_all(void* count, void* requests, void* statuses) {
    Requests list(number(count), requests);
    Statuses room(number(count), statuses);
    const int code = MPI_Waitall(number(count), list.value(), room.value());
    list.finish();
    room.finish(number(count));
    return code;
}
int test_all(void* count, void* requests, void* flag, void* statuses) {
    Requests list(number(count), requests);
    Statuses room(number(count), statuses);
    const int code = MPI_Testall(number(count), list.value(), static_cast<int*>(flag), room.value());
    list.finish();
    if (number(flag)) room.finish(number(count));
    return code;
}
int test_one(void* request, void* flag, void* status) {
    Requests list(1, request);
    Statuses room(1, status);
    const int code = MPI_Test(list.value(), static_cast<int*>(flag), room.value());
    list.finish();
    if (number(flag)) room.finish(1);
    return code;
}
int wait_any(void* count, void* requests, void* index, void* status) {
    Requests list(number(count), requests);
    Statuses room(1, status);
    int found = 0;
    const int code = MPI_Waitany(number(count), list.value(), &found, room.value());
    list.finish();
    room.finish(1);
    put_index(index, found);
    return code;
}
int test_any(void* count, void* requests, void* index, void* flag, void* status) {
    Requests list(number(count), requests);
    Statuses room(1, status);
    int found = 0;
    const int code = MPI_Testany(number(count), list.value(), &found, static_cast<int*>(flag), room.value());
    list.finish();
    if (number(flag)) room.finish(1);
    put_index(index, found);
    return code;
}
template <class Some>
int some(Some* function, void* count, void* requests, void* done, void* indices, void* statuses) {
    Requests list(number(count), requests);
    Statuses room(number(count), statuses);
    const int code = function(number(count), list.value(), static_cast<int*>(done),
                              static_cast<int*>(indices), room.value());
    list.finish();
    if (number(done) == mpi().undefined) return code;
    room.finish(number(done));
    for (int k = 0; k < number(done); ++k) ++static_cast<int*>(indices)[k];
    return code;
}
int wait_some(void* count, void* requests, void* done, void* indices, void* statuses) {
    return some(&MPI_Waitsome, count, requests, done, indices, statuses);
}
int test_some(void* count, void* requests, void* done, void* indices, void* statuses) {
    return some(&MPI_Testsome, count, requests, done, indices, statuses);
}
int start_all(void* count, void* requests) {
    Requests list(number(count), requests);
    const int code = MPI_Startall(number(count), list.value());
    list.finish();
    return code;
}
int request_status(void* request, void* flag, void* status) {
    Statuses room(1, status);
    const int code =
        MPI_Request_get_status(translation().request(number(request)), static_cast<int*>(flag), room.value());
    if (number(flag)) room.finish(1);
    return code;
}
} // namespace

JALI_FORTRAN_LIST(waitall, 3, wait_all)
JALI_FORTRAN_LIST(testall, 4, test_all)
JALI_FORTRAN_LIST(test, 3, test_one)
JALI_FORTRAN_LIST(waitany, 4, wait_any)
JALI_FORTRAN_LIST(testany, 5, test_any)
JALI_FORTRAN_LIST(waitsome, 5, wait_some)
JALI_FORTRAN_LIST(testsome, 5, test_some)
JALI_FORTRAN_LIST(startall, 2, start_all)
JALI_FORTRAN_LIST(request_get_status, 3, request_status)

// With a type for every part.
namespace {
int all_to_all_of_types(void* send, void* send_counts, void* send_displacements, void* send_types,
                        void* receive, void* counts, void* displacements, void* types, void* comm) {
    const H group = translation().comm(number(comm));
    int between = 0, ranks = 0;
    mpi().Comm_test_inter(group, &between);
    between ? mpi().Comm_remote_size(group, &ranks) : mpi().Comm_size(group, &ranks);
    const void* from = Choice{send}.value();
    std::vector<H> sent, received;
    for (int k = 0; k < ranks; ++k) {
        received.push_back(translation().type(static_cast<const int*>(types)[k]));
        sent.push_back(from == mpi().in_place ? received.back()
                                              : translation().type(static_cast<const int*>(send_types)[k]));
    }
    return MPI_Alltoallw(from, static_cast<const int*>(send_counts),
                         static_cast<const int*>(send_displacements), sent.data(), Choice{receive}.value(),
                         static_cast<const int*>(counts), static_cast<const int*>(displacements),
                         received.data(), group);
}
} // namespace
#define JALI_FORTRAN_TYPES(symbol)                                                                           \
    JALI_SHOWN void symbol(JALI_P9, int* code) {                                                             \
        static const auto function = library_function(&symbol, #symbol);                                     \
        if (!with_buffers() || !concerns_us()) return function(JALI_G9, code);                               \
        const int result = all_to_all_of_types(JALI_G9);                                                     \
        if (code != nullptr) *code = result;                                                                 \
    }
JALI_FORTRAN_TYPES(mpi_alltoallw_)
JALI_FORTRAN_TYPES(mpi_alltoallw_f08_)

// The begin and the end.
#define JALI_FORTRAN_FRAME(symbol_of_init, symbol_of_threads, symbol_of_end, passes_by)                      \
    JALI_SHOWN void symbol_of_init(int* code) {                                                              \
        static const auto function = library_function(&symbol_of_init, #symbol_of_init);                     \
        if (!passes_by()) return function(code);                                                             \
        const int result = MPI_Init(nullptr, nullptr);                                                       \
        if (code != nullptr) *code = result;                                                                 \
    }                                                                                                        \
    JALI_SHOWN void symbol_of_threads(int* wanted, int* given, int* code) {                                  \
        static const auto function = library_function(&symbol_of_threads, #symbol_of_threads);               \
        if (!passes_by()) return function(wanted, given, code);                                              \
        const int result = MPI_Init_thread(nullptr, nullptr, *wanted, given);                                \
        if (code != nullptr) *code = result;                                                                 \
    }                                                                                                        \
    JALI_SHOWN void symbol_of_end(int* code) {                                                               \
        static const auto function = library_function(&symbol_of_end, #symbol_of_end);                       \
        if (!passes_by()) return function(code);                                                             \
        const int result = MPI_Finalize();                                                                   \
        if (code != nullptr) *code = result;                                                                 \
    }
JALI_FORTRAN_FRAME(mpi_init_, mpi_init_thread_, mpi_finalize_, without_buffers)
JALI_FORTRAN_FRAME(mpi_init_f08_, mpi_init_thread_f08_, mpi_finalize_f08_, without_buffers_f08)

} // namespace jali::interposer
