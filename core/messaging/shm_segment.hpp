// Memory that a process shares with others of its host, found by a name for a moment only.
//
// The owner makes it without a name, locks it, and only then names it; the name is removed once all peers
// have mapped the segment. The lock lasts as long as the owner's process and can be tested by processes that
// mapped the segment, in any process namespace. A name whose file is not locked was left by a process that
// was killed in between, and is removed by the next process that makes a segment.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include <sys/types.h>

namespace jali::shm {

class Segment {
  public:
    Segment() = default;
    Segment(Segment&& other) noexcept { swap(other); }
    Segment& operator=(Segment&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Segment();

    // A new segment of zeros, all pages allocated. Throws TransportError that names what the system lacks.
    static Segment create(std::size_t bytes);

    // Another process's segment; empty if this process finds no such name or may not open it, or the file
    // does not contain the nonce.
    static Segment open(const std::string& name, std::uint64_t nonce, std::size_t bytes);

    explicit operator bool() const { return memory_ != nullptr; }
    std::byte* data() const { return memory_ + header_bytes; } // aligned to a cache line
    std::size_t size() const { return bytes_; }
    const std::string& name() const { return name_; }
    std::uint64_t nonce() const;
    void remove_name() noexcept; // the owner, once; done at the latest with the segment itself

    bool owner_lives() const; // whether the process that made it still runs

    static constexpr std::size_t header_bytes = 64;

  private:
    void swap(Segment& other) noexcept;
    bool map();

    int file_ = -1;
    std::byte* memory_ = nullptr;
    std::size_t bytes_ = 0;
    std::string name_;
    pid_t owner_ = 0; // this process if it made the segment, else 0
    bool named_ = false;
};

} // namespace jali::shm
