// Memory of devices for MPI programs that tests start: by the driver that TEST_DRIVER names ("cuda" or "hip"
// in TEST_KIND), as a program would get it that knows nothing of jali.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>

namespace test {

using Address = std::uint64_t;

struct Driver {
    int (*init)(unsigned);
    int (*count)(int*);
    int (*retain)(void**, int);
    int (*set)(void*);
    int (*current)(void**);
    int (*allocate)(Address*, std::size_t);
    int (*release)(Address);
    int (*in)(Address, const void*, std::size_t, void*);
    int (*out)(void*, Address, std::size_t, void*);
    int (*wait)(void*);
    int devices = 0;
    void* context = nullptr;

    // That of a rank, where there are fewer devices of one that it shares. Null: the test has no devices.
    static Driver* of(int rank) {
        static Driver driver;
        static bool tried = false;
        const char* path = std::getenv("TEST_DRIVER");
        if (path == nullptr || *path == '\0') return nullptr;
        if (tried) return &driver;
        tried = true;
        void* library = dlopen(path, RTLD_NOW);
        if (library == nullptr) {
            std::fprintf(stderr, "no driver: %s\n", dlerror());
            std::abort();
        }
        const char* kind = std::getenv("TEST_KIND");
        const bool hip = kind != nullptr && std::string(kind) == "hip";
        const auto find = [&](auto& function, const char* cuda_name, const char* hip_name) {
            void* address = dlsym(library, hip ? hip_name : cuda_name);
            if (address == nullptr) std::abort();
            std::memcpy(&function, &address, sizeof address);
        };
        find(driver.init, "cuInit", "hipInit");
        find(driver.count, "cuDeviceGetCount", "hipGetDeviceCount");
        find(driver.retain, "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain");
        find(driver.set, "cuCtxSetCurrent", "hipCtxSetCurrent");
        find(driver.current, "cuCtxGetCurrent", "hipCtxGetCurrent");
        find(driver.allocate, "cuMemAlloc_v2", "hipMalloc");
        find(driver.release, "cuMemFree_v2", "hipFree");
        find(driver.in, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync");
        find(driver.out, "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync");
        find(driver.wait, "cuStreamSynchronize", "hipStreamSynchronize");
        check(driver.init(0));
        check(driver.count(&driver.devices));
        check(driver.retain(&driver.context, rank % driver.devices));
        check(driver.set(driver.context));
        return &driver;
    }
    static void check(int error) {
        if (error == 0) return;
        std::fprintf(stderr, "the driver says %d\n", error);
        std::abort();
    }
};

// Bytes on the host, or on a device.
class Buffer {
  public:
    Buffer(Driver* driver, const std::vector<unsigned char>& contents)
        : driver_(driver), size_(contents.size()) {
        if (driver_ == nullptr) {
            host_ = contents;
        } else {
            Driver::check(driver_->allocate(&address_, size_ + 1));
            if (size_ > 0) Driver::check(driver_->in(address_, contents.data(), size_, nullptr));
            Driver::check(driver_->wait(nullptr));
        }
    }
    ~Buffer() {
        if (driver_ != nullptr) driver_->release(address_);
    }
    Buffer(const Buffer&) = delete;
    unsigned char* data() {
        return driver_ == nullptr ? host_.data() : reinterpret_cast<unsigned char*>(address_);
    }
    void assign(const std::vector<unsigned char>& contents) { // of the same length
        if (driver_ == nullptr) {
            std::memcpy(host_.data(), contents.data(), size_); // it stays where it is
        } else if (size_ > 0) {
            Driver::check(driver_->in(address_, contents.data(), size_, nullptr));
            Driver::check(driver_->wait(nullptr));
        }
    }
    std::vector<unsigned char> contents() const {
        if (driver_ == nullptr) return host_;
        std::vector<unsigned char> all(size_);
        if (size_ > 0) Driver::check(driver_->out(all.data(), address_, size_, nullptr));
        Driver::check(driver_->wait(nullptr));
        return all;
    }

  private:
    Driver* driver_;
    std::size_t size_;
    std::vector<unsigned char> host_;
    Address address_ = 0;
};

} // namespace test
