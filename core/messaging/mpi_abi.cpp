#include "messaging/mpi_abi.hpp"
#include "messaging/communicator.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <mutex>
#include <vector>

#include <dlfcn.h>
#include <link.h>

namespace jali {

namespace {

static_assert(sizeof(void*) == 8 && std::endian::native == std::endian::little,
              "32-bit MPI handles are kept in the low half of 64-bit words");

// Paths of the loaded libraries whose file name starts with "libmpi".
std::vector<std::string> loaded_mpi_libraries() {
    std::vector<std::string> paths;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* data) {
            const std::string path = info->dlpi_name;
            const auto slash = path.rfind('/');
            const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
            if (name.starts_with("libmpi")) static_cast<std::vector<std::string>*>(data)->push_back(path);
            return 0;
        },
        &paths);
    return paths;
}

// A handle through which dlsym finds MPI: first the caller's hint, then the global scope (a program linked to
// MPI), then any loaded MPI library.
void* library_handle(const std::string& hint) {
    std::vector<std::string> candidates = loaded_mpi_libraries();
    const auto usable = [](void* handle) { return dlsym(handle, "PMPI_Isend") != nullptr; };
    if (!hint.empty()) {
        void* handle = dlopen(hint.c_str(), RTLD_NOW | RTLD_NOLOAD);
        if (handle != nullptr && usable(handle)) return handle;
    }
    if (usable(RTLD_DEFAULT)) return RTLD_DEFAULT;
    for (const auto& candidate : candidates) {
        void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_NOLOAD);
        if (handle != nullptr && usable(handle)) return handle;
    }
    throw TransportError(
        "no MPI library is loaded in this process: import mpi4py.MPI before asking for MPI ranks");
}

constexpr std::string_view libraries[] = {"mpich", "openmpi", "intel-mpi", "mvapich"};
// By library: how its text (MPI_Get_library_version) begins.
constexpr std::string_view begins[] = {"MPICH Version", "Open MPI v", "Intel(R) MPI Library", "MVAPICH"};

// From "Open MPI v5.0.6, package: ..." or "MPICH Version: 4.2.3", whose number follows the last of these
// words.
void read_version(MpiAbi& mpi, std::string_view text) {
    text = text.substr(0, text.find('\n'));
    for (std::size_t k = 0; k < std::size(begins); ++k) {
        if (!text.starts_with(begins[k])) continue;
        mpi.library = libraries[k];
        const std::size_t word = text.find("ersion"); // MVAPICH2 has a number in its name
        text.remove_prefix(word != text.npos ? word : begins[k].size());
        text.remove_prefix(std::min(text.find_first_of("0123456789"), text.size()));
        mpi.version = text.substr(0, text.find_first_not_of("0123456789."));
        while (mpi.version.ends_with('.')) mpi.version.pop_back();
        return;
    }
}

void* address(std::intptr_t number) {
    return reinterpret_cast<void*>(number);
}

