// The blocks of memory that this process has from drivers, and where each of them ends: as requested, not as
// the pool rounded it. Recorded driver calls are checked against them (schedule/recorded_calls).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace jali {

struct MemoryBlock {
    std::uint64_t address = 0, bytes = 0;
    std::string label;
};

void book_block(std::uint64_t address, std::uint64_t bytes, const std::string* label); // which stays
void strike_block(std::uint64_t address) noexcept;
std::optional<MemoryBlock> block_at(std::uint64_t address); // that holds this address

} // namespace jali
