// memcpy, but for a trap: where a destination lies a few bytes behind its source modulo the page size, the
// string instruction that memcpy uses runs ten times slower on some processors (AMD Zen 3), and two arrays of
// a power of two in size that malloc put side by side lie just so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace jali {

// Whether this processor falls into the trap; tried once, in a fraction of a millisecond.
bool copies_slowly_behind();

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
    constexpr std::size_t page = 4096, near = 64, step = 64, brief = 2048;
    const auto behind =
        (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % page;
    if (bytes < brief || behind == 0 || behind >= near || !copies_slowly_behind()) {
        if (bytes > 0) std::memcpy(to, from, bytes);
        return;
    }
    std::size_t k = 0;
    for (; k + step <= bytes; k += step) {
        std::byte some[step]; // registers
        std::memcpy(some, from + k, step);
        std::memcpy(to + k, some, step);
    }
    std::memcpy(to + k, from + k, bytes - k);
}

} // namespace jali
