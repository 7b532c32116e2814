#include "device/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace jali {

namespace {

constexpr std::uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

} // namespace

void Sha256::take_block(const std::byte* block) {
    std::uint32_t w[64];
    for (int k = 0; k < 16; ++k) {
        w[k] = 0;
        for (int b = 0; b < 4; ++b) w[k] = w[k] << 8 | static_cast<std::uint32_t>(block[4 * k + b]);
    }
    for (int k = 16; k < 64; ++k) {
        const std::uint32_t a = w[k - 15], e = w[k - 2];
        w[k] = w[k - 16] + w[k - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
               (std::rotr(e, 17) ^ std::rotr(e, 19) ^ e >> 10);
    }
    std::uint32_t a = state_[0], b = state_[1], c = state_[2], d = state_[3];
    std::uint32_t e = state_[4], f = state_[5], g = state_[6], h = state_[7];
    for (int k = 0; k < 64; ++k) {
        const std::uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                  ((e & f) ^ (~e & g)) + constants[k] + w[k];
        const std::uint32_t two =
            (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + one;
        d = c, c = b, b = a, a = one + two;
    }
    const std::uint32_t more[] = {a, b, c, d, e, f, g, h};
    for (int k = 0; k < 8; ++k) state_[k] += more[k];
}

Sha256& Sha256::add(std::span<const std::byte> bytes) {
    std::size_t held = bytes_ % 64;
    bytes_ += bytes.size();
    while (!bytes.empty()) {
        if (held == 0 && bytes.size() >= 64) {
            take_block(bytes.data());
            bytes = bytes.subspan(64);
            continue;
        }
        const std::size_t more = std::min(64 - held, bytes.size());
        std::memcpy(rest_.data() + held, bytes.data(), more);
        bytes = bytes.subspan(more);
        if ((held += more) < 64) break;
        take_block(rest_.data());
        held = 0;
    }
    return *this;
}

Sha256::Digest Sha256::digest() {
    const std::uint64_t bits = 8 * bytes_;
    std::array<std::byte, 72> end{std::byte{0x80}};
    const std::size_t padding = (119 - bytes_ % 64) % 64 + 1; // up to the last eight bytes of a block
    for (std::size_t k = 0; k < 8; ++k) end[padding + k] = static_cast<std::byte>(bits >> (56 - 8 * k));
    add(std::span(end).first(padding + 8));
    Digest digest;
    for (std::size_t k = 0; k < 32; ++k)
        digest[k] = static_cast<std::byte>(state_[k / 4] >> (24 - 8 * (k % 4)));
    return digest;
}

std::string hexadecimal(const Sha256::Digest& digest) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    for (const std::byte byte : digest) {
        text += digits[static_cast<unsigned>(byte) >> 4];
        text += digits[static_cast<unsigned>(byte) & 15];
    }
    return text;
}

} // namespace jali
