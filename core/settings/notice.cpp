#include "settings/notice.hpp"

#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

namespace jali {

namespace {

std::function<void(const std::string&)>& warner() {
    // never destroyed: it may belong to an interpreter that has ended by then
    static auto& set = *new std::function<void(const std::string&)>;
    return set;
}

} // namespace

void warn(const std::string& words) {
    if (warner())
        warner()(words);
    else
        std::fprintf(stderr, "jali: %s\n", words.c_str());
}

void set_warner(std::function<void(const std::string&)> other) {
    warner() = std::move(other);
}

void report_once(const std::string& words) {
    static std::mutex mutex;
    static std::set<std::string> reported;
    std::lock_guard lock(mutex);
    if (reported.insert(words).second) std::fprintf(stderr, "jali: %s\n", words.c_str());
}

} // namespace jali
