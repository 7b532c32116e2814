#include "device/prelude.hpp"
#include "device/sha256.hpp"

#include <algorithm>
#include <stdexcept>

namespace jali {

std::string_view prelude_part(std::string_view name) {
    const auto found = std::ranges::find(prelude_parts(), name, [](const auto& part) { return part.first; });
    if (found == prelude_parts().end())
        throw std::invalid_argument("the prelude has no part '" + std::string(name) + "'");
    return found->second;
}

std::string prelude_of(std::initializer_list<std::string_view> names) {
    std::string text;
    for (const std::string_view name : names) text += prelude_part(name);
    return text;
}

const std::string& gpu_prelude() {
    static const std::string text =
        prelude_of({"rounded", "target_gpu", "lanes", "storage", "memory_gpu", "elementary", "matrix",
                    "group", "hermitian", "random", "kernel", "sums_gpu", "sites_per_thread"});
    return text;
}

const std::string& gpu_prelude_digest() {
    static const std::string digest = hexadecimal(Sha256().add(gpu_prelude()).digest());
    return digest;
}

std::string with_gpu_prelude(std::string_view kernel) {
    const auto end = std::min(kernel.find("\n\n"), kernel.size());
    const auto text = std::min(end + 2, kernel.size());
    std::string whole(kernel.substr(0, end));
    return whole.append("\n").append(gpu_prelude()).append("\n").append(kernel.substr(text));
}

} // namespace jali
