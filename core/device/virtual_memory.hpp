// Device memory that is made of a handle and a range of addresses, so that it can be exported as a file
// descriptor and mapped by another process where the driver's IPC handles do not work.
//
// The driver's functions for it may be missing: `why_no_virtual_memory` says which. The caller has made the
// device current. "Pieces" are several consecutive blocks of memory, as other libraries build theirs.
#pragma once

#include "device/gpu_api.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace jali {

// A file descriptor, owned.
class Descriptor {
  public:
    Descriptor() = default;
    explicit Descriptor(int number) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~Descriptor();
    int number() const { return number_; } // negative: none

  private:
    int number_ = -1;
};

class FdExporter; // of the transports

struct VirtualBlock {
    GpuAddress address = 0;
    std::size_t bytes = 0;
    GpuHandle handle = 0;
    mutable std::shared_ptr<FdExporter> exporter; // to other processes, if there is one
};

struct SharedPiece {
    Descriptor descriptor;
    std::size_t bytes = 0;
};

std::string why_no_virtual_memory(const GpuApi& api); // empty if the driver has all functions

// A block of at least so many bytes, which `device` reads and writes. `network`: so may adapters. An address
// of 0: out of memory. Throws GpuError.
VirtualBlock make_virtual(const GpuApi& api, int device, std::size_t bytes, bool network);
void unmake_virtual(const GpuApi& api, const VirtualBlock& block) noexcept; // when nothing uses it any more

// Lets another device of this process use a range of mapped memory. Throws GpuError.
void let_use_virtual(const GpuApi& api, int device, GpuAddress address, std::size_t bytes);

SharedPiece export_virtual(const GpuApi& api, const VirtualBlock& block); // throws GpuError
// The pieces that `bytes` bytes from `address` on lie in, of memory that another library has made; `begin` is
// where the first of them begins. Throws GpuError.
std::vector<SharedPiece> export_foreign(const GpuApi& api, GpuAddress address, std::size_t bytes,
                                        GpuAddress& begin);

// Pieces of another process's memory, mapped one behind the other for one device.
struct ImportedRange {
    GpuAddress address = 0;
    std::vector<std::size_t> pieces; // that are mapped
    std::size_t reserved = 0;
};
ImportedRange import_virtual(const GpuApi& api, int device,
                             std::span<const SharedPiece> pieces); // throws GpuError
void drop_imported(const GpuApi& api, const ImportedRange& range) noexcept;

} // namespace jali
