#include "geometry/box.hpp"

namespace jali {

std::string format_extents(std::span<const std::int64_t> extents) {
    std::string text;
    for (std::size_t d = 0; d < extents.size(); ++d) text += (d ? "x" : "") + std::to_string(extents[d]);
    return text;
}

std::string format_offset(std::span<const std::int64_t> offset) {
    std::string text = "(";
    for (std::size_t d = 0; d < offset.size(); ++d) text += (d ? ", " : "") + std::to_string(offset[d]);
    return text + ")";
}

std::int64_t product(std::span<const std::int64_t> factors) {
    std::int64_t result = 1;
    for (auto f : factors) result *= f;
    return result;
}

std::int64_t lexicographic(std::span<const std::int64_t> site, std::span<const std::int64_t> box) {
    std::int64_t index = 0;
    for (std::size_t d = box.size(); d-- > 0;) index = index * box[d] + site[d];
    return index;
}

} // namespace jali
