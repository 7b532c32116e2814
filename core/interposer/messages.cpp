// MPI's messages between two ranks, and its other calls with buffers.
#include "interposer/call.hpp"

#include <cstddef>

namespace jali::interposer {

namespace {

// In the requested width, or the classic one if the library has no other.
#define JALI_MESSAGE(name, ...)                                                                              \
    (functions<F>().name != nullptr ? functions<F>().name(__VA_ARGS__)                                       \
                                    : Narrowed(0).call(mpi().name, __VA_ARGS__))

template <class F>
struct Messages {
    using Count = typename F::Count;
    using Displacement = typename F::Displacement;

    // `pass(buffer)` makes the call.
    template <class Pass>
    static int send(const Form& form, const void* buffer, Count count, H type, int to, H comm, Pass&& pass) {
        return made(
            form, comm, buffer, nullptr,
            [&](Described& call) {
                if (to != mpi().proc_null) call.read(0, count, type);
            },
            [&](const void* s, void*) { return pass(s); });
    }

    template <class Pass>
    static int begin_receive(const Form& form, void* buffer, Count count, H type, int from, H comm,
                             Pass&& pass) {
        return made(
            form, comm, nullptr, buffer,
            [&](Described& call) {
                if (from != mpi().proc_null) call.write(0, count, type, Use::received);
            },
            [&](const void*, void* r) { return pass(r); });
    }

    // A message that has arrived when the call returns: MPI's status contains its size.
    template <class Describe, class Pass>
    static int receive(const char* function, H comm, const void* send, void* receive, void* status,
                       Describe&& describe, Pass&& pass) {
        if (!concerns_us()) return pass(send, receive, status);
        const Inside inside(comm);
        Passing passing;
        const auto passed = [&](const void* from, void* to, void* st) {
            return passing([&] { return pass(from, to, st); });
        };
        try {
            Described& described = Described::empty(false);
            describe(described);
            Tally tally(function, described.send.elements, described.receive.elements);
            const bool devices = has_driver() && (may_be_on_device(send, described.send.elements) ||
                                                  may_be_on_device(receive, described.receive.elements));
            if (!devices) return passed(send, receive, status);
            const CurrentContexts contexts;
            Staging staging;
            const void* from = staging.give(send, described.send.elements, described.send.use);
            void* to = staging.give(receive, described.receive.elements, described.receive.use);
            if (!staging.used()) return passed(send, receive, status);
            tally.by("mpi, staged");
            MpiStatus own;
            if (status == mpi().status_ignore) status = &own;
            if (const int code = passed(from, to, status); code != 0) return code;
            std::int64_t bytes = 0;
            staging.write_back(mpi().Get_elements_x(status, mpi().byte, &bytes) == 0 ? bytes : -1);
            return 0;
        } catch (const BadType&) {
            if (passing.in_mpi) throw;
            return passed(send, receive, status); // MPI reports the error
        } catch (const NarrowingError& error) {
            return failed(function, comm, error);
        } catch (const std::exception& error) {
            if (passing.in_mpi) throw;
            return failed(function, comm, error);
        }
    }

    static int Recv(void* buffer, Count count, H type, int peer, int tag, H comm, void* status) {
        return receive(
            "MPI_Recv", comm, nullptr, buffer, status,
            [&](Described& call) {
                if (peer != mpi().proc_null) call.write(0, count, type, Use::received);
            },
            [&](const void*, void* r, void* s) {
                return JALI_MESSAGE(Recv, r, count, type, peer, tag, comm, s);
            });
    }
    static int Mrecv(void* buffer, Count count, H type, void* message, void* status) {
        return receive(
            "MPI_Mrecv", 0, nullptr, buffer, status,
            [&](Described& call) { call.write(0, count, type, Use::received); },
            [&](const void*, void* r, void* s) { return JALI_MESSAGE(Mrecv, r, count, type, message, s); });
    }
    static int Sendrecv(const void* send, Count send_count, H send_type, int to, int send_tag, void* receive_,
                        Count count, H type, int from, int tag, H comm, void* status) {
        return receive(
            "MPI_Sendrecv", comm, send, receive_, status,
            [&](Described& call) {
                if (to != mpi().proc_null) call.read(0, send_count, send_type);
                if (from != mpi().proc_null) call.write(0, count, type, Use::received);
            },
            [&](const void* s, void* r, void* st) {
                return JALI_MESSAGE(Sendrecv, s, send_count, send_type, to, send_tag, r, count, type, from,
                                    tag, comm, st);
            });
    }
    // Sent data are read before received data replace them.
    static int Sendrecv_replace(void* buffer, Count count, H type, int to, int send_tag, int from, int tag,
                                H comm, void* status) {
        return receive(
            "MPI_Sendrecv_replace", comm, nullptr, buffer, status,
            [&](Described& call) { call.write(0, count, type, Use::both); },
            [&](const void*, void* r, void* s) {
                return JALI_MESSAGE(Sendrecv_replace, r, count, type, to, send_tag, from, tag, comm, s);
            });
    }

