// Memory of the host: where fields, ghosts, message buffers and scratch come from.
//
// Every block is aligned for any vector type, carries a label, and is counted under it, so that "out of
// memory" can say who asked for how much and who holds what. Big blocks come straight from the kernel with
// huge-page advice and are not touched here: the thread that writes a page first decides where it lives. It
// knows nothing of what is stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace jali {

struct OutOfMemory : std::runtime_error {
    using std::runtime_error::runtime_error;
};

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
    void* base_ = nullptr;   // what the system gave, to be handed back
    std::size_t mapped_ = 0; // bytes mapped from the kernel; 0: from the C library
    const std::string* label_ = nullptr;
};

class Arena {
  public:
    static constexpr std::size_t alignment = 64; // a cache line, and the widest vector
    static constexpr std::size_t huge_page = std::size_t{2} << 20;

    struct Usage {
        std::string label;
        std::size_t bytes;
        std::size_t blocks;
    };

    // The arena of this process, never destroyed: blocks may outlive every static object.
    static Arena& host();

    // `bytes` aligned to `alignment`, counted under `label`. Throws OutOfMemory.
    Memory allocate(std::size_t bytes, std::string_view label);

    std::size_t held() const;         // bytes in use now
    std::size_t peak() const;         // most bytes ever in use at once
    std::vector<Usage> usage() const; // by label, largest first; labels without blocks are left out

  private:
    friend class Memory;
    struct Count {
        std::size_t bytes = 0;
        std::size_t blocks = 0;
    };
    void give_back(Memory& memory) noexcept;
    [[noreturn]] void refuse(std::size_t bytes, std::string_view label, const std::string& why) const;

    mutable std::mutex mutex_;
    std::map<std::string, Count, std::less<>> counts_; // node-based: labels keep their address
    std::size_t held_ = 0;
    std::size_t peak_ = 0;
    std::size_t mappings_ = 0; // how many big blocks were ever made; staggers their starts
};

} // namespace jali
