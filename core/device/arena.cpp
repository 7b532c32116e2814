#include "device/arena.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include <sys/mman.h>

namespace jali {

namespace {

constexpr std::size_t big = Arena::huge_page; // from here on a block is mapped on its own

// Fields of equal size would all start in the same cache set and evict each other at equal sites; so big
// blocks start at one of 16 places, 68 lines apart: 4 sets apart in a 64-set first-level cache, and apart in
// the second level too.
constexpr std::size_t stagger_step = 68 * 64;
constexpr std::size_t stagger_slots = 16;

// Memory that this process can still use without being killed, by the kernel's own estimate and the
// container's limit. The kernel overcommits memory, so a failed allocation would be reported too late.
std::size_t available_memory(std::size_t held) {
    std::size_t available = std::numeric_limits<std::size_t>::max();
    std::ifstream meminfo("/proc/meminfo");
    std::string key, unit;
    std::size_t kib = 0, free_swap = 0, free_memory = 0;
    while (meminfo >> key >> kib) {
        std::getline(meminfo, unit);
        if (key == "MemAvailable:") free_memory = kib * 1024;
        if (key == "SwapFree:") free_swap = kib * 1024;
    }
    if (free_memory > 0) available = free_memory + free_swap;
    for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
        std::size_t limit = 0; // the word "max" does not parse: no limit
        if (std::ifstream(file) >> limit) available = std::min(available, limit > held ? limit - held : 0);
    }
    return available;
}

} // namespace

Memory::Memory(Memory&& other) noexcept {
    *this = std::move(other);
}

Memory& Memory::operator=(Memory&& other) noexcept {
    if (this != &other) {
        release();
        arena_ = std::exchange(other.arena_, nullptr);
        data_ = std::exchange(other.data_, nullptr);
        size_ = std::exchange(other.size_, 0);
        base_ = std::exchange(other.base_, nullptr);
        mapped_ = std::exchange(other.mapped_, 0);
        label_ = std::exchange(other.label_, nullptr);
    }
    return *this;
}

void Memory::release() noexcept {
    if (arena_ != nullptr) arena_->free_allocation(*this);
}

Arena& Arena::host() {
    static Arena* arena = new Arena;
    return *arena;
}

Memory Arena::allocate(std::size_t bytes, std::string_view label, bool own_pages) {
    if (bytes > std::numeric_limits<std::ptrdiff_t>::max() - 2 * huge_page)
        ledger_.refuse(bytes, label, "no address space is that large");
    const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    Memory memory;
    if (rounded < big && !own_pages) {
        memory.base_ = std::aligned_alloc(alignment, rounded);
        if (memory.base_ == nullptr) {
            ledger_.refuse(bytes, label, "the C library has no more");
        }
        memory.data_ = static_cast<std::byte*>(memory.base_);
    } else {
        const std::size_t available = available_memory(ledger_.held());
        const std::size_t shift = mappings_++ % stagger_slots * stagger_step;
        memory.mapped_ =
            rounded + shift + huge_page; // one more page, so that the start can be rounded up to one
        void* base = MAP_FAILED;
        if (rounded <= available)
            base = mmap(nullptr, memory.mapped_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) {
            const std::string why = rounded > available
                                        ? "only " + readable_bytes(available) + " are left on this machine"
                                        : std::string("the kernel says: ") + std::strerror(errno);
            ledger_.refuse(bytes, label, why);
        }
        memory.base_ = base;
        const auto start = (reinterpret_cast<std::uintptr_t>(base) + huge_page - 1) / huge_page * huge_page;
        madvise(reinterpret_cast<void*>(start), rounded + shift, MADV_HUGEPAGE); // advice: may be refused
        memory.data_ = reinterpret_cast<std::byte*>(start + shift);
    }
    memory.size_ = bytes;
    memory.arena_ = this;
    memory.label_ = ledger_.book(bytes, label);
    return memory;
}

void Arena::free_allocation(Memory& memory) noexcept {
    ledger_.strike(memory.size_, memory.label_);
    if (memory.mapped_ > 0)
        munmap(memory.base_, memory.mapped_);
    else
        std::free(memory.base_);
    memory.arena_ = nullptr;
    memory.data_ = nullptr;
    memory.base_ = nullptr;
    memory.size_ = memory.mapped_ = 0;
}

} // namespace jali
