// Numbers that stay where kernels made them: blocks of doubles that kernels read by address, few for scalars,
// up to 64 x 64 complex ones for an array.
//
// On a device each number has a second location, in pinned memory, which kernels store as well: the host then
// only waits for the stream and reads, without a copy. Blocks are cut from pages that are kept. A freed block
// may be reused at once, since its uses on the device's stream are in order. On the host both locations are
// the same.
#pragma once

#include "device/gpu.hpp"

#include <cstdint>
#include <memory>

namespace jali {

class ScalarBlock {
  public:
    static constexpr int most = 2 * 64 * 64; // of a block

    // `gpu`: null on the host. Throws std::invalid_argument for an impossible count, OutOfMemory.
    ScalarBlock(std::shared_ptr<Gpu> gpu, int count);
    ~ScalarBlock();
    ScalarBlock(const ScalarBlock&) = delete;

    int count() const { return count_; }
    std::uint64_t address(int k = 0) const; // for kernels; throws std::out_of_range
    std::uint64_t mirror(int k = 0) const;  // for the host
    // The value on the host: on a device, after the stream has reached the store.
    double value(int k) const;
    void set(int k, double value); // on the host; throws std::logic_error on a device

    struct Location {
        std::uint64_t address = 0, mirror = 0;
    };

  private:
    void check(int k) const;

    std::shared_ptr<Gpu> gpu_;
    int count_, held_;
    Location location_;
    std::unique_ptr<double[]> here_;
};

} // namespace jali