    static int Irecv(void* buffer, Count count, H type, int peer, int tag, H comm, void* request) {
        return begin_receive({"MPI_Irecv", 0, request, true}, buffer, count, type, peer, comm, [&](void* r) {
            return JALI_MESSAGE(Irecv, r, count, type, peer, tag, comm, request);
        });
    }
    static int Recv_init(void* buffer, Count count, H type, int peer, int tag, H comm, void* request) {
        return begin_receive(
            {"MPI_Recv_init", 0, request, false, true}, buffer, count, type, peer, comm,
            [&](void* r) { return JALI_MESSAGE(Recv_init, r, count, type, peer, tag, comm, request); });
    }
    static int Imrecv(void* buffer, Count count, H type, void* message, void* request) {
        return begin_receive({"MPI_Imrecv", 0, request, true}, buffer, count, type, 0, 0,
                             [&](void* r) { return JALI_MESSAGE(Imrecv, r, count, type, message, request); });
    }
    static int Isendrecv(const void* send, Count send_count, H send_type, int to, int send_tag, void* receive,
                         Count count, H type, int from, int tag, H comm, void* request) {
        return made(
            {"MPI_Isendrecv", 0, request, true}, comm, send, receive,
            [&](Described& call) {
                if (to != mpi().proc_null) call.read(0, send_count, send_type);
                if (from != mpi().proc_null) call.write(0, count, type, Use::received);
            },
            [&](const void* s, void* r) {
                return JALI_MESSAGE(Isendrecv, s, send_count, send_type, to, send_tag, r, count, type, from,
                                    tag, comm, request);
            });
    }
    static int Isendrecv_replace(void* buffer, Count count, H type, int to, int send_tag, int from, int tag,
                                 H comm, void* request) {
        return made(
            {"MPI_Isendrecv_replace", 0, request, true}, comm, nullptr, buffer,
            [&](Described& call) { call.write(0, count, type, Use::both); },
            [&](const void*, void* r) {
                return JALI_MESSAGE(Isendrecv_replace, r, count, type, to, send_tag, from, tag, comm,
                                    request);
            });
    }

    static int Pack(const void* in, Count count, H type, void* out, Displacement size, Displacement* position,
                    H comm) {
        return made(
            {"MPI_Pack"}, comm, in, out,
            [&](Described& call) {
                call.read(0, count, type);
                call.write(0, size, mpi().byte, Use::both);
            },
            [&](const void* s, void* r) {
                return JALI_MESSAGE(Pack, s, count, type, r, size, position, comm);
            });
    }
    static int Unpack(const void* in, Displacement size, Displacement* position, void* out, Count count,
                      H type, H comm) {
        return made(
            {"MPI_Unpack"}, comm, in, out,
            [&](Described& call) {
                call.read(0, size, mpi().byte);
                call.write(0, count, type);
            },
            [&](const void* s, void* r) {
                return JALI_MESSAGE(Unpack, s, size, position, r, count, type, comm);
            });
    }
    static int Reduce_local(const void* in, void* inout, Count count, H type, H op) {
        return made(
            {"MPI_Reduce_local"}, 0, in, inout,
            [&](Described& call) {
                call.read(0, count, type);
                call.write(0, count, type, Use::both);
            },
            [&](const void* s, void* r) { return JALI_MESSAGE(Reduce_local, s, r, count, type, op); });
    }
};

} // namespace

} // namespace jali::interposer

// The functions that the program calls.
using namespace jali::interposer;

#define JALI_EXPORT_SEND(name, form_of_name)                                                                 \
    JALI_SHOWN int MPI_##name##form_of_name(const void* buffer, Count count, H type, int to, int tag,        \
                                            H comm) {                                                        \
        return Messages<F>::send({"MPI_" #name}, buffer, count, type, to, comm, [&](const void* s) {         \
            return JALI_MESSAGE(name, s, count, type, to, tag, comm);                                        \
        });                                                                                                  \
    }
#define JALI_EXPORT_REQUEST(name, form_of_name, is_prepared)                                                 \
    JALI_SHOWN int MPI_##name##form_of_name(const void* buffer, Count count, H type, int to, int tag,        \
                                            H comm, void* request) {                                         \
        return Messages<F>::send(                                                                            \
            {"MPI_" #name, 0, request, !is_prepared, is_prepared}, buffer, count, type, to, comm,            \
            [&](const void* s) { return JALI_MESSAGE(name, s, count, type, to, tag, comm, request); });      \
    }
#define JALI_EXPORT_OTHER(name, parameters, arguments, form_of_name)                                         \
    JALI_SHOWN int MPI_##name##form_of_name parameters {                                                     \
        return Messages<F>::name arguments;                                                                  \
    }

namespace jali::interposer::classic {
using F = Classic;
using Count = F::Count;
using Displacement = F::Displacement;
#define JALI_SEND(name) JALI_EXPORT_SEND(name, )
#define JALI_BEGUN(name) JALI_EXPORT_REQUEST(name, , false)
#define JALI_PREPARED(name) JALI_EXPORT_REQUEST(name, , true)
#define JALI_OTHER(name, parameters, arguments) JALI_EXPORT_OTHER(name, parameters, arguments, )
JALI_MPI_SENDS(JALI_SEND)
JALI_MPI_BEGUN_SENDS(JALI_BEGUN)
JALI_MPI_PREPARED_SENDS(JALI_PREPARED)
JALI_MPI_MESSAGES(JALI_OTHER)
} // namespace jali::interposer::classic

#undef JALI_SEND
#undef JALI_BEGUN
#undef JALI_PREPARED
#undef JALI_OTHER

namespace jali::interposer::large {
using F = Large;
using Count = F::Count;
using Displacement = F::Displacement;
#define JALI_SEND(name) JALI_EXPORT_SEND(name, _c)
#define JALI_BEGUN(name) JALI_EXPORT_REQUEST(name, _c, false)
#define JALI_PREPARED(name) JALI_EXPORT_REQUEST(name, _c, true)
#define JALI_OTHER(name, parameters, arguments) JALI_EXPORT_OTHER(name, parameters, arguments, _c)
JALI_MPI_SENDS(JALI_SEND)
JALI_MPI_BEGUN_SENDS(JALI_BEGUN)
JALI_MPI_PREPARED_SENDS(JALI_PREPARED)
JALI_MPI_MESSAGES(JALI_OTHER)
} // namespace jali::interposer::large
