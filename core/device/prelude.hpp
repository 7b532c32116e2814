// The texts that kernels are made of: src/jali/codegen/prelude/*.hpp, put into the library when it is built.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace jali {

// (name of the file without its ending, text), by name.
std::span<const std::pair<std::string_view, std::string_view>> prelude_parts();

// One after the other, without an ending: {"signals", "halos"}. Throws std::invalid_argument for unknown
// names.
std::string prelude_of(std::initializer_list<std::string_view> names);
std::string_view prelude_part(std::string_view name);

// The common start of every kernel for a GPU, after its defines.
const std::string& gpu_prelude();
const std::string& gpu_prelude_digest();

// A kernel as the cache keeps it (its defines, an empty line, its text) with that in between, as it is
// compiled.
std::string with_gpu_prelude(std::string_view kernel);

} // namespace jali
