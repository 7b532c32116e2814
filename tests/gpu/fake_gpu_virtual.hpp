// The fake driver's memory with handles: made of files in memory, so that other processes can map it.
// Part of fake_gpu.cpp and included nowhere else; left out with WITHOUT_VIRTUAL_MEMORY, as in old drivers.
#pragma once
#include "fake_gpu_state.hpp"

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef WITHOUT_VIRTUAL_MEMORY
API hipDriverGetVersion(int* version);

struct Properties {
    int kind, handle_kind, location, device;
    void* unused;
    unsigned char flags[8];
};
struct Access {
    int location, device, rights;
};
std::shared_ptr<Physical> physical(std::size_t bytes, int file, int device, std::size_t charged) {
    return std::shared_ptr<Physical>(new Physical{bytes, file, device, charged});
}
std::uint64_t hand_out(std::shared_ptr<Physical> memory) {
    handles[++last_handle] = {std::move(memory), 1};
    return last_handle;
}

BOTH(cuMemGetAllocationGranularity, hipMemGetAllocationGranularity,
     (std::size_t* bytes, const Properties* properties, int which), (bytes, properties, which)) {
    if (number("JALI_FAKE_NO_VIRTUAL", 0)) return 801;
    if (properties->location != 1 || which != 0) return 1;
    *bytes = virtual_unit;
    return 0;
}
BOTH(cuMemCreate, hipMemCreate,
     (std::uint64_t* handle, std::size_t bytes, const Properties* properties, unsigned long long flags),
     (handle, bytes, properties, flags)) {
    GUARD;
    if (number("JALI_FAKE_NO_VIRTUAL", 0) || number("JALI_FAKE_NO_PEERS", 0)) return 801;
    if (flags || bytes == 0 || bytes % virtual_unit || properties->kind != 1 || properties->location != 1 ||
        properties->handle_kind != 1)
        return 1;
    if (in_use + bytes > device_bytes()) return 2;
    const int file = memfd_create("device memory with a handle", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return 2;
    in_use += bytes;
    *handle = hand_out(physical(bytes, file, properties->device, bytes));
    return 0;
}
BOTH(cuMemRelease, hipMemRelease, (std::uint64_t handle), (handle)) {
    GUARD;
    const auto found = handles.find(handle);
    if (found == handles.end()) return 1;
    if (--found->second.second == 0) handles.erase(found);
    return 0;
}
BOTH(cuMemAddressReserve, hipMemAddressReserve,
     (Address * address, std::size_t bytes, std::size_t alignment, Address wish, unsigned long long flags),
     (address, bytes, alignment, wish, flags)) {
    GUARD;
    (void)alignment;
    (void)wish;
    if (flags || bytes == 0 || bytes % virtual_unit) return 1;
    void* location = take_range(bytes);
    if (location == nullptr) return 2;
    *address = reinterpret_cast<Address>(location);
    reserved[*address] = bytes;
    return 0;
}
BOTH(cuMemAddressFree, hipMemAddressFree, (Address address, std::size_t bytes), (address, bytes)) {
    GUARD;
    const auto found = reserved.find(address);
    if (found == reserved.end() || found->second != bytes) return 1;
    const auto inside = virtuals.lower_bound(address);
    if (inside != virtuals.end() && inside->first < address + bytes) return 1; // still mapped
    leave_range(reinterpret_cast<void*>(address), bytes);
    reserved.erase(found);
    return 0;
}
BOTH(cuMemMap, hipMemMap,
     (Address address, std::size_t bytes, std::size_t offset, std::uint64_t handle, unsigned long long flags),
     (address, bytes, offset, handle, flags)) {
    GUARD;
    const auto found = handles.find(handle);
    auto range = reserved.upper_bound(address);
    if (found == handles.end() || offset || flags || range == reserved.begin()) return 1;
    --range;
    const auto& memory = found->second.first;
    if (address + bytes > range->first + range->second || bytes != memory->bytes) return 1;
    if (mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->file, 0) ==
        MAP_FAILED)
        return 1;
    virtuals[address] = {bytes, memory, handle};
    return 0;
}
BOTH(cuMemUnmap, hipMemUnmap, (Address address, std::size_t bytes), (address, bytes)) {
    GUARD; // unlike cuMemFree it waits for nothing
    const auto found = virtuals.find(address);
    if (found == virtuals.end() || found->second.bytes != bytes) return 1;
    clear_range(reinterpret_cast<void*>(address), bytes);
    virtuals.erase(found);
    return 0;
}
BOTH(cuMemSetAccess, hipMemSetAccess,
     (Address address, std::size_t bytes, const Access* access, std::size_t count),
     (address, bytes, access, count)) {
    GUARD;
    if (count != 1 || access->location != 1 || access->rights != 3) return 1;
    for (Address at = address; at < address + bytes;) {
        const auto found = virtuals.find(at);
        if (found == virtuals.end()) return 1;
        Virtual& range = found->second;
        if (range.devices == 0) {
            mprotect(reinterpret_cast<void*>(at), range.bytes, PROT_READ | PROT_WRITE);
            if (range.memory->charged) // ours: nobody may count on zeros
                std::memset(reinterpret_cast<void*>(at), 0xcb, range.bytes);
        }
        range.devices |= std::uint64_t{1} << access->device;
        at += range.bytes;
    }
    return 0;
}
BOTH(cuMemExportToShareableHandle, hipMemExportToShareableHandle,
     (void* shared, std::uint64_t handle, int kind, unsigned long long flags),
     (shared, handle, kind, flags)) {
    GUARD;
    const auto found = handles.find(handle);
    if (found == handles.end() || kind != 1 || flags) return 1;
    const int copy = dup(found->second.first->file);
    if (copy < 0) return 304;
    *static_cast<int*>(shared) = copy;
    return 0;
}
int import_file(std::uint64_t* handle, int file) {
    GUARD;
    struct stat status;
    if (number("JALI_FAKE_NO_VIRTUAL_IMPORT", 0)) return 801;
    if (fstat(file, &status) != 0 || status.st_size == 0 || status.st_size % virtual_unit) return 1;
    const int copy = fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return 304;
    *handle = hand_out(physical(static_cast<std::size_t>(status.st_size), copy, -1, 0));
    return 0;
}
API cuMemImportFromShareableHandle(std::uint64_t* handle, void* shared, int kind) {
    return kind == 1 ? import_file(handle, static_cast<int>(reinterpret_cast<std::intptr_t>(shared))) : 1;
}
API hipMemImportFromShareableHandle(std::uint64_t* handle, void* shared, int kind) {
    if (kind != 1) return 1;
    int version;
    hipDriverGetVersion(&version);
    const auto number = reinterpret_cast<std::intptr_t>(shared);
    return import_file(handle, version < 70100000 ? *static_cast<int*>(shared) : static_cast<int>(number));
}
BOTH(cuMemRetainAllocationHandle, hipMemRetainAllocationHandle, (std::uint64_t* handle, Address address),
     (handle, address)) {
    GUARD;
    const auto found = virtual_at(address);
    if (found == virtuals.end()) return 1;
    auto& holders = handles[found->second.handle]; // the same number, also if it was released before
    holders.first = found->second.memory;
    ++holders.second;
    *handle = found->second.handle;
    return 0;
}
BOTH(cuMemGetAddressRange_v2, hipMemGetAddressRange, (Address * begin, std::size_t* bytes, Address address),
     (begin, bytes, address)) {
    GUARD;
    const auto handled = virtual_at(address);
    if (handled != virtuals.end()) { // one mapping, though others may follow at once
        *begin = handled->first;
        *bytes = handled->second.bytes;
        return 0;
    }
    auto ours = blocks.upper_bound(address);
    if (ours == blocks.begin() || (--ours, address >= ours->first + ours->second.bytes)) return 1;
    *begin = ours->first;
    *bytes = ours->second.bytes;
    return 0;
}

#endif
