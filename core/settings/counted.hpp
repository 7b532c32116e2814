// Numbers of things in words.
#pragma once

#include <string>

namespace jali {

// "1 rank", "2 ranks": so many of a thing whose plural ends in s.
template <class Number>
std::string counted(Number number, const std::string& noun) {
    return std::to_string(number) + " " + noun + (number == Number{1} ? "" : "s");
}

} // namespace jali
