// Notices to users that stop nothing: a line on stderr.
#pragma once

#include <functional>
#include <string>

namespace jali {

// Prints "jali: " and `words`, once in a process for any number of calls.
void report_once(const std::string& words);

// Warns of a corrected problem: "jali: " and `words` on stderr, or a warning in Python, whose exceptions it
// may throw.
void warn(const std::string& words);
void set_warner(std::function<void(const std::string& words)> warner);

} // namespace jali
