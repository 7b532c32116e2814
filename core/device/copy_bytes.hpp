// memcpy without a slow case: where a destination lies a few bytes after its source modulo the page size, the
// string instruction of memcpy runs ten times slower on some processors (AMD Zen 3), and two adjacent arrays
// from malloc whose size is a power of two have such a distance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace jali {

// Whether this processor has the slow case; measured once, in a fraction of a millisecond.
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
