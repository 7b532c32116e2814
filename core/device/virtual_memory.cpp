#include "device/virtual_memory.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace jali {

namespace {

constexpr int file_descriptor = 1; // the kind of handle, in both drivers

VirtualProperties properties_of(int device, bool network) {
    VirtualProperties properties;
    properties.device = device;
    properties.network = network ? 1 : 0;
    return properties;
}

int open_to(const GpuApi& api, int device, GpuAddress address, std::size_t bytes) {
    VirtualAccess access;
    access.device = device;
    return api.virtual_access(address, bytes, &access, 1);
}

SharedPiece exported(const GpuApi& api, GpuHandle handle, std::size_t bytes) {
    int number = -1;
    api.check(api.virtual_export(&number, handle, file_descriptor, 0),
              "exporting memory as a file descriptor");
    fcntl(number, F_SETFD, FD_CLOEXEC); // child programs must not inherit it
    return {Descriptor(number), bytes};
}

} // namespace

Descriptor::~Descriptor() {
    if (number_ >= 0) close(number_);
}

std::string why_no_virtual_memory(const GpuApi& api) {
    return api.lacking.empty() ? "" : "the driver lacks " + api.lacking;
}

VirtualBlock make_virtual(const GpuApi& api, int device, std::size_t bytes, bool network) {
    if (const std::string trouble = why_no_virtual_memory(api); !trouble.empty()) throw GpuError(trouble);
    const VirtualProperties properties = properties_of(device, network);
    std::size_t unit = 0;
    api.check(api.virtual_granularity(&unit, &properties, 0), "asking for the size of pages");
    VirtualBlock block;
    block.bytes = (bytes + unit - 1) / unit * unit;
    int error = api.virtual_create(&block.handle, block.bytes, &properties, 0);
    if (error == gpu_out_of_memory) return {};
    api.check(error, "making memory with a handle");
    error = api.virtual_reserve(&block.address, block.bytes, 0, 0, 0);
    if (error == gpu_success) {
        error = api.virtual_map(block.address, block.bytes, 0, block.handle, 0);
        if (error == gpu_success) {
            error = open_to(api, device, block.address, block.bytes);
            if (error == gpu_success) return block;
            api.virtual_unmap(block.address, block.bytes);
        }
        api.virtual_unreserve(block.address, block.bytes);
    }
    api.virtual_release(block.handle);
    if (error == gpu_out_of_memory) return {};
    api.fail(error, "mapping memory with a handle");
}

void unmake_virtual(const GpuApi& api, const VirtualBlock& block) noexcept {
    if (block.address == 0) return;
    api.virtual_unmap(block.address, block.bytes);
    api.virtual_unreserve(block.address, block.bytes);
    api.virtual_release(block.handle);
}

void let_use_virtual(const GpuApi& api, int device, GpuAddress address, std::size_t bytes) {
    api.check(open_to(api, device, address, bytes), "letting another device use memory");
}

SharedPiece export_virtual(const GpuApi& api, const VirtualBlock& block) {
    return exported(api, block.handle, block.bytes);
}

std::vector<SharedPiece> export_foreign(const GpuApi& api, GpuAddress address, std::size_t bytes,
                                        GpuAddress& begin) {
    if (const std::string trouble = why_no_virtual_memory(api); !trouble.empty()) throw GpuError(trouble);
    std::vector<SharedPiece> pieces;
    for (GpuAddress at = address; pieces.empty() || at < address + bytes;) {
        GpuAddress first = 0;
        std::size_t size = 0;
        GpuHandle handle = 0;
        api.check(api.address_range(&first, &size, at), "asking where memory begins");
        api.check(api.virtual_retain(&handle, first), "asking for the handle of memory");
        if (pieces.empty()) begin = first;
        try {
            pieces.push_back(exported(api, handle, size));
        } catch (...) {
            api.virtual_release(handle);
            throw;
        }
        api.virtual_release(handle);
        at = first + size;
    }
    return pieces;
}

ImportedRange import_virtual(const GpuApi& api, int device, std::span<const SharedPiece> pieces) {
    if (const std::string trouble = why_no_virtual_memory(api); !trouble.empty()) throw GpuError(trouble);
    ImportedRange range;
    std::size_t bytes = 0;
    for (const SharedPiece& piece : pieces) bytes += piece.bytes;
    api.check(api.virtual_reserve(&range.address, bytes, 0, 0, 0), "reserving addresses");
    range.reserved = bytes;
    try {
        GpuAddress at = range.address;
        for (const SharedPiece& piece : pieces) {
            GpuHandle handle = 0;
            api.check(api.import_descriptor(&handle, piece.descriptor.number()), "importing memory");
            const int error = api.virtual_map(at, piece.bytes, 0, handle, 0);
            api.virtual_release(handle); // the mapping keeps the memory
            api.check(error, "mapping imported memory");
            range.pieces.push_back(piece.bytes);
            at += piece.bytes;
        }
        api.check(open_to(api, device, range.address, bytes), "using imported memory");
    } catch (...) {
        drop_imported(api, range);
        throw;
    }
    return range;
}

void drop_imported(const GpuApi& api, const ImportedRange& range) noexcept {
    if (range.address == 0) return;
    GpuAddress at = range.address;
    for (const std::size_t bytes : range.pieces) {
        api.virtual_unmap(at, bytes);
        at += bytes;
    }
    api.virtual_unreserve(range.address, range.reserved);
}

} // namespace jali
