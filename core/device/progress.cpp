#include "device/progress.hpp"

#include <algorithm>

namespace jali {

namespace {

struct Recorded {
    bool on = false;
    std::vector<std::string> all;
    std::size_t more = 0;
};
thread_local Recorded recorded;
constexpr std::size_t most_named = 6, most_reported = 3;

} // namespace

void DeviceProgress::mark(void* stream, const std::string& what) {
    std::lock_guard lock(mutex_);
    if (ahead_.size() >= most_ahead) update();
    if (ahead_.size() >= most_ahead) return; // these tell enough
    void* event = nullptr;
    if (free_.empty()) {
        constexpr unsigned without_time = 2;
        if (api_.event_create(&event, without_time) != gpu_success) return;
    } else {
        event = free_.back();
        free_.pop_back();
    }
    if (api_.event_record(event, stream) == gpu_success)
        ahead_.push_back({event, what});
    else
        free_.push_back(event);
}

void DeviceProgress::update() {
    std::erase_if(ahead_, [&](const Mark& mark) {
        if (api_.event_query(mark.event) == gpu_not_ready) return false;
        free_.push_back(mark.event);
        ++passed_;
        return true;
    });
}

std::uint64_t DeviceProgress::passed() {
    std::lock_guard lock(mutex_);
    update();
    return passed_;
}

std::string DeviceProgress::ahead() {
    std::lock_guard lock(mutex_);
    update();
    std::string text;
    for (std::size_t k = 0; k < std::min(ahead_.size(), most_reported); ++k)
        text += (k == 0 ? "" : ", then ") + ahead_[k].what;
    return text + (ahead_.size() > most_reported ? ", ..." : "");
}

void DeviceProgress::begin_recording() {
    recorded = {true, {}, 0};
}

bool DeviceProgress::is_recording() {
    return recorded.on;
}

void DeviceProgress::note_recorded(const std::string& what) {
    if (std::ranges::find(recorded.all, what) != recorded.all.end()) return;
    if (recorded.all.size() < most_named)
        recorded.all.push_back(what);
    else
        ++recorded.more;
}

std::string DeviceProgress::end_recording() {
    std::string text = recorded.all.empty() ? "a graph" : "a graph with ";
    for (const std::string& what : recorded.all) text += (&what == recorded.all.data() ? "" : ", ") + what;
    if (recorded.more > 0) text += " and " + std::to_string(recorded.more) + " more";
    recorded = {};
    return text;
}

} // namespace jali
