// The MPI functions that libjali_mpi.so intercepts: one entry each, with the parameters as the three ABIs
// pass them (messaging/mpi_abi.hpp).
//
// Functions with counts exist twice, with int and, as MPI_..._c, with 64 bits: Count and Displacement stand
// for either. Handles are as wide as a register; output handles and arrays of handles have the ABI's own
// width and are passed as void*. Statuses, too, are passed as addresses only.
#pragma once

#include "messaging/mpi_abi.hpp"

#include <cstdint>
#include <type_traits>

// clang-format off
#define JALI_OPEN(...) __VA_ARGS__
// Of what programs see in libjali_mpi.so.
#define JALI_SHOWN extern "C" __attribute__((visibility("default")))

// entry(blocking, nonblocking, initialising, parameters, arguments)
#define JALI_MPI_COLLECTIVES(entry) \
    entry(Bcast, Ibcast, Bcast_init, (void* buffer, Count count, H type, int root, H comm), (buffer, count, type, root, comm)) \
    entry(Reduce, Ireduce, Reduce_init, (const void* send, void* receive, Count count, H type, H op, int root, H comm), (send, receive, count, type, op, root, comm)) \
    entry(Allreduce, Iallreduce, Allreduce_init, (const void* send, void* receive, Count count, H type, H op, H comm), (send, receive, count, type, op, comm)) \
    entry(Scan, Iscan, Scan_init, (const void* send, void* receive, Count count, H type, H op, H comm), (send, receive, count, type, op, comm)) \
    entry(Exscan, Iexscan, Exscan_init, (const void* send, void* receive, Count count, H type, H op, H comm), (send, receive, count, type, op, comm)) \
    entry(Reduce_scatter, Ireduce_scatter, Reduce_scatter_init, (const void* send, void* receive, const Count* counts, H type, H op, H comm), (send, receive, counts, type, op, comm)) \
    entry(Reduce_scatter_block, Ireduce_scatter_block, Reduce_scatter_block_init, (const void* send, void* receive, Count count, H type, H op, H comm), (send, receive, count, type, op, comm)) \
    entry(Allgather, Iallgather, Allgather_init, (const void* send, Count send_count, H send_type, void* receive, Count count, H type, H comm), (send, send_count, send_type, receive, count, type, comm)) \
    entry(Allgatherv, Iallgatherv, Allgatherv_init, (const void* send, Count send_count, H send_type, void* receive, const Count* counts, const Displacement* displacements, H type, H comm), (send, send_count, send_type, receive, counts, displacements, type, comm)) \
    entry(Gather, Igather, Gather_init, (const void* send, Count send_count, H send_type, void* receive, Count count, H type, int root, H comm), (send, send_count, send_type, receive, count, type, root, comm)) \
    entry(Gatherv, Igatherv, Gatherv_init, (const void* send, Count send_count, H send_type, void* receive, const Count* counts, const Displacement* displacements, H type, int root, H comm), (send, send_count, send_type, receive, counts, displacements, type, root, comm)) \
    entry(Scatter, Iscatter, Scatter_init, (const void* send, Count send_count, H send_type, void* receive, Count count, H type, int root, H comm), (send, send_count, send_type, receive, count, type, root, comm)) \
    entry(Scatterv, Iscatterv, Scatterv_init, (const void* send, const Count* send_counts, const Displacement* send_displacements, H send_type, void* receive, Count count, H type, int root, H comm), (send, send_counts, send_displacements, send_type, receive, count, type, root, comm)) \
    entry(Alltoall, Ialltoall, Alltoall_init, (const void* send, Count send_count, H send_type, void* receive, Count count, H type, H comm), (send, send_count, send_type, receive, count, type, comm)) \
    entry(Alltoallv, Ialltoallv, Alltoallv_init, (const void* send, const Count* send_counts, const Displacement* send_displacements, H send_type, void* receive, const Count* counts, const Displacement* displacements, H type, H comm), (send, send_counts, send_displacements, send_type, receive, counts, displacements, type, comm)) \
    entry(Alltoallw, Ialltoallw, Alltoallw_init, (const void* send, const Count* send_counts, const Displacement* send_displacements, const void* send_types, void* receive, const Count* counts, const Displacement* displacements, const void* types, H comm), (send, send_counts, send_displacements, send_types, receive, counts, displacements, types, comm)) \
    entry(Neighbor_allgather, Ineighbor_allgather, Neighbor_allgather_init, (const void* send, Count send_count, H send_type, void* receive, Count count, H type, H comm), (send, send_count, send_type, receive, count, type, comm)) \
    entry(Neighbor_allgatherv, Ineighbor_allgatherv, Neighbor_allgatherv_init, (const void* send, Count send_count, H send_type, void* receive, const Count* counts, const Displacement* displacements, H type, H comm), (send, send_count, send_type, receive, counts, displacements, type, comm)) \
    entry(Neighbor_alltoall, Ineighbor_alltoall, Neighbor_alltoall_init, (const void* send, Count send_count, H send_type, void* receive, Count count, H type, H comm), (send, send_count, send_type, receive, count, type, comm)) \
    entry(Neighbor_alltoallv, Ineighbor_alltoallv, Neighbor_alltoallv_init, (const void* send, const Count* send_counts, const Displacement* send_displacements, H send_type, void* receive, const Count* counts, const Displacement* displacements, H type, H comm), (send, send_counts, send_displacements, send_type, receive, counts, displacements, type, comm)) \
    entry(Neighbor_alltoallw, Ineighbor_alltoallw, Neighbor_alltoallw_init, (const void* send, const Count* send_counts, const std::intptr_t* send_displacements, const void* send_types, void* receive, const Count* counts, const std::intptr_t* displacements, const void* types, H comm), (send, send_counts, send_displacements, send_types, receive, counts, displacements, types, comm))

