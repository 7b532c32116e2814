#include "interposer/mpi_functions.hpp"
#include "messaging/communicator.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include <dlfcn.h>

namespace jali::interposer {

namespace {

template <class Function>
void find(void* library, Function*& function, const char* name) {
    void* address = library != nullptr ? dlsym(library, name) : nullptr;
    if (address == nullptr) address = dlsym(RTLD_DEFAULT, name);
    std::memcpy(&function, &address, sizeof function);
}

template <class Number, class Offset>
void find_counted(void* library, CountedFunctions<Number, Offset>& to, const std::string& form) {
    const auto named = [&](auto& function, const char* name) {
        find(library, function, (std::string("PMPI_") + name + form).c_str());
    };
#define JALI_COLLECTIVE(blocking, nonblocking, initialising, parameters, arguments)                          \
    named(to.blocking, #blocking);                                                                           \
    named(to.nonblocking, #nonblocking);                                                                     \
    named(to.initialising, #initialising);
#define JALI_SEND(name) named(to.name, #name);
#define JALI_OTHER(name, parameters, arguments) named(to.name, #name);
    JALI_MPI_COLLECTIVES(JALI_COLLECTIVE)
    JALI_MPI_SENDS(JALI_SEND)
    JALI_MPI_BEGUN_SENDS(JALI_SEND)
    JALI_MPI_PREPARED_SENDS(JALI_SEND)
    JALI_MPI_MESSAGES(JALI_OTHER)
#undef JALI_COLLECTIVE
#undef JALI_SEND
}

void* address(std::intptr_t number) {
    return reinterpret_cast<void*>(number);
}

// MPI 4.1 has a call for the statuses of many requests; older libraries only for one.
int status_of_all(int count, const void* requests, int* flag, void* statuses) {
    const MpiFunctions& mpi = interposer::mpi();
    *flag = 1;
    for (int k = 0; k < count && *flag; ++k) {
        void* status = statuses == mpi.status_ignore ? statuses
                                                     : static_cast<std::byte*>(statuses) +
                                                           mpi.status_bytes * static_cast<std::size_t>(k);
        if (const int code = mpi.Request_get_status(mpi.handle_at(requests, k), flag, status); code != 0)
            return code;
    }
    return 0;
}
int status_of_any(int count, const void* requests, int* index, int* flag, void* status) {
    const MpiFunctions& mpi = interposer::mpi();
    bool there_are = false;
    for (int k = 0; k < count; ++k) {
        const H request = mpi.handle_at(requests, k);
        if (request == mpi.request_null) continue;
        there_are = true;
        if (const int code = mpi.Request_get_status(request, flag, status); code != 0) return code;
        *index = k;
        if (*flag) return 0;
    }
    *index = mpi.undefined;
    *flag = 0;
    if (there_are) return 0;
    const int code = mpi.Request_get_status(mpi.request_null, flag, status);
    if (code == 0 &&
        status != mpi.status_ignore) // an empty status is one of success, which Open MPI leaves out
        std::memset(static_cast<std::byte*>(status) + mpi.error_in_a_status, 0, sizeof(int));
    return code;
}
int status_of_some(int count, const void* requests, int* done, int* indices, void* statuses) {
    const MpiFunctions& mpi = interposer::mpi();
    bool there_are = false;
    *done = 0;
    for (int k = 0; k < count; ++k) {
        const H request = mpi.handle_at(requests, k);
        if (request == mpi.request_null) continue;
        there_are = true;
        void* status = statuses == mpi.status_ignore ? statuses
                                                     : static_cast<std::byte*>(statuses) +
                                                           mpi.status_bytes * static_cast<std::size_t>(*done);
        int flag = 0;
        if (const int code = mpi.Request_get_status(request, &flag, status); code != 0) return code;
        if (flag) indices[(*done)++] = k;
    }
    if (!there_are) *done = mpi.undefined;
    return 0;
}

// mpi.h of MPICH since 3.1 (the MPICH ABI initiative), of Open MPI since 4.0, and the MPI 5.0 standard,
// appendix A.
void fill_constants(MpiFunctions& mpi, const MpiAbi& abi, void* library) {
    mpi.undefined = abi.undefined;
    mpi.byte = abi.byte_type;
    std::ranges::copy(abi.operations, mpi.operations);
    mpi.in_place = abi.in_place;
    if (abi.name == "MPICH") {
        mpi.handle_bytes = 4;
        mpi.world = 0x44000000, mpi.self = 0x44000001, mpi.comm_null = 0x04000000,
        mpi.request_null = 0x2c000000;
        mpi.status_ignore = address(1);
        mpi.root = -3, mpi.proc_null = -1, mpi.keyval_invalid = 0x24000000;
        mpi.error_other = 15, mpi.error_in_status = 17, mpi.error_pending = 18;
        mpi.graph = 1, mpi.cartesian = 2, mpi.distributed_graph = 3;
        mpi.status_bytes = 20, mpi.error_in_a_status = 16;
    } else if (abi.name == "Open MPI") {
        const auto object =
            [&](const char* name) { // in a program that is linked to it they are the program's
                void* found = dlsym(RTLD_DEFAULT, name);
                return reinterpret_cast<H>(found != nullptr ? found : dlsym(library, name));
            };
        mpi.handle_bytes = 8;
        mpi.world = object("ompi_mpi_comm_world"), mpi.self = object("ompi_mpi_comm_self");
        mpi.comm_null = object("ompi_mpi_comm_null"), mpi.request_null = object("ompi_request_null");
        mpi.status_ignore = nullptr;
        mpi.root = -4, mpi.proc_null = -2, mpi.keyval_invalid = -1;
        mpi.error_other = 16, mpi.error_in_status = 18, mpi.error_pending = 19;
        mpi.cartesian = 1, mpi.graph = 2, mpi.distributed_graph = 3;
        mpi.status_bytes = 24, mpi.error_in_a_status = 8;
    } else {
        mpi.handle_bytes = 8;
        mpi.world = 0x101, mpi.self = 0x102, mpi.comm_null = 0x100, mpi.request_null = 0x180;
        mpi.status_ignore = nullptr;
        mpi.root = -4, mpi.proc_null = -3, mpi.keyval_invalid = 0;
        mpi.error_other = 16, mpi.error_in_status = 19, mpi.error_pending = 18;
        mpi.cartesian = 211, mpi.graph = 212, mpi.distributed_graph = 213;
        mpi.status_bytes = 32, mpi.error_in_a_status = 8;
    }
    mpi.band = mpi.operations[7];
}

const MpiFunctions& load() {
    static MpiFunctions mpi{};
    try {
        const MpiAbi& abi = MpiAbi::find("");
        void* library = dlopen(abi.path.c_str(), RTLD_NOW | RTLD_NOLOAD);
        find_counted(library, static_cast<Classic&>(mpi), "");
        find_counted(library, mpi.large, "_c");
#define JALI_NAMED(name, parameters, arguments) find(library, mpi.name, "PMPI_" #name);
#define JALI_QUESTION(name, parameters) find(library, mpi.name, "PMPI_" #name);
        JALI_MPI_COMPLETIONS(JALI_NAMED)
        JALI_MPI_FRAME(JALI_NAMED)
        JALI_MPI_QUESTIONS(JALI_QUESTION)
        fill_constants(mpi, abi, library);
        if (mpi.Request_get_status_all == nullptr) mpi.Request_get_status_all = &status_of_all;
        if (mpi.Request_get_status_any == nullptr) mpi.Request_get_status_any = &status_of_any;
        if (mpi.Request_get_status_some == nullptr) mpi.Request_get_status_some = &status_of_some;
    } catch (const TransportError& error) {
        std::fprintf(stderr, "jali: libjali_mpi.so has been called, but %s\n", error.what());
        std::abort();
    }
    return mpi;
}

} // namespace

H MpiFunctions::handle_at(const void* array, std::int64_t k) const {
    if (handle_bytes == 4) return static_cast<const std::uint32_t*>(array)[k];
    return static_cast<const H*>(array)[k];
}

void MpiFunctions::put_handle(void* array, std::int64_t k, H handle) const {
    if (handle_bytes == 4)
        static_cast<std::uint32_t*>(array)[k] = static_cast<std::uint32_t>(handle);
    else
        static_cast<H*>(array)[k] = handle;
}

void* find_mpi_function(const char* name) {
    static void* const library = dlopen(MpiAbi::find("").path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    void (*function)() = nullptr;
    find(library, function, name);
    return reinterpret_cast<void*>(function);
}

void* mpi_function(const char* name) {
    if (void* function = find_mpi_function(name)) return function;
    std::fprintf(stderr, "jali: the program calls %s, which its MPI library has not\n", name);
    std::abort();
}

const MpiFunctions& mpi() {
    static const MpiFunctions& loaded = load();
    return loaded;
}

} // namespace jali::interposer
