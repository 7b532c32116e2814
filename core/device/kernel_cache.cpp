#include "device/kernel_cache.hpp"
#include "device/gpu_compiler.hpp"
#include "device/prelude.hpp"

#include <array>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <tuple>
#include <utility>

namespace jali {

namespace {

namespace fs = std::filesystem;

constexpr const char* format = "4"; // of the key and of what is compiled; another one is another key

std::string key_of(const Gpu& gpu, const GpuCompiler& compiler, const std::string& name,
                   const KernelText& kernel) {
    // a compiler that queries the device itself may find another one in a later run
    const std::string architecture = gpu.architecture();
    const std::array<std::string, 6> parts = {
        format,
        compiler.identity(),
        architecture.empty() ? gpu.name() + " " + gpu.identity() : architecture,
        kernel.defines,
        gpu_prelude_digest(),
        without_comments(kernel.text)};
    return cache_key(name, parts);
}

KernelImage image_in(const fs::path& directory, const std::string& key, const Gpu& gpu,
                     const GpuCompiler& compiler, const std::string& name, const KernelText& kernel) {
    CachedKernel cached;
    cached.source = directory / (key + ".cu");
    cached.result = directory / (key + ".bin");
    cached.text = kernel.defines + "\n" + kernel.text;
    cached.compile = [&](const fs::path& source, const fs::path& target) {
        std::stringstream text;
        text << std::ifstream(source, std::ios::binary).rdbuf();
        write_whole(target, compiler.compile(with_gpu_prelude(text.str()), name, gpu.architecture()));
    };
    return {compiled(cached), cached.source};
}

} // namespace

KernelText builtin_text() {
    return {
        "#define JALI_LANES 1\n#define JALI_REAL double\n#define JALI_THREADS 256\n#define JALI_BLOCKS 1\n",
        prelude_of({"signals", "halos", "builtin", "messages"})};
}

KernelImage kernel_image(const Gpu& gpu, const std::string& name, const KernelText& kernel) {
    const GpuCompiler& compiler = GpuCompiler::get(gpu.vendor());
    return image_in(cache_directory(), key_of(gpu, compiler, name, kernel), gpu, compiler, name, kernel);
}

LoadedKernel load_kernel(Gpu& gpu, const std::string& name, const KernelText& kernel,
                         const std::string& entry) {
    static std::mutex mutex;
    using Key = std::tuple<const Gpu*, std::string, std::string>;
    static auto& loaded = *new std::map<Key, GpuFunction>; // never destroyed, as devices are not
    const GpuCompiler& compiler = GpuCompiler::get(gpu.vendor());
    const fs::path directory = cache_directory();
    const std::string file = key_of(gpu, compiler, name, kernel);
    const Key key{&gpu, (directory / file).string(), entry};
    fs::path source = directory / (file + ".cu");
    {
        std::lock_guard lock(mutex);
        if (const auto found = loaded.find(key); found != loaded.end())
            return {found->second, std::move(source), true};
    }
    // Without the lock: a driver may wait for its device before it loads, where a kernel may wait for the
    // device of another thread, which would wait here.
    const KernelImage image = image_in(directory, file, gpu, compiler, name, kernel);
    GpuFunction function = gpu.function(image.code, entry);
    std::lock_guard lock(mutex);
    return {loaded.emplace(key, std::move(function)).first->second, std::move(source), false};
}

} // namespace jali
