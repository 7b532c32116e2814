// A vendor's run-time compiler, found at run time: NVRTC or hipRTC, by the names that its entry has.
//
// No toolkit is needed. NVRTC compiles for any NVIDIA architecture on a machine that has no GPU; AMD's side
// has never run on hardware.
#pragma once

#include "device/kernel_files.hpp"
#include "device/vendor.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace jali {

class GpuCompiler {
  public:
    // The vendor's compiler, loaded once; the vendor's setting names another file than the usual ones. Throws
    // CompileError that names the searched files and what to install.
    static const GpuCompiler& get(const GpuVendor& vendor);
    static std::string why_not(const GpuVendor& vendor); // the first line of that error; empty: there is one

    const std::string& kind() const { return vendor_.name; }
    const std::string& path() const { return path_; }
    const std::string& version() const { return version_; } // "12.8"
    std::string identity() const;                           // changes when it may make other code

    // Machine code of `source` for an architecture such as "sm_90" (empty: the compiler asks the device).
    // Throws CompileError with the compiler's text and the source lines that it refers to. One at a time.
    std::vector<std::byte> compile(const std::string& source, const std::string& name,
                                   const std::string& architecture,
                                   std::span<const std::string> options = {}) const;

  private:
    GpuCompiler(const GpuVendor& vendor, const std::string& path);
    std::string log_of(void* program) const;

    const GpuVendor& vendor_;
    std::string path_, version_;
    // All return 0 for success.
    int (*ask_version_)(int* major, int* minor) = nullptr;
    int (*create_)(void** program, const char* source, const char* name, int headers,
                   const char* const* texts, const char* const* names) = nullptr;
    int (*compile_)(void* program, int count, const char* const* options) = nullptr;
    int (*log_size_)(void* program, std::size_t* size) = nullptr;
    int (*log_)(void* program, char* text) = nullptr;
    int (*code_size_)(void* program, std::size_t* size) = nullptr;
    int (*code_)(void* program, char* code) = nullptr;
    int (*destroy_)(void** program) = nullptr;
};

} // namespace jali
