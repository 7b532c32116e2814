#include "device/kernel_module.hpp"

#include <dlfcn.h>

namespace jali {

KernelModule::KernelModule(const std::string& path) : path_(path) {
    // Without a slash the loader would search its own path.
    const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
    handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
        const char* why = dlerror();
        throw ModuleError("cannot load the compiled kernel " + path + ": " + (why ? why : "unknown reason"));
    }
}

void* KernelModule::symbol(const std::string& name) const {
    void* address = dlsym(handle_, name.c_str());
    if (address == nullptr)
        throw ModuleError("the compiled kernel " + path_ + " has no function '" + name +
                          "'; it was made by another version or edited, delete it to have it compiled again");
    return address;
}

} // namespace jali