MpiAbi load(const std::string& hint) {
    void* handle = library_handle(hint);
    MpiAbi mpi;
    Dl_info info;
    if (dladdr(dlsym(handle, "PMPI_Isend"), &info) != 0 && info.dli_fname != nullptr)
        mpi.path = info.dli_fname;

    const auto function = [&](auto& pointer, const char* name) {
        void* address = dlsym(handle, name);
        if (address == nullptr) throw TransportError("the MPI library " + mpi.path + " lacks " + name);
        std::memcpy(&pointer, &address, sizeof pointer);
    };
    function(mpi.Initialized, "PMPI_Initialized");
    function(mpi.Finalized, "PMPI_Finalized");
    function(mpi.Query_thread, "PMPI_Query_thread");
    function(mpi.Is_thread_main, "PMPI_Is_thread_main");
    function(mpi.Error_string, "PMPI_Error_string");
    function(mpi.Comm_rank, "PMPI_Comm_rank");
    function(mpi.Comm_size, "PMPI_Comm_size");
    function(mpi.Comm_dup, "PMPI_Comm_dup");
    function(mpi.Comm_split, "PMPI_Comm_split");
    function(mpi.Comm_get_attr, "PMPI_Comm_get_attr");
    function(mpi.Comm_free, "PMPI_Comm_free");
    function(mpi.Comm_set_errhandler, "PMPI_Comm_set_errhandler");
    function(mpi.Isend, "PMPI_Isend");
    function(mpi.Irecv, "PMPI_Irecv");
    function(mpi.Test, "PMPI_Test");
    function(mpi.Cancel, "PMPI_Cancel");
    function(mpi.Request_free, "PMPI_Request_free");
    function(mpi.Get_count, "PMPI_Get_count");
    function(mpi.Ibcast, "PMPI_Ibcast");
    function(mpi.Ireduce, "PMPI_Ireduce");
    function(mpi.Iallreduce, "PMPI_Iallreduce");
    function(mpi.Ireduce_scatter, "PMPI_Ireduce_scatter");
    function(mpi.Ireduce_scatter_block, "PMPI_Ireduce_scatter_block");
    function(mpi.Iallgather, "PMPI_Iallgather");
    function(mpi.Iallgatherv, "PMPI_Iallgatherv");
    function(mpi.Igather, "PMPI_Igather");
    function(mpi.Igatherv, "PMPI_Igatherv");
    function(mpi.Iscatter, "PMPI_Iscatter");
    function(mpi.Iscatterv, "PMPI_Iscatterv");
    function(mpi.Ialltoall, "PMPI_Ialltoall");
    function(mpi.Ialltoallv, "PMPI_Ialltoallv");

    // MPICH's own library has the call too, but answers -1 unless it was built with the standard ABI.
    int abi_major = -1, abi_minor = -1;
    if (void* address = dlsym(handle, "PMPI_Abi_get_version"); address != nullptr)
        reinterpret_cast<int (*)(int*, int*)>(address)(&abi_major, &abi_minor);

    // Open MPI's predefined handles are objects; in a program linked to it the program contains them.
    const auto object = [&](const char* name) -> MpiHandle {
        void* address = dlsym(RTLD_DEFAULT, name);
        if (address == nullptr) address = dlsym(handle, name);
        if (address == nullptr) throw TransportError("the MPI library " + mpi.path + " lacks " + name);
        return reinterpret_cast<MpiHandle>(address);
    };

    mpi.undefined = -32766; // in all three ABIs
    mpi.thread_multiple = abi_major > 0 ? 4096 : 3;
    const auto set = [](auto& to, std::initializer_list<MpiHandle> handles) {
        std::ranges::copy(handles, std::begin(to));
    };
    if (abi_major > 0) { // values of the MPI 5.0 standard, appendix A
        mpi.name = "MPI-5 standard ABI";
        set(mpi.types, {0x240, 0x248, 0x250, 0x258, 0x241, 0x249, 0x251, 0x259, 0x210, 0x214, 0x212, 0x216});
        set(mpi.operations, {0x21, 0x24, 0x22, 0x23, 0x30, 0x31, 0x32, 0x28, 0x29, 0x2a});
        mpi.in_place = address(1);
        mpi.byte_type = 0x247;
        mpi.errors_return = 0x143;
        mpi.any_source = -1;
        mpi.tag_ub = 501;
    } else if (dlsym(handle, "ompi_mpi_comm_self") != nullptr) {
        mpi.name = "Open MPI";
        constexpr const char* types[] = {"int8_t",  "int16_t",  "int32_t",         "int64_t",
                                         "uint8_t", "uint16_t", "uint32_t",        "uint64_t",
                                         "float",   "double",   "c_float_complex", "c_double_complex"};
        constexpr const char* operations[] = {"sum", "prod", "min",  "max", "land",
                                              "lor", "lxor", "band", "bor", "bxor"};
        const auto named = [&](const char* name) {
            return object((std::string("ompi_mpi_") + name).c_str());
        };
        std::ranges::transform(types, mpi.types, named);
        std::ranges::transform(operations, mpi.operations,
                               [&](const char* name) { return named((std::string("op_") + name).c_str()); });
        mpi.in_place = address(1);
        mpi.byte_type = object("ompi_mpi_byte");
        mpi.errors_return = object("ompi_mpi_errors_return");
        mpi.any_source = -1;
        mpi.tag_ub = 0;
    } else { // values of the MPICH ABI initiative
        mpi.name = "MPICH";
        set(mpi.types, {0x4c000137, 0x4c000238, 0x4c000439, 0x4c00083a, 0x4c00013b, 0x4c00023c, 0x4c00043d,
                        0x4c00083e, 0x4c00040a, 0x4c00080b, 0x4c000840, 0x4c001041});
        set(mpi.operations, {0x58000003, 0x58000004, 0x58000002, 0x58000001, 0x58000005, 0x58000007,
                             0x58000009, 0x58000006, 0x58000008, 0x5800000a});
        mpi.in_place = address(-1);
        mpi.byte_type = 0x4c00010d;
        mpi.errors_return = 0x54000001;
        mpi.any_source = -2;
        mpi.tag_ub = 0x64400001;
    }

    int (*get_library_version)(char*, int*) = nullptr;
    function(get_library_version, "PMPI_Get_library_version");
    std::vector<char> text(8192, '\0'); // more than the longest of any ABI
    int length = 0;
    get_library_version(text.data(), &length);
    read_version(mpi, text.data());
    return mpi;
}

// Never freed: communicators refer to it until the process ends.
std::atomic<const MpiAbi*> in_use = nullptr;

} // namespace

std::span<const std::string_view> mpi_libraries() {
    return libraries;
}

const MpiAbi& MpiAbi::find(const std::string& hint) {
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    if (in_use == nullptr) in_use = new MpiAbi(load(hint));
    return *in_use;
}

const MpiAbi* MpiAbi::found() {
    return in_use;
}

void MpiAbi::check(int code, const char* doing) const {
    if (code == 0) return;
    std::vector<char> text(8192, '\0'); // more than the longest message of any ABI
    int length = 0;
    Error_string(code, text.data(), &length);
    throw TransportError(std::string("MPI error in ") + doing + ": " + text.data());
}

void MpiAbi::check_running() const {
    int initialized = 0;
    Initialized(&initialized);
    if (!initialized) throw TransportError("MPI (" + path + ") is loaded but not initialised");
    if (finalized()) throw TransportError("MPI (" + path + ") has been finalised already");
}

bool MpiAbi::finalized() const {
    int flag = 0;
    Finalized(&flag);
    return flag != 0;
}

bool MpiAbi::takes_threads() const {
    int level = 0;
    Query_thread(&level);
    return level >= thread_multiple;
}

bool MpiAbi::of_this_thread() const {
    int flag = 0;
    Is_thread_main(&flag);
    return flag != 0;
}

} // namespace jali
