// Whether an address is in a device's memory, and in which device's. No driver is loaded or initialised for
// the test: the program has no memory of a driver that it has not loaded.
#pragma once

#include "device/gpu.hpp"

#include <memory>

namespace jali::interposer {

struct DeviceMemory {
    std::shared_ptr<Gpu> gpu; // null: it is the host's
    void* context = nullptr;  // that it was made in
};

// Whether a driver of devices is loaded. The search costs some 50 ns and is made at the beginning of a call;
// the other function returns its result.
bool find_driver();
bool has_driver() noexcept;

// Memory that is managed (seen by host and devices) counts as the host's. `on_device` costs one driver call;
// the other opens the device if necessary: throws GpuError.
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
