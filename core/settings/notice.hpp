// What a user should know and nothing stops for: a line on stderr.
#pragma once

#include <functional>
#include <string>

namespace jali {

// "jali: " and these words, once in a process however often it is said.
void report_once(const std::string& words);

// That something was wrong and has been put right: "jali: " and these words on stderr, or what Python makes
// of them. May throw what that throws.
void warn(const std::string& words);
void set_warner(std::function<void(const std::string& words)> warner);

} // namespace jali
