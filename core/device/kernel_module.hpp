// A compiled kernel in memory: a shared object and its entry points.
//
// A module stays loaded until the process ends, because schedules hold its entry points. Loading the same
// file twice is cheap and gives the same entry points. It does not depend on how the file was made.
#pragma once

#include <stdexcept>
#include <string>

namespace jali {

// A file that cannot be loaded, or lacks a symbol.
struct ModuleError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class KernelModule {
  public:
    explicit KernelModule(const std::string& path); // throws ModuleError
    void* symbol(const std::string& name) const;    // address of an entry point; throws ModuleError
    const std::string& path() const { return path_; }

  private:
    std::string path_;
    void* handle_;
};

} // namespace jali
