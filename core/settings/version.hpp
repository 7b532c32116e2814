// The version of jali.
#pragma once

#include <string_view>

namespace jali {

// Of the library that runs, such as "0.1.0".
std::string_view version();

} // namespace jali
