// MPI's collectives: the memory that each reads and writes on this rank, and the corresponding collective of
// jali.
#include "interposer/call.hpp"

#include <algorithm>
#include <numeric>

namespace jali::interposer {

namespace {

// Ranks of a group, and this rank's role in a call with a root.
struct Group {
    int ranks = 0, rank = -1, others = 0; // others: those whose parts are read or written
    bool between = false;                 // two groups

    explicit Group(H comm) {
        int flag = 0;
        mpi().Comm_test_inter(comm, &flag);
        between = flag != 0;
        mpi().Comm_size(comm, &ranks);
        mpi().Comm_rank(comm, &rank);
        others = ranks;
        if (between) mpi().Comm_remote_size(comm, &others);
    }
    bool is_root(int root) const { return between ? root == mpi().root : root == rank; }
    bool takes_part(int root) const { return !between || root != mpi().proc_null; }
};

// Neighbours of a rank in a communicator's topology.
struct Neighbours {
    int from = 0, to = 0;

    explicit Neighbours(H comm) {
        int kind = 0;
        mpi().Topo_test(comm, &kind);
        if (kind == mpi().cartesian) {
            int dimensions = 0;
            mpi().Cartdim_get(comm, &dimensions);
            from = to = 2 * dimensions;
        } else if (kind == mpi().graph) {
            int rank = 0;
            mpi().Comm_rank(comm, &rank);
            mpi().Graph_neighbors_count(comm, rank, &from);
            to = from;
        } else if (kind == mpi().distributed_graph) {
            int weighted = 0;
            mpi().Dist_graph_neighbors_count(comm, &from, &to, &weighted);
        }
    }
};

// Of any array of counts of a call.
int most_parts(H comm) {
    const Group group(comm);
    const Neighbours neighbours(comm);
    return std::max({group.ranks, group.others, neighbours.from, neighbours.to});
}

std::int64_t extent_of(H type) {
    return layout_of(type)->extent;
}
std::int64_t size_of_type(H type) {
    return layout_of(type)->size;
}

// Adds parts with counts and displacements in elements of one type.
template <class Count, class Displacement, class Add>
void each_part(int parts, const Count* counts, const Displacement* displacements, H type, Add&& add) {
    const std::int64_t extent = extent_of(type);
    for (int k = 0; k < parts; ++k)
        add(std::int64_t{displacements[k]} * extent, std::int64_t{counts[k]}, type);
}
// With types of their own, and displacements in bytes.
template <class Count, class Displacement, class Add>
void each_typed_part(int parts, const Count* counts, const Displacement* displacements, const void* types,
                     Add&& add) {
    for (int k = 0; k < parts; ++k)
        add(std::int64_t{displacements[k]}, std::int64_t{counts[k]}, mpi().handle_at(types, k));
}

template <class Count>
std::vector<std::int64_t> widened(const Count* counts, int parts, std::int64_t unit) {
    std::vector<std::int64_t> all(parts);
    for (int k = 0; k < parts; ++k) all[k] = std::int64_t{counts[k]} * unit;
    return all;
}

// One for each entry of JALI_MPI_COLLECTIVES, in the widths of F.
template <class F>
struct Collectives {
    using Count = typename F::Count;
    using Displacement = typename F::Displacement;

#define JALI_CALL(B, I, P, ...)                                                                              \
    form.call(                                                                                               \
        functions<F>().B, functions<F>().I, functions<F>().P, mpi().B, mpi().I, mpi().P,                     \
        [&] { return most_parts(comm); }, __VA_ARGS__)

    static int Bcast(const Form& form, void* buffer, Count count, H type, int root, H comm) {
        const auto pass = [&](const void* send, void* receive) {
            return JALI_CALL(Bcast, Ibcast, Bcast_init, send != nullptr ? const_cast<void*>(send) : receive,
                             count, type, root, comm);
        };
        if (!concerns_us()) return pass(nullptr, buffer);
        const Group group(comm);
        const bool sends = group.is_root(root);
        return made(
            form, comm, sends ? buffer : nullptr, sends ? nullptr : buffer,
            [&](Described& call) {
                if (!group.takes_part(root)) return;
                if (sends)
                    call.read(0, count, type);
                else
                    call.write(0, count, type);
                if (call.asks)
                    call.plan = CollectiveCallWithHandles{
                        Collective::broadcast, {std::int64_t{count} * size_of_type(type)}, 0, 0, root, true};
            },
            pass);
    }

