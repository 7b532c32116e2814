// The use of one kind of memory: bytes and blocks by label.
//
// An arena updates it and quotes it in "out of memory" errors: the request, and the memory in use by label.
// Safe to use from several threads.
#pragma once

#include <cstddef>
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

std::string readable_bytes(std::size_t bytes); // "3.2 GiB"

class Ledger {
  public:
    struct Usage {
        std::string label;
        std::size_t bytes;
        std::size_t blocks;
    };

    // Books a block and returns the label's address, to be given to strike; it lasts as long as any block of
    // that label.
    const std::string* book(std::size_t bytes, std::string_view label);
    void strike(std::size_t bytes, const std::string* label) noexcept;

    std::size_t held() const;         // bytes booked now
    std::size_t peak() const;         // most bytes ever booked at once
    std::vector<Usage> usage() const; // by label, largest first

    // Throws OutOfMemory with the request, the reason, and the memory in use by label.
    [[noreturn]] void refuse(std::size_t bytes, std::string_view label, const std::string& why,
                             const std::string& kind = "") const;

  private:
    struct Count {
        std::size_t bytes = 0;
        std::size_t blocks = 0;
    };
    mutable std::mutex mutex_;
    std::map<std::string, Count, std::less<>> counts_; // node-based: labels keep their address
    std::size_t held_ = 0;
    std::size_t peak_ = 0;
};

} // namespace jali
