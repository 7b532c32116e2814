#include "messaging/mpi_devices.hpp"
#include "device/vendor.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <vector>

#include <dlfcn.h>

namespace jali {

namespace {

// The memory kinds of MPI 4.1: a list such as "system,mpi,cuda:device:managed".
bool names_memory_kind(const std::string& list, const std::string& kind) {
    for (std::size_t at = 0; at < list.size();) {
        const auto comma = std::min(list.find(',', at), list.size());
        const std::string one = list.substr(at, comma - at);
        if (one.substr(0, one.find(':')) == kind) return true;
        at = comma + 1;
    }
    return false;
}

class Questions {
  public:
    explicit Questions(const MpiAbi& mpi) : handle_(dlopen(mpi.path.c_str(), RTLD_NOW | RTLD_NOLOAD)) {}

    template <class Function>
    Function* find(const char* name) const {
        void* address = handle_ != nullptr ? dlsym(handle_, name) : nullptr;
        if (address == nullptr) address = dlsym(RTLD_DEFAULT, name);
        return reinterpret_cast<Function*>(address);
    }

    // Open MPI and MPICH: int MPIX_Query_..._support(void).
    bool says(const char* name) const {
        auto* ask = find<int()>(name);
        return ask != nullptr && ask() == 1;
    }

    // MPICH: MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA and the like, flag).
    bool says_of_kind(int number) const {
        auto* ask = find<int(int, int*)>("MPIX_GPU_query_support");
        int supported = 0;
        return ask != nullptr && ask(number, &supported) == 0 && supported != 0;
    }

    std::string memory_kinds(MpiHandle communicator) const {
        auto* get_info = find<int(MpiHandle, MpiHandle*)>("PMPI_Comm_get_info");
        auto* get = find<int(MpiHandle, const char*, int, char*, int*)>("PMPI_Info_get");
        auto* free_info = find<int(MpiHandle*)>("PMPI_Info_free");
        MpiHandle info = 0;
        if (get_info == nullptr || get == nullptr || free_info == nullptr ||
            get_info(communicator, &info) != 0)
            return "";
        std::vector<char> value(1024, '\0');
        int there = 0;
        const int error =
            get(info, "mpi_memory_alloc_kinds", static_cast<int>(value.size()) - 1, value.data(), &there);
        free_info(&info);
        return error == 0 && there != 0 ? value.data() : "";
    }

  private:
    void* handle_; // stays open, like the library
};

} // namespace

std::string why_mpi_takes_no_devices(const MpiAbi& mpi, MpiHandle communicator, const std::string& kind) {
    const Settings& set = settings();
    if (set.gpu_aware_mpi == "1") return "";
    if (set.gpu_aware_mpi == "0")
        return "JALI_GPU_AWARE_MPI=0 says that the MPI library takes no device memory";
    const GpuVendor& vendor = vendor_named(kind);
    const Questions questions(mpi);
    for (const std::string& query : vendor.mpi_queries)
        if (questions.says(query.c_str())) return "";
    if (vendor.mpi_number >= 0 && questions.says_of_kind(vendor.mpi_number)) return "";
    const std::string& memory = vendor.mpi_memory_kind;
    if (!memory.empty() && names_memory_kind(questions.memory_kinds(communicator), memory)) return "";
    // Cray's and Ohio's libraries get it as a setting and offer no query.
    if (set.mpich_gpu_support_enabled == "1") return "";
    if (!vendor.mpi_setting.empty() && text_of_setting(vendor.mpi_setting) == "1") return "";
    return "the MPI library (" + mpi.name + ", " + mpi.path + ") does not say that it takes " + kind +
           " memory; use one that was built for it, or set JALI_GPU_AWARE_MPI=1 if this one was";
}

} // namespace jali