// entry(name, parameters, arguments): messages that are sent when the call returns, or begun, or prepared.
#define JALI_MPI_SENDS(entry) \
    entry(Send) entry(Bsend) entry(Ssend) entry(Rsend)
#define JALI_MPI_BEGUN_SENDS(entry) \
    entry(Isend) entry(Ibsend) entry(Issend) entry(Irsend)
#define JALI_MPI_PREPARED_SENDS(entry) \
    entry(Send_init) entry(Bsend_init) entry(Ssend_init) entry(Rsend_init)

#define JALI_MPI_MESSAGES(entry) \
    entry(Recv, (void* buffer, Count count, H type, int peer, int tag, H comm, void* status), (buffer, count, type, peer, tag, comm, status)) \
    entry(Irecv, (void* buffer, Count count, H type, int peer, int tag, H comm, void* request), (buffer, count, type, peer, tag, comm, request)) \
    entry(Recv_init, (void* buffer, Count count, H type, int peer, int tag, H comm, void* request), (buffer, count, type, peer, tag, comm, request)) \
    entry(Mrecv, (void* buffer, Count count, H type, void* message, void* status), (buffer, count, type, message, status)) \
    entry(Imrecv, (void* buffer, Count count, H type, void* message, void* request), (buffer, count, type, message, request)) \
    entry(Sendrecv, (const void* send, Count send_count, H send_type, int to, int send_tag, void* receive, Count count, H type, int from, int tag, H comm, void* status), (send, send_count, send_type, to, send_tag, receive, count, type, from, tag, comm, status)) \
    entry(Isendrecv, (const void* send, Count send_count, H send_type, int to, int send_tag, void* receive, Count count, H type, int from, int tag, H comm, void* request), (send, send_count, send_type, to, send_tag, receive, count, type, from, tag, comm, request)) \
    entry(Sendrecv_replace, (void* buffer, Count count, H type, int to, int send_tag, int from, int tag, H comm, void* status), (buffer, count, type, to, send_tag, from, tag, comm, status)) \
    entry(Isendrecv_replace, (void* buffer, Count count, H type, int to, int send_tag, int from, int tag, H comm, void* request), (buffer, count, type, to, send_tag, from, tag, comm, request)) \
    entry(Pack, (const void* in, Count count, H type, void* out, Displacement size, Displacement* position, H comm), (in, count, type, out, size, position, comm)) \
    entry(Unpack, (const void* in, Displacement size, Displacement* position, void* out, Count count, H type, H comm), (in, size, position, out, count, type, comm)) \
    entry(Reduce_local, (const void* in, void* inout, Count count, H type, H op), (in, inout, count, type, op))

