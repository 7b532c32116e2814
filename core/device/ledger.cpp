#include "device/ledger.hpp"

#include <algorithm>
#include <cstdio>

namespace jali {

std::string readable_bytes(std::size_t bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = static_cast<double>(bytes);
    int unit = 0;
    while (value >= 1024 && unit < 6) {
        value /= 1024;
        ++unit;
    }
    char text[32];
    std::snprintf(text, sizeof text, "%.*f %s", unit == 0 ? 0 : 1, value, units[unit]);
    return text;
}

const std::string* Ledger::book(std::size_t bytes, std::string_view label) {
    std::lock_guard lock(mutex_);
    auto entry = counts_.find(label);
    if (entry == counts_.end()) entry = counts_.emplace(std::string(label), Count{}).first;
    entry->second.bytes += bytes;
    entry->second.blocks += 1;
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    return &entry->first;
}

void Ledger::strike(std::size_t bytes, const std::string* label) noexcept {
    std::lock_guard lock(mutex_);
    const auto entry = counts_.find(*label);
    entry->second.bytes -= bytes;
    entry->second.blocks -= 1;
    held_ -= bytes;
    if (entry->second.blocks == 0) counts_.erase(entry); // names of fields never end
}

std::size_t Ledger::held() const {
    std::lock_guard lock(mutex_);
    return held_;
}

std::size_t Ledger::peak() const {
    std::lock_guard lock(mutex_);
    return peak_;
}

std::vector<Ledger::Usage> Ledger::usage() const {
    std::vector<Usage> all;
    {
        std::lock_guard lock(mutex_);
        for (const auto& [label, count] : counts_) all.push_back({label, count.bytes, count.blocks});
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Usage& a, const Usage& b) { return a.bytes > b.bytes; });
    return all;
}

void Ledger::refuse(std::size_t bytes, std::string_view label, const std::string& why,
                    const std::string& kind) const {
    std::string text = "out of " + kind + (kind.empty() ? "" : " ") + "memory: '" + std::string(label) +
                       "' asked for " + readable_bytes(bytes) + ", but " + why + "; jali holds " +
                       readable_bytes(held());
    const auto all = usage();
    for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), 8); ++i)
        text += (i == 0 ? " (" : ", ") + all[i].label + ": " + readable_bytes(all[i].bytes) + " in " +
                std::to_string(all[i].blocks) + (all[i].blocks == 1 ? " block" : " blocks");
    if (!all.empty()) text += all.size() > 8 ? ", ...)" : ")";
    throw OutOfMemory(text);
}

} // namespace jali
