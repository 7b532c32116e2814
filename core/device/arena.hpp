// Allocates memory of the host for fields, ghosts, message buffers and scratch.
//
// Every block is aligned for any vector type, carries a label, and is counted under it, so that "out of
// memory" errors can name the request and the memory in use by label. Big blocks are mapped from the kernel
// with huge-page advice and are not touched here: the thread that first writes a page decides its NUMA node.
// It does not depend on the contents.
#pragma once

#include "device/ledger.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace jali {

class Arena;

// One block, owned. Moves, does not copy; contents are unspecified at first.
class Memory {
  public:
    Memory() = default;
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&& other) noexcept;
    ~Memory() { release(); }

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }
    bool has_own_pages() const { return mapped_ > 0; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }
    void release() noexcept;

  private:
    friend class Arena;
    Arena* arena_ = nullptr;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    void* base_ = nullptr;   // the mapping of the system, to be released
    std::size_t mapped_ = 0; // bytes mapped from the kernel; 0: from the C library
    const std::string* label_ = nullptr;
};

class Arena {
  public:
    static constexpr std::size_t alignment = 64; // a cache line, and the widest vector
    static constexpr std::size_t huge_page = std::size_t{2} << 20;

    // The arena of this process, never destroyed: blocks may outlive every static object.
    static Arena& host();

    // `bytes` aligned to `alignment`, counted under `label`; `own_pages`: on pages that nothing else is on.
    // Throws OutOfMemory.
    Memory allocate(std::size_t bytes, std::string_view label, bool own_pages = false);

    const Ledger& ledger() const { return ledger_; }

  private:
    friend class Memory;
    void free_allocation(Memory& memory) noexcept;

    Ledger ledger_;
    std::atomic<std::size_t> mappings_{0}; // how many big blocks were ever made; staggers their starts
};

} // namespace jali