// What has no counts: entry(name, parameters, arguments)
#define JALI_MPI_COMPLETIONS(entry) \
    entry(Wait, (void* request, void* status), (request, status)) \
    entry(Waitall, (int count, void* requests, void* statuses), (count, requests, statuses)) \
    entry(Waitany, (int count, void* requests, int* index, void* status), (count, requests, index, status)) \
    entry(Waitsome, (int count, void* requests, int* done, int* indices, void* statuses), (count, requests, done, indices, statuses)) \
    entry(Test, (void* request, int* flag, void* status), (request, flag, status)) \
    entry(Testall, (int count, void* requests, int* flag, void* statuses), (count, requests, flag, statuses)) \
    entry(Testany, (int count, void* requests, int* index, int* flag, void* status), (count, requests, index, flag, status)) \
    entry(Testsome, (int count, void* requests, int* done, int* indices, void* statuses), (count, requests, done, indices, statuses)) \
    entry(Request_get_status, (H request, int* flag, void* status), (request, flag, status)) \
    entry(Request_get_status_all, (int count, const void* requests, int* flag, void* statuses), (count, requests, flag, statuses)) \
    entry(Request_get_status_any, (int count, const void* requests, int* index, int* flag, void* status), (count, requests, index, flag, status)) \
    entry(Request_get_status_some, (int count, const void* requests, int* done, int* indices, void* statuses), (count, requests, done, indices, statuses)) \
    entry(Request_free, (void* request), (request)) \
    entry(Start, (void* request), (request)) \
    entry(Startall, (int count, void* requests), (count, requests))

#define JALI_MPI_FRAME(entry) \
    entry(Init, (int* count, char*** words), (count, words)) \
    entry(Init_thread, (int* count, char*** words, int wanted, int* given), (count, words, wanted, given)) \
    entry(Finalize, (), ()) \
    entry(Type_set_name, (H type, const char* name), (type, name)) \
    entry(Comm_free, (void* comm), (comm)) \
    entry(Comm_disconnect, (void* comm), (comm))

// Functions for the interposer's own use: entry(name, parameters)
#define JALI_MPI_QUESTIONS(entry) \
    entry(Initialized, (int* flag)) \
    entry(Finalized, (int* flag)) \
    entry(Comm_rank, (H comm, int* rank)) \
    entry(Comm_size, (H comm, int* size)) \
    entry(Comm_remote_size, (H comm, int* size)) \
    entry(Comm_test_inter, (H comm, int* flag)) \
    entry(Comm_group, (H comm, void* group)) \
    entry(Group_free, (void* group)) \
    entry(Group_translate_ranks, (H group, int count, const int* ranks, H other, int* others)) \
    entry(Comm_create_keyval, (void* copy, void* drop, int* key, void* state)) \
    entry(Comm_free_keyval, (int* key)) \
    entry(Comm_set_attr, (H comm, int key, void* value)) \
    entry(Comm_get_attr, (H comm, int key, void* value, int* flag)) \
    entry(Comm_delete_attr, (H comm, int key)) \
    entry(Comm_call_errhandler, (H comm, int code)) \
    entry(Topo_test, (H comm, int* kind)) \
    entry(Cart_get, (H comm, int most, int* extents, int* periods, int* position)) \
    entry(Cartdim_get, (H comm, int* dimensions)) \
    entry(Graph_neighbors_count, (H comm, int rank, int* count)) \
    entry(Dist_graph_neighbors_count, (H comm, int* in, int* out, int* weighted)) \
    entry(Type_size_x, (H type, std::int64_t* size)) \
    entry(Type_get_extent, (H type, std::intptr_t* begin, std::intptr_t* extent)) \
    entry(Type_get_true_extent, (H type, std::intptr_t* begin, std::intptr_t* extent)) \
    entry(Type_get_envelope, (H type, int* integers, int* addresses, int* types, int* combiner)) \
    entry(Type_get_envelope_c, (H type, std::int64_t* integers, std::int64_t* addresses, std::int64_t* larges, std::int64_t* types, int* combiner)) \
    entry(Type_get_name, (H type, char* name, int* length)) \
    entry(Type_create_keyval, (void* copy, void* drop, int* key, void* state)) \
    entry(Type_set_attr, (H type, int key, void* value)) \
    entry(Type_get_attr, (H type, int key, void* value, int* flag)) \
    entry(Pack_size, (int count, H type, H comm, int* size)) \
    entry(Get_elements_x, (const void* status, H type, std::int64_t* count)) \
    entry(Test_cancelled, (const void* status, int* flag)) \
    entry(Op_commutative, (H op, int* flag)) \
    entry(Cancel, (void* request)) \
    entry(Abort, (H comm, int code))
