// Boxes of sites and how their sites are numbered: lexicographically, direction 0 fastest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace jali {

// A lattice cannot have the requested layout; becomes jali.LayoutError in Python.
struct LayoutError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

using Extents = std::vector<std::int64_t>;
using Offset = std::vector<std::int64_t>;

std::string format_extents(std::span<const std::int64_t> extents); // "4x4x8"
std::string format_offset(std::span<const std::int64_t> offset);   // "(1, 0, -1)"

inline std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}
inline std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
    return a - floor_div(a, b) * b;
}

std::int64_t product(std::span<const std::int64_t> factors);
std::int64_t lexicographic(std::span<const std::int64_t> site, std::span<const std::int64_t> box);

// Calls f(site) for every site of the box, in their order.
template <class F>
void for_each_site(const Extents& box, F f) {
    Extents c(box.size(), 0);
    for (auto n : box) {
        if (n == 0) return;
    }
    while (true) {
        f(c);
        std::size_t d = 0;
        while (d < box.size() && ++c[d] == box[d]) c[d++] = 0;
        if (d == box.size()) return;
    }
}

} // namespace jali
