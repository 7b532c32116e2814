#include "device/memory_blocks.hpp"

#include <iterator>
#include <map>
#include <mutex>

namespace jali {

namespace {

struct Block {
    std::uint64_t bytes;
    const std::string* label;
};
struct Blocks {
    std::mutex mutex;
    std::map<std::uint64_t, Block> all;
    static Blocks& get() {
        static auto* blocks = new Blocks; // never destroyed: memory may be freed late
        return *blocks;
    }
};

} // namespace

void book_block(std::uint64_t address, std::uint64_t bytes, const std::string* label) {
    Blocks& blocks = Blocks::get();
    std::lock_guard lock(blocks.mutex);
    blocks.all[address] = {bytes, label};
}

void strike_block(std::uint64_t address) noexcept {
    Blocks& blocks = Blocks::get();
    std::lock_guard lock(blocks.mutex);
    blocks.all.erase(address);
}

std::optional<MemoryBlock> block_at(std::uint64_t address) {
    Blocks& blocks = Blocks::get();
    std::lock_guard lock(blocks.mutex);
    const auto after = blocks.all.upper_bound(address);
    if (after == blocks.all.begin()) return std::nullopt;
    const auto& [begin, block] = *std::prev(after);
    if (address - begin >= block.bytes) return std::nullopt;
    return MemoryBlock{begin, block.bytes, *block.label};
}

} // namespace jali
