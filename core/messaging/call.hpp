// The collective that a rank calls in the control plane, sent with every message: ranks that disagree get an
// error instead of taking the bytes of one call for those of another.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace jali {

struct Call {
    enum Kind : std::int32_t { barrier, sum, gather, broadcast };

    // `bytes` is the size of this rank's data; `what` is truncated to its field.
    Call(Kind kind, std::uint64_t number, std::size_t bytes, int root, std::string_view what);
    Call() = default;

    std::uint64_t number = 0; // of the communicator's calls so far
    std::uint64_t bytes = 0;
    std::int32_t kind = barrier;
    std::int32_t root = 0;
    char what[32] = {};

    bool agrees_with(const Call& other) const;
    std::string text() const; // "a barrier", "a sum of 3 numbers", or what it is for
};

// "ranks disagree: rank 0 came to a barrier, rank 1 to a sum of 3 numbers (call 7 of these 2 ranks)"
std::string mismatch_text(const Call& mine, int rank, const Call& theirs, int other, int ranks);

} // namespace jali