// clang-format on

namespace jali::interposer {

using H = MpiHandle;

// Of the library that is loaded, by their PMPI_ names; null where it has no such function.
template <class Number, class Offset>
struct CountedFunctions {
    using Count = Number;
    using Displacement = Offset;
#define JALI_COLLECTIVE(blocking, nonblocking, initialising, parameters, arguments)                          \
    int(*blocking) parameters;                                                                               \
    int (*nonblocking)(JALI_OPEN parameters, void* request);                                                 \
    int (*initialising)(JALI_OPEN parameters, H info, void* request);
#define JALI_SEND(name) int (*name)(const void* buffer, Count count, H type, int to, int tag, H comm);
#define JALI_BEGUN_SEND(name)                                                                                \
    int (*name)(const void* buffer, Count count, H type, int to, int tag, H comm, void* request);
#define JALI_OTHER(name, parameters, arguments) int(*name) parameters;
    JALI_MPI_COLLECTIVES(JALI_COLLECTIVE)
    JALI_MPI_SENDS(JALI_SEND)
    JALI_MPI_BEGUN_SENDS(JALI_BEGUN_SEND)
    JALI_MPI_PREPARED_SENDS(JALI_BEGUN_SEND)
    JALI_MPI_MESSAGES(JALI_OTHER)
#undef JALI_COLLECTIVE
#undef JALI_SEND
#undef JALI_BEGUN_SEND
#undef JALI_OTHER
};
using Classic = CountedFunctions<int, int>;
using Large = CountedFunctions<std::int64_t, std::intptr_t>;

struct MpiFunctions : Classic {
    Large large;
#define JALI_OTHER(name, parameters, arguments) int(*name) parameters;
#define JALI_QUESTION(name, parameters) int(*name) parameters;
    JALI_MPI_COMPLETIONS(JALI_OTHER)
    JALI_MPI_FRAME(JALI_OTHER)
    JALI_MPI_QUESTIONS(JALI_QUESTION)
#undef JALI_OTHER
#undef JALI_QUESTION

    // Constants that differ between the ABIs.
    H world, self, comm_null, request_null, byte, band;
    H operations[10]; // sum, prod, min, max, land, lor, lxor, band, bor, bxor, in this order
    void* in_place;
    void* status_ignore; // also of arrays
    int root, proc_null, undefined, keyval_invalid, error_other, error_in_status, error_pending;
    int cartesian, graph, distributed_graph; // topologies
    std::size_t handle_bytes, status_bytes;  // in arrays
    std::size_t error_in_a_status;           // its offset

    H handle(H given) const { return handle_bytes == 4 ? static_cast<std::uint32_t>(given) : given; }
    H handle_at(const void* array, std::int64_t k) const;
    void put_handle(void* array, std::int64_t k, H handle) const;
};

// Loaded at the first call. Ends the program, with the reason, if there is no MPI library.
const MpiFunctions& mpi();
// Those of one width.
template <class F>
const F& functions() {
    if constexpr (std::is_same_v<F, Large>)
        return mpi().large;
    else
        return mpi();
}

// Another function of the library; ends the program, with the reason, if it has none of this name.
void* mpi_function(const char* name);
void* find_mpi_function(const char* name); // null where it has none

} // namespace jali::interposer