    static int Reduce(const Form& form, const void* send, void* receive, Count count, H type, H op, int root,
                      H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Group group(comm);
                const bool in_place = send == mpi().in_place, is_root = group.is_root(root);
                if (is_root) call.write(0, count, type, in_place ? Use::both : Use::written);
                if (group.takes_part(root) && !in_place && !(group.between && is_root))
                    call.read(0, count, type);
                if (call.asks)
                    call.plan = CollectiveCallWithHandles{
                        Collective::reduce, {count}, type, op, root, false, in_place};
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Reduce, Ireduce, Reduce_init, s, r, count, type, op, root, comm);
            });
    }

    static int Allreduce(const Form& form, const void* send, void* receive, Count count, H type, H op,
                         H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                accumulate(call, send, count, type);
                if (call.asks)
                    call.plan = CollectiveCallWithHandles{Collective::all_reduce, {count}, type, op, 0,
                                                          send == mpi().in_place};
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Allreduce, Iallreduce, Allreduce_init, s, r, count, type, op, comm);
            });
    }

    static int Scan(const Form& form, const void* send, void* receive, Count count, H type, H op, H comm) {
        return made(
            form, comm, send, receive, [&](Described& call) { accumulate(call, send, count, type); },
            [&](const void* s, void* r) {
                return JALI_CALL(Scan, Iscan, Scan_init, s, r, count, type, op, comm);
            });
    }

    static int Exscan(const Form& form, const void* send, void* receive, Count count, H type, H op, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                accumulate(call, send, count, type);
                call.receive.use = Use::both; // the first rank's is preserved
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Exscan, Iexscan, Exscan_init, s, r, count, type, op, comm);
            });
    }

    static int Reduce_scatter(const Form& form, const void* send, void* receive, const Count* counts, H type,
                              H op, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Group group(comm);
                const std::int64_t all = std::accumulate(counts, counts + group.ranks, std::int64_t{0});
                scatter_sums(call, send, all, counts[group.rank], type);
                if (call.asks && send != mpi().in_place)
                    call.plan = CollectiveCallWithHandles{Collective::reduce_scatter,
                                                          widened(counts, group.ranks, 1), type, op};
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Reduce_scatter, Ireduce_scatter, Reduce_scatter_init, s, r, counts, type, op,
                                 comm);
            });
    }

    static int Reduce_scatter_block(const Form& form, const void* send, void* receive, Count count, H type,
                                    H op, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Group group(comm);
                scatter_sums(call, send, std::int64_t{count} * group.ranks, count, type);
                if (call.asks && send != mpi().in_place)
                    call.plan = CollectiveCallWithHandles{Collective::reduce_scatter, {count}, type, op};
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Reduce_scatter_block, Ireduce_scatter_block, Reduce_scatter_block_init, s, r,
                                 count, type, op, comm);
            });
    }

    static int Allgather(const Form& form, const void* send, Count send_count, H send_type, void* receive,
                         Count count, H type, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Group group(comm);
                const bool in_place = send == mpi().in_place;
                if (!in_place) call.read(0, send_count, send_type);
                call.write(0, std::int64_t{count} * group.others, type, in_place ? Use::both : Use::written);
                if (call.asks)
                    call.plan = CollectiveCallWithHandles{Collective::all_gather,
                                                          {std::int64_t{count} * size_of_type(type)},
                                                          0,
                                                          0,
                                                          0,
                                                          in_place};
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Allgather, Iallgather, Allgather_init, s, send_count, send_type, r, count,
                                 type, comm);
            });
    }

    static int Allgatherv(const Form& form, const void* send, Count send_count, H send_type, void* receive,
                          const Count* counts, const Displacement* displacements, H type, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Group group(comm);
                const bool in_place = send == mpi().in_place;
                if (!in_place) call.read(0, send_count, send_type);
                each_part(group.others, counts, displacements, type,
                          [&](auto... part) { call.write(part..., in_place ? Use::both : Use::written); });
                if (call.asks && !in_place) // own parts need not be in the order of ranks
                    call.plan = CollectiveCallWithHandles{Collective::all_gather,
                                                          widened(counts, group.others, size_of_type(type))};
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Allgatherv, Iallgatherv, Allgatherv_init, s, send_count, send_type, r,
                                 counts, displacements, type, comm);
            });
    }

    static int Gather(const Form& form, const void* send, Count send_count, H send_type, void* receive,
                      Count count, H type, int root, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Group group(comm);
                const bool in_place = send == mpi().in_place, is_root = group.is_root(root);
                if (is_root)
                    call.write(0, std::int64_t{count} * group.others, type,
                               in_place ? Use::both : Use::written);
                if (group.takes_part(root) && !in_place && !(group.between && is_root))
                    call.read(0, send_count, send_type);
                if (call.asks)
                    call.plan =
                        CollectiveCallWithHandles{Collective::gather,
                                                  {chunk(in_place, count, type, send_count, send_type)},
                                                  0,
                                                  0,
                                                  root,
                                                  false,
                                                  in_place};
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Gather, Igather, Gather_init, s, send_count, send_type, r, count, type, root,
                                 comm);
            });
    }

    static int Gatherv(const Form& form, const void* send, Count send_count, H send_type, void* receive,
                       const Count* counts, const Displacement* displacements, H type, int root, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) { // ranks do not know each other's counts
                const Group group(comm);
                const bool in_place = send == mpi().in_place, is_root = group.is_root(root);
                if (is_root)
                    each_part(group.others, counts, displacements, type, [&](auto... part) {
                        call.write(part..., in_place ? Use::both : Use::written);
                    });
                if (group.takes_part(root) && !in_place && !(group.between && is_root))
                    call.read(0, send_count, send_type);
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Gatherv, Igatherv, Gatherv_init, s, send_count, send_type, r, counts,
                                 displacements, type, root, comm);
            });
    }

    static int Scatter(const Form& form, const void* send, Count send_count, H send_type, void* receive,
                       Count count, H type, int root, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Group group(comm);
                const bool in_place = receive == mpi().in_place, is_root = group.is_root(root);
                if (is_root) call.read(0, std::int64_t{send_count} * group.others, send_type);
                if (group.takes_part(root) && !in_place && !(group.between && is_root))
                    call.write(0, count, type);
                if (call.asks)
                    call.plan =
                        CollectiveCallWithHandles{Collective::scatter,
                                                  {chunk(in_place, send_count, send_type, count, type)},
                                                  0,
                                                  0,
                                                  root,
                                                  false,
                                                  in_place};
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Scatter, Iscatter, Scatter_init, s, send_count, send_type, r, count, type,
                                 root, comm);
            });
    }

    static int Scatterv(const Form& form, const void* send, const Count* send_counts,
                        const Displacement* send_displacements, H send_type, void* receive, Count count,
                        H type, int root, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Group group(comm);
                const bool in_place = receive == mpi().in_place, is_root = group.is_root(root);
                if (is_root)
                    each_part(group.others, send_counts, send_displacements, send_type,
                              [&](auto... part) { call.read(part...); });
                if (group.takes_part(root) && !in_place && !(group.between && is_root))
                    call.write(0, count, type);
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Scatterv, Iscatterv, Scatterv_init, s, send_counts, send_displacements,
                                 send_type, r, count, type, root, comm);
            });
    }

    static int Alltoall(const Form& form, const void* send, Count send_count, H send_type, void* receive,
                        Count count, H type, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Group group(comm);
                const bool in_place = send == mpi().in_place;
                if (!in_place) call.read(0, std::int64_t{send_count} * group.others, send_type);
                call.write(0, std::int64_t{count} * group.others, type, in_place ? Use::both : Use::written);
                if (call.asks)
                    call.plan = CollectiveCallWithHandles{Collective::all_to_all,
                                                          {std::int64_t{count} * size_of_type(type)},
                                                          0,
                                                          0,
                                                          0,
                                                          in_place};
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Alltoall, Ialltoall, Alltoall_init, s, send_count, send_type, r, count, type,
                                 comm);
            });
    }

    static int Alltoallv(const Form& form, const void* send, const Count* send_counts,
                         const Displacement* send_displacements, H send_type, void* receive,
                         const Count* counts, const Displacement* displacements, H type, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Group group(comm);
                const bool in_place = send == mpi().in_place;
                if (!in_place)
                    each_part(group.others, send_counts, send_displacements, send_type,
                              [&](auto... part) { call.read(part...); });
                each_part(group.others, counts, displacements, type,
                          [&](auto... part) { call.write(part..., in_place ? Use::both : Use::written); });
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Alltoallv, Ialltoallv, Alltoallv_init, s, send_counts, send_displacements,
                                 send_type, r, counts, displacements, type, comm);
            });
    }

    static int Alltoallw(const Form& form, const void* send, const Count* send_counts,
                         const Displacement* send_displacements, const void* send_types, void* receive,
                         const Count* counts, const Displacement* displacements, const void* types, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Group group(comm);
                const bool in_place = send == mpi().in_place;
                if (!in_place)
                    each_typed_part(group.others, send_counts, send_displacements, send_types,
                                    [&](auto... part) { call.read(part...); });
                each_typed_part(group.others, counts, displacements, types, [&](auto... part) {
                    call.write(part..., in_place ? Use::both : Use::written);
                });
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Alltoallw, Ialltoallw, Alltoallw_init, s, send_counts, send_displacements,
                                 send_types, r, counts, displacements, types, comm);
            });
    }

    // Neighbourhood collectives: parts of missing neighbours (at an edge) are not written and keep their
    // contents.
    static int Neighbor_allgather(const Form& form, const void* send, Count send_count, H send_type,
                                  void* receive, Count count, H type, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Neighbours neighbours(comm);
                call.read(0, send_count, send_type);
                call.write(0, std::int64_t{count} * neighbours.from, type, Use::both);
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Neighbor_allgather, Ineighbor_allgather, Neighbor_allgather_init, s,
                                 send_count, send_type, r, count, type, comm);
            });
    }

    static int Neighbor_allgatherv(const Form& form, const void* send, Count send_count, H send_type,
                                   void* receive, const Count* counts, const Displacement* displacements,
                                   H type, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Neighbours neighbours(comm);
                call.read(0, send_count, send_type);
                each_part(neighbours.from, counts, displacements, type,
                          [&](auto... part) { call.write(part..., Use::both); });
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Neighbor_allgatherv, Ineighbor_allgatherv, Neighbor_allgatherv_init, s,
                                 send_count, send_type, r, counts, displacements, type, comm);
            });
    }

    static int Neighbor_alltoall(const Form& form, const void* send, Count send_count, H send_type,
                                 void* receive, Count count, H type, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Neighbours neighbours(comm);
                call.read(0, std::int64_t{send_count} * neighbours.to, send_type);
                call.write(0, std::int64_t{count} * neighbours.from, type, Use::both);
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Neighbor_alltoall, Ineighbor_alltoall, Neighbor_alltoall_init, s, send_count,
                                 send_type, r, count, type, comm);
            });
    }

    static int Neighbor_alltoallv(const Form& form, const void* send, const Count* send_counts,
                                  const Displacement* send_displacements, H send_type, void* receive,
                                  const Count* counts, const Displacement* displacements, H type, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Neighbours neighbours(comm);
                each_part(neighbours.to, send_counts, send_displacements, send_type,
                          [&](auto... part) { call.read(part...); });
                each_part(neighbours.from, counts, displacements, type,
                          [&](auto... part) { call.write(part..., Use::both); });
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Neighbor_alltoallv, Ineighbor_alltoallv, Neighbor_alltoallv_init, s,
                                 send_counts, send_displacements, send_type, r, counts, displacements, type,
                                 comm);
            });
    }

    static int Neighbor_alltoallw(const Form& form, const void* send, const Count* send_counts,
                                  const std::intptr_t* send_displacements, const void* send_types,
                                  void* receive, const Count* counts, const std::intptr_t* displacements,
                                  const void* types, H comm) {
        return made(
            form, comm, send, receive,
            [&](Described& call) {
                const Neighbours neighbours(comm);
                each_typed_part(neighbours.to, send_counts, send_displacements, send_types,
                                [&](auto... part) { call.read(part...); });
                each_typed_part(neighbours.from, counts, displacements, types,
                                [&](auto... part) { call.write(part..., Use::both); });
            },
            [&](const void* s, void* r) {
                return JALI_CALL(Neighbor_alltoallw, Ineighbor_alltoallw, Neighbor_alltoallw_init, s,
                                 send_counts, send_displacements, send_types, r, counts, displacements, types,
                                 comm);
            });
    }

