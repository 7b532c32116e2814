// Calls that make MPI itself access device memory, now or later, and cannot be staged: windows and files.
//
// If the MPI library takes such memory they are passed on; else they are an error, not a crash.
#include "interposer/call.hpp"

#include <initializer_list>
#include <stdexcept>
#include <string>

namespace jali::interposer {

namespace {

constexpr const char* windows = "one-sided communication";
constexpr const char* files = "files";
constexpr const char* partitioned = "partitioned messages";
constexpr const char* packing = "packing for other machines";
constexpr const char* buffering = "buffers of MPI's own";

// Whether the call may be made; 0, or the code of the error.
int refuse_devices(const char* function, const char* what, std::initializer_list<const void*> buffers) {
    if (Inside::is() || !find_driver()) return 0;
    const Inside inside;
    const CurrentContexts contexts;
    try {
        for (const void* buffer : buffers) {
            if (!on_device(buffer)) continue;
            const DeviceMemory memory = device_memory(buffer);
            if (mpi_takes_memory_of(memory.gpu->vendor())) continue;
            throw std::invalid_argument(
                std::string("an address in memory of ") + memory.gpu->kind() +
                " devices, which this MPI library does not take; jali stages messages and "
                "collectives, but not " +
                what + ": give memory of the host");
        }
        return 0;
    } catch (const std::exception& error) {
        return failed(function, 0, error);
    }
}

template <class Function>
Function* library_function(Function*, const char* name) {
    return reinterpret_cast<Function*>(find_mpi_function(name));
}

} // namespace

// clang-format off
// entry(name, what, buffers, parameters, arguments), in both widths
#define JALI_REFUSED(entry) \
    entry(Put, windows, (origin), (const void* origin, Count count, H type, int rank, std::intptr_t offset, Count target_count, H target_type, H win), (origin, count, type, rank, offset, target_count, target_type, win)) \
    entry(Get, windows, (origin), (void* origin, Count count, H type, int rank, std::intptr_t offset, Count target_count, H target_type, H win), (origin, count, type, rank, offset, target_count, target_type, win)) \
    entry(Rput, windows, (origin), (const void* origin, Count count, H type, int rank, std::intptr_t offset, Count target_count, H target_type, H win, void* request), (origin, count, type, rank, offset, target_count, target_type, win, request)) \
    entry(Rget, windows, (origin), (void* origin, Count count, H type, int rank, std::intptr_t offset, Count target_count, H target_type, H win, void* request), (origin, count, type, rank, offset, target_count, target_type, win, request)) \
    entry(Accumulate, windows, (origin), (const void* origin, Count count, H type, int rank, std::intptr_t offset, Count target_count, H target_type, H op, H win), (origin, count, type, rank, offset, target_count, target_type, op, win)) \
    entry(Raccumulate, windows, (origin), (const void* origin, Count count, H type, int rank, std::intptr_t offset, Count target_count, H target_type, H op, H win, void* request), (origin, count, type, rank, offset, target_count, target_type, op, win, request)) \
    entry(Get_accumulate, windows, (origin, result), (const void* origin, Count count, H type, void* result, Count result_count, H result_type, int rank, std::intptr_t offset, Count target_count, H target_type, H op, H win), (origin, count, type, result, result_count, result_type, rank, offset, target_count, target_type, op, win)) \
    entry(Rget_accumulate, windows, (origin, result), (const void* origin, Count count, H type, void* result, Count result_count, H result_type, int rank, std::intptr_t offset, Count target_count, H target_type, H op, H win, void* request), (origin, count, type, result, result_count, result_type, rank, offset, target_count, target_type, op, win, request)) \
    entry(File_read, files, (buffer), (H file, void* buffer, Count count, H type, void* status), (file, buffer, count, type, status)) \
    entry(File_read_all, files, (buffer), (H file, void* buffer, Count count, H type, void* status), (file, buffer, count, type, status)) \
    entry(File_read_shared, files, (buffer), (H file, void* buffer, Count count, H type, void* status), (file, buffer, count, type, status)) \
    entry(File_read_ordered, files, (buffer), (H file, void* buffer, Count count, H type, void* status), (file, buffer, count, type, status)) \
    entry(File_write, files, (buffer), (H file, const void* buffer, Count count, H type, void* status), (file, buffer, count, type, status)) \
    entry(File_write_all, files, (buffer), (H file, const void* buffer, Count count, H type, void* status), (file, buffer, count, type, status)) \
    entry(File_write_shared, files, (buffer), (H file, const void* buffer, Count count, H type, void* status), (file, buffer, count, type, status)) \
    entry(File_write_ordered, files, (buffer), (H file, const void* buffer, Count count, H type, void* status), (file, buffer, count, type, status)) \
    entry(File_iread, files, (buffer), (H file, void* buffer, Count count, H type, void* request), (file, buffer, count, type, request)) \
    entry(File_iread_all, files, (buffer), (H file, void* buffer, Count count, H type, void* request), (file, buffer, count, type, request)) \
    entry(File_iread_shared, files, (buffer), (H file, void* buffer, Count count, H type, void* request), (file, buffer, count, type, request)) \
    entry(File_iwrite, files, (buffer), (H file, const void* buffer, Count count, H type, void* request), (file, buffer, count, type, request)) \
    entry(File_iwrite_all, files, (buffer), (H file, const void* buffer, Count count, H type, void* request), (file, buffer, count, type, request)) \
    entry(File_iwrite_shared, files, (buffer), (H file, const void* buffer, Count count, H type, void* request), (file, buffer, count, type, request)) \
    entry(File_read_at, files, (buffer), (H file, std::int64_t offset, void* buffer, Count count, H type, void* status), (file, offset, buffer, count, type, status)) \
    entry(File_read_at_all, files, (buffer), (H file, std::int64_t offset, void* buffer, Count count, H type, void* status), (file, offset, buffer, count, type, status)) \
    entry(File_write_at, files, (buffer), (H file, std::int64_t offset, const void* buffer, Count count, H type, void* status), (file, offset, buffer, count, type, status)) \
    entry(File_write_at_all, files, (buffer), (H file, std::int64_t offset, const void* buffer, Count count, H type, void* status), (file, offset, buffer, count, type, status)) \
    entry(File_iread_at, files, (buffer), (H file, std::int64_t offset, void* buffer, Count count, H type, void* request), (file, offset, buffer, count, type, request)) \
    entry(File_iread_at_all, files, (buffer), (H file, std::int64_t offset, void* buffer, Count count, H type, void* request), (file, offset, buffer, count, type, request)) \
    entry(File_iwrite_at, files, (buffer), (H file, std::int64_t offset, const void* buffer, Count count, H type, void* request), (file, offset, buffer, count, type, request)) \
    entry(File_iwrite_at_all, files, (buffer), (H file, std::int64_t offset, const void* buffer, Count count, H type, void* request), (file, offset, buffer, count, type, request)) \
    entry(File_read_all_begin, files, (buffer), (H file, void* buffer, Count count, H type), (file, buffer, count, type)) \
    entry(File_write_all_begin, files, (buffer), (H file, const void* buffer, Count count, H type), (file, buffer, count, type)) \
    entry(File_read_ordered_begin, files, (buffer), (H file, void* buffer, Count count, H type), (file, buffer, count, type)) \
    entry(File_write_ordered_begin, files, (buffer), (H file, const void* buffer, Count count, H type), (file, buffer, count, type)) \
    entry(File_read_at_all_begin, files, (buffer), (H file, std::int64_t offset, void* buffer, Count count, H type), (file, offset, buffer, count, type)) \
    entry(File_write_at_all_begin, files, (buffer), (H file, std::int64_t offset, const void* buffer, Count count, H type), (file, offset, buffer, count, type)) \
    entry(Win_create, windows, (base), (void* base, std::intptr_t size, Unit unit, H info, H comm, void* win), (base, size, unit, info, comm, win)) \
    entry(Buffer_attach, buffering, (buffer), (void* buffer, Unit size), (buffer, size))

// In one width: entry(name, what, buffers, parameters, arguments). Functions that are new in MPI 4.1 and that nothing
// stands for on libraries without are none of ours: programs that look for them while they run would find them.
#define JALI_REFUSED_ONCE(entry) \
    entry(Pack_external, packing, (in, out), (const char* form, const void* in, int count, H type, void* out, std::intptr_t size, std::intptr_t* offset), (form, in, count, type, out, size, offset)) \
    entry(Unpack_external, packing, (in, out), (const char* form, const void* in, std::intptr_t size, std::intptr_t* offset, void* out, int count, H type), (form, in, size, offset, out, count, type)) \
    entry(Win_attach, windows, (base), (H win, void* base, std::intptr_t size), (win, base, size)) \
    entry(Fetch_and_op, windows, (origin, result), (const void* origin, void* result, H type, int rank, std::intptr_t offset, H op, H win), (origin, result, type, rank, offset, op, win)) \
    entry(Compare_and_swap, windows, (origin, compare, result), (const void* origin, const void* compare, void* result, H type, int rank, std::intptr_t offset, H win), (origin, compare, result, type, rank, offset, win)) \
    entry(Psend_init, partitioned, (buffer), (const void* buffer, int parts, std::int64_t count, H type, int to, int tag, H comm, H info, void* request), (buffer, parts, count, type, to, tag, comm, info, request)) \
    entry(Precv_init, partitioned, (buffer), (void* buffer, int parts, std::int64_t count, H type, int from, int tag, H comm, H info, void* request), (buffer, parts, count, type, from, tag, comm, info, request))
// clang-format on

#define JALI_EXPORT(name, form_of_name, what, buffers, parameters, arguments)                                \
    JALI_SHOWN int MPI_##name##form_of_name parameters {                                                     \
        static const auto function =                                                                         \
            library_function(&MPI_##name##form_of_name, "PMPI_" #name #form_of_name);                        \
        static const auto narrow = library_function(&classic::MPI_##name, "PMPI_" #name);                    \
        if (const int code = refuse_devices("MPI_" #name, what, {JALI_OPEN buffers}); code != 0)             \
            return code;                                                                                     \
        try {                                                                                                \
            return function != nullptr ? function arguments : Narrowed(0).call(narrow, JALI_OPEN arguments); \
        } catch (const std::exception& error) {                                                              \
            return failed("MPI_" #name, 0, error);                                                           \
        }                                                                                                    \
    }

namespace classic {
using Count = int;
using Unit = int;
#define JALI_ENTRY(name, what, buffers, parameters, arguments)                                               \
    JALI_EXPORT(name, , what, buffers, parameters, arguments)
JALI_REFUSED(JALI_ENTRY)
JALI_REFUSED_ONCE(JALI_ENTRY)
#undef JALI_ENTRY
} // namespace classic
namespace large {
using Count = std::int64_t;
using Unit = std::int64_t;
#define JALI_ENTRY(name, what, buffers, parameters, arguments)                                               \
    JALI_EXPORT(name, _c, what, buffers, parameters, arguments)
JALI_REFUSED(JALI_ENTRY)
} // namespace large

} // namespace jali::interposer
