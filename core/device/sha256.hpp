// SHA-256 (FIPS 180-4): names of kernels in the cache, and detection of damaged files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace jali {

class Sha256 {
  public:
    using Digest = std::array<std::byte, 32>;

    Sha256& add(std::span<const std::byte> bytes);
    Sha256& add(std::string_view text) { return add(std::as_bytes(std::span(text))); }
    Digest digest(); // of all that was added; ends it

  private:
    void take_block(const std::byte* block);
    std::uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                               0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, 64> rest_{}; // of a block that is not full
    std::uint64_t bytes_ = 0;
};

std::string hexadecimal(const Sha256::Digest& digest);

} // namespace jali