#undef JALI_CALL

  private:
    static void accumulate(Described& call, const void* send, std::int64_t count, H type) {
        const bool in_place = send == mpi().in_place;
        if (!in_place) call.read(0, count, type);
        call.write(0, count, type, in_place ? Use::both : Use::written);
    }
    static void scatter_sums(Described& call, const void* send, std::int64_t all, std::int64_t own, H type) {
        if (send == mpi().in_place) {
            call.write(0, all, type, Use::both);
        } else {
            call.read(0, all, type);
            call.write(0, own, type);
        }
    }
    // Bytes of a rank's part, by the arguments of the root or of another rank.
    static std::int64_t chunk(bool in_place, std::int64_t roots_count, H roots_type, std::int64_t count,
                              H type) {
        return in_place ? roots_count * size_of_type(roots_type) : count * size_of_type(type);
    }
};

} // namespace

} // namespace jali::interposer

// The functions that the program calls.
using namespace jali::interposer;

#define JALI_EXPORT(blocking, nonblocking, initialising, parameters, arguments, form_of_name)                \
    JALI_SHOWN int MPI_##blocking##form_of_name parameters {                                                 \
        const Form form{"MPI_" #blocking};                                                                   \
        return Collectives<F>::blocking(form, JALI_OPEN arguments);                                          \
    }                                                                                                        \
    JALI_SHOWN int MPI_##nonblocking##form_of_name(JALI_OPEN parameters, void* request) {                    \
        const Form form{"MPI_" #nonblocking, 0, request, true};                                              \
        return Collectives<F>::blocking(form, JALI_OPEN arguments);                                          \
    }                                                                                                        \
    JALI_SHOWN int MPI_##initialising##form_of_name(JALI_OPEN parameters, H info, void* request) {           \
        const Form form{"MPI_" #initialising, info, request, false, true};                                   \
        return Collectives<F>::blocking(form, JALI_OPEN arguments);                                          \
    }
#define JALI_CLASSIC(blocking, nonblocking, initialising, parameters, arguments)                             \
    JALI_EXPORT(blocking, nonblocking, initialising, parameters, arguments, )
#define JALI_LARGE(blocking, nonblocking, initialising, parameters, arguments)                               \
    JALI_EXPORT(blocking, nonblocking, initialising, parameters, arguments, _c)

namespace jali::interposer::classic {
using F = Classic;
using Count = F::Count;
using Displacement = F::Displacement;
JALI_MPI_COLLECTIVES(JALI_CLASSIC)
} // namespace jali::interposer::classic
namespace jali::interposer::large {
using F = Large;
using Count = F::Count;
using Displacement = F::Displacement;
JALI_MPI_COLLECTIVES(JALI_LARGE)
} // namespace jali::interposer::large
