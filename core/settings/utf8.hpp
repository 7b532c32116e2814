// External texts: whether they are UTF-8, and their form in a message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace jali {

// Where bytes begin that are no UTF-8, or a NUL; npos: nowhere.
std::size_t first_of_no_text(std::string_view text);

// On one line in any case: control characters and invalid UTF-8 as \x1b, and the middle of a very long text
// omitted.
std::string shown(std::string_view text, std::size_t most = 200);

} // namespace jali
