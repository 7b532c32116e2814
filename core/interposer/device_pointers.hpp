// Whether an address is one of a device's memory, and whose. No driver is loaded or initialised for that: one
// that the program has not loaded has given it no memory.
#pragma once

#include "device/gpu.hpp"

#include <memory>

namespace jali::interposer {

struct DeviceMemory {
    std::shared_ptr<Gpu> gpu; // null: it is the host's
    void* context = nullptr;  // that it was made in
};

// Whether a driver of devices is loaded. Looking costs some 50 ns and is done at the beginning of a call; the
// other tells what was found.
bool find_driver();
bool has_driver() noexcept;

// Memory that is managed (seen by host and devices) counts as the host's. `on_device` costs one question to
// the driver; the other opens the device if need be: throws GpuError.
bool on_device(const void* address);
DeviceMemory device_memory(const void* address);

// Whether it was made in the device's own context, which jali's plans use, too.
bool in_own_context(const DeviceMemory& memory);

// Of this thread, of all drivers that are loaded: made current again at the end. Whatever jali does with
// devices in a call, the context that was current for the caller is so afterwards.
class CurrentContexts {
  public:
    CurrentContexts();
    ~CurrentContexts();
    CurrentContexts(const CurrentContexts&) = delete;

  private:
    static constexpr int most = 4;
    void* contexts_[most] = {};
    bool known_[most] = {};
};

// Until the end of its life the context of this memory is current; then the caller's is again.
class InContextOf {
  public:
    explicit InContextOf(const DeviceMemory& memory);
    ~InContextOf();
    InContextOf(const InContextOf&) = delete;

  private:
    const GpuApi& api_;
    void* before_ = nullptr;
};

} // namespace jali::interposer
