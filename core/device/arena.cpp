#include "device/arena.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include <sys/mman.h>

namespace jali {

namespace {

constexpr std::size_t big = Arena::huge_page; // from here on a block is mapped on its own

// Fields of equal size would all start in the same cache set and evict each other at equal sites; so big
// blocks start at one of 16 places, 68 lines apart: 4 sets apart in a 64-set first-level cache, and apart in
// the second level too.
constexpr std::size_t stagger_step = 68 * 64;
constexpr std::size_t stagger_places = 16;

std::string readable(std::size_t bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = static_cast<double>(bytes);
    int unit = 0;
    while (value >= 1024 && unit < 6) {
        value /= 1024;
        ++unit;
    }
    std::ostringstream text;
    text.precision(unit == 0 ? 0 : 1);
    text << std::fixed << value << ' ' << units[unit];
    return text.str();
}

// Memory that this process can still get without being killed for it, by the kernel's own estimate and the
// container's limit. The kernel promises more than it has, so asking it would only tell when it is too late.
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
    if (arena_ != nullptr) arena_->give_back(*this);
}

Arena& Arena::host() {
    static Arena* arena = new Arena;
    return *arena;
}

Memory Arena::allocate(std::size_t bytes, std::string_view label) {
    if (bytes > std::numeric_limits<std::ptrdiff_t>::max() - 2 * huge_page)
        refuse(bytes, label, "no address space is that large");
    const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    Memory memory;
    std::unique_lock lock(mutex_);
    if (rounded < big) {
        memory.base_ = std::aligned_alloc(alignment, rounded);
        if (memory.base_ == nullptr) {
            lock.unlock();
            refuse(bytes, label, "the C library has no more");
        }
        memory.data_ = static_cast<std::byte*>(memory.base_);
    } else {
        const std::size_t available = available_memory(held_);
        const std::size_t shift = mappings_++ % stagger_places * stagger_step;
        memory.mapped_ =
            rounded + shift + huge_page; // one more page, so that the start can be rounded up to one
        void* base = MAP_FAILED;
        if (rounded <= available)
            base = mmap(nullptr, memory.mapped_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) {
            const std::string why = rounded > available
                                        ? "only " + readable(available) + " are left on this machine"
                                        : std::string("the kernel says: ") + std::strerror(errno);
            lock.unlock();
            refuse(bytes, label, why);
        }
        memory.base_ = base;
        const auto start = (reinterpret_cast<std::uintptr_t>(base) + huge_page - 1) / huge_page * huge_page;
        madvise(reinterpret_cast<void*>(start), rounded + shift, MADV_HUGEPAGE); // advice: may be refused
        memory.data_ = reinterpret_cast<std::byte*>(start + shift);
    }
    memory.size_ = bytes;
    memory.arena_ = this;
    auto entry = counts_.find(label);
    if (entry == counts_.end()) entry = counts_.emplace(std::string(label), Count{}).first;
    memory.label_ = &entry->first;
    entry->second.bytes += bytes;
    entry->second.blocks += 1;
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    return memory;
}

void Arena::give_back(Memory& memory) noexcept {
    {
        std::lock_guard lock(mutex_);
        Count& count = counts_.find(*memory.label_)->second;
        count.bytes -= memory.size_;
        count.blocks -= 1;
        held_ -= memory.size_;
    }
    if (memory.mapped_ > 0)
        munmap(memory.base_, memory.mapped_);
    else
        std::free(memory.base_);
    memory.arena_ = nullptr;
    memory.data_ = nullptr;
    memory.base_ = nullptr;
    memory.size_ = memory.mapped_ = 0;
}

void Arena::refuse(std::size_t bytes, std::string_view label, const std::string& why) const {
    std::ostringstream text;
    text << "out of memory: '" << label << "' asked for " << readable(bytes) << ", but " << why
         << "; jali holds " << readable(held());
    const auto all = usage();
    for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), 8); ++i)
        text << (i == 0 ? " (" : ", ") << all[i].label << ": " << readable(all[i].bytes) << " in "
             << all[i].blocks << (all[i].blocks == 1 ? " block" : " blocks");
    if (!all.empty()) text << (all.size() > 8 ? ", ...)" : ")");
    throw OutOfMemory(text.str());
}

std::size_t Arena::held() const {
    std::lock_guard lock(mutex_);
    return held_;
}

std::size_t Arena::peak() const {
    std::lock_guard lock(mutex_);
    return peak_;
}

std::vector<Arena::Usage> Arena::usage() const {
    std::vector<Usage> all;
    {
        std::lock_guard lock(mutex_);
        for (const auto& [label, count] : counts_)
            if (count.blocks > 0) all.push_back({label, count.bytes, count.blocks});
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Usage& a, const Usage& b) { return a.bytes > b.bytes; });
    return all;
}

} // namespace jali
