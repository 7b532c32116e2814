// Kernels for devices, compiled when they are first needed and kept in the cache (kernel_files.hpp).
//
// The key of an image covers the compiler and its version, the architecture, the digest of the prelude and
// the text, so nothing there is ever stale. What is loaded on a device stays, as devices do.
#pragma once

#include "device/gpu.hpp"
#include "device/kernel_files.hpp"

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace jali {

struct KernelText {
    std::string defines; // lines in front of the prelude
    std::string text;    // behind it
};

// The builtin kernels, which need no site function.
KernelText builtin_text();

struct KernelImage {
    std::vector<std::byte> code;
    std::filesystem::path source; // in the cache
};

// Machine code for a device. Throws CompileError: no compiler, rejected text, unusable cache.
KernelImage kernel_image(const Gpu& gpu, const std::string& name, const KernelText& kernel);

struct LoadedKernel {
    GpuFunction function;
    std::filesystem::path source;
    bool found; // it had been loaded before
};

// The function `entry` of a kernel, on the device. Throws CompileError; GpuError where the device does not
// take the code.
LoadedKernel load_kernel(Gpu& gpu, const std::string& name, const KernelText& kernel,
                         const std::string& entry);

} // namespace jali
