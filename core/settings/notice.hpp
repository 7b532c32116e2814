// What a user should know and nothing stops for: a line on stderr.
#pragma once

#include <string>

namespace jali {

// "jali: " and these words, once in a process however often it is said.
void tell_once(const std::string& words);

} // namespace jali
