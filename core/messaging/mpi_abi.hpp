// The functions and constants of the loaded MPI library, without mpi.h.
//
// MPI libraries come in three ABIs, which differ in the form of handles and the values of constants: MPICH
// (32-bit integers; also Intel MPI, MVAPICH, Cray), Open MPI (addresses of objects) and the standard ABI of
// MPI 5 (small integers in pointers). Here every handle is an intptr_t: a 32-bit handle is its low half,
// which the calling conventions of 64-bit little-endian machines allow. Functions are looked up by their
// PMPI_ names, so that profilers do not see jali's own traffic. The layout of statuses differs between ABIs;
// they are only passed back to MPI.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace jali {

using MpiHandle = std::intptr_t;

// Large enough for a status of any ABI.
struct alignas(16) MpiStatus {
    std::byte bytes[128];
};

// Names of MPI libraries whose versions are known.
std::span<const std::string_view> mpi_libraries();

struct MpiAbi {
    // Finds the library: through the loaded object `hint` if it is given, else among everything that is
    // loaded. Throws TransportError if there is none, it lacks a function, or MPI is not running.
    static const MpiAbi& find(const std::string& hint);
    static const MpiAbi* found(); // null: find() was not called yet

    // Throws TransportError with the library's text unless `code` is success. `doing` names the call.
    void check(int code, const char* doing) const;
    void check_running() const; // throws TransportError unless MPI is initialised and not finalised
    bool finalized() const;
    bool takes_threads() const;  // it was started for several threads at once (MPI_THREAD_MULTIPLE)
    bool of_this_thread() const; // which has started MPI

    std::string name; // "MPICH", "Open MPI" or "MPI-5 standard ABI"
    std::string path; // of the library
    // Its name in rules of choices ("mpich", one of mpi_libraries()) and its version ("4.2.3"); empty for a
    // library that reports neither name.
    std::string library, version;

    MpiHandle byte_type, errors_return;
    MpiHandle types[12];      // int8 to int64, uint8 to uint64, float, double and the complex ones of both
    MpiHandle operations[10]; // sum, prod, min, max, land, lor, lxor, band, bor, bxor, in this order
    void* in_place;
    int any_source, undefined, tag_ub; // tag_ub: the attribute that holds the largest tag
    int thread_multiple;

    int (*Initialized)(int*);
    int (*Finalized)(int*);
    int (*Query_thread)(int*);
    int (*Is_thread_main)(int*);
    int (*Error_string)(int, char*, int*);
    int (*Comm_rank)(MpiHandle, int*);
    int (*Comm_size)(MpiHandle, int*);
    int (*Comm_dup)(MpiHandle, MpiHandle*);
    int (*Comm_split)(MpiHandle, int, int, MpiHandle*);
    int (*Comm_free)(MpiHandle*);
    int (*Comm_get_attr)(MpiHandle, int, void*, int*);
    int (*Comm_set_errhandler)(MpiHandle, MpiHandle);
    int (*Isend)(const void*, int, MpiHandle, int, int, MpiHandle, MpiHandle*);
    int (*Irecv)(void*, int, MpiHandle, int, int, MpiHandle, MpiHandle*);
    int (*Test)(MpiHandle*, int*, MpiStatus*);
    int (*Cancel)(MpiHandle*);
    int (*Request_free)(MpiHandle*);
    int (*Get_count)(const MpiStatus*, MpiHandle, int*);
    int (*Ibcast)(void*, int, MpiHandle, int, MpiHandle, MpiHandle*);
    int (*Ireduce)(const void*, void*, int, MpiHandle, MpiHandle, int, MpiHandle, MpiHandle*);
    int (*Iallreduce)(const void*, void*, int, MpiHandle, MpiHandle, MpiHandle, MpiHandle*);
    int (*Ireduce_scatter)(const void*, void*, const int*, MpiHandle, MpiHandle, MpiHandle, MpiHandle*);
    int (*Ireduce_scatter_block)(const void*, void*, int, MpiHandle, MpiHandle, MpiHandle, MpiHandle*);
    int (*Iallgather)(const void*, int, MpiHandle, void*, int, MpiHandle, MpiHandle, MpiHandle*);
    int (*Iallgatherv)(const void*, int, MpiHandle, void*, const int*, const int*, MpiHandle, MpiHandle,
                       MpiHandle*);
    int (*Igather)(const void*, int, MpiHandle, void*, int, MpiHandle, int, MpiHandle, MpiHandle*);
    int (*Igatherv)(const void*, int, MpiHandle, void*, const int*, const int*, MpiHandle, int, MpiHandle,
                    MpiHandle*);
    int (*Iscatter)(const void*, int, MpiHandle, void*, int, MpiHandle, int, MpiHandle, MpiHandle*);
    int (*Iscatterv)(const void*, const int*, const int*, MpiHandle, void*, int, MpiHandle, int, MpiHandle,
                     MpiHandle*);
    int (*Ialltoall)(const void*, int, MpiHandle, void*, int, MpiHandle, MpiHandle, MpiHandle*);
    int (*Ialltoallv)(const void*, const int*, const int*, MpiHandle, void*, const int*, const int*,
                      MpiHandle, MpiHandle, MpiHandle*);
};

} // namespace jali
