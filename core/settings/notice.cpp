#include "settings/notice.hpp"

#include <cstdio>
#include <mutex>
#include <set>

namespace jali {

void tell_once(const std::string& words) {
    static std::mutex mutex;
    static std::set<std::string> told;
    std::lock_guard lock(mutex);
    if (told.insert(words).second) std::fprintf(stderr, "jali: %s\n", words.c_str());
}

} // namespace jali
