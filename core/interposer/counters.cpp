#include "interposer/counters.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

namespace jali::interposer {

namespace {

struct Sum {
    std::int64_t calls = 0, bytes = 0;
};
std::mutex mutex;
std::map<std::pair<std::string, std::string>, Sum> sums; // by function and executor

std::int64_t bytes_of(const std::vector<Elements>& all) {
    std::int64_t bytes = 0;
    for (const Elements& each : all)
        if (each.count > 0) bytes += each.count * layout_of(each.type)->size;
    return bytes;
}

std::string readable(std::int64_t bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes);
    int unit = 0;
    for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
    char text[32];
    std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}

} // namespace

bool counting() noexcept {
    static const bool asked = [] {
        try {
            return settings().mpi_counters;
        } catch (const SettingsError&) { // reported when MPI starts
            return false;
        }
    }();
    return asked;
}

Tally::Tally(const char* function, const std::vector<Elements>& sent, const std::vector<Elements>& received)
    : function_(function) {
    if (counting()) bytes_ = std::max(bytes_of(sent), bytes_of(received));
}

Tally::~Tally() {
    if (!counting()) return;
    std::lock_guard lock(mutex);
    Sum& sum = sums[{function_, who_}];
    ++sum.calls;
    sum.bytes += bytes_;
}

void report_counters() {
    if (!counting()) return;
    std::ostringstream mine;
    {
        std::lock_guard lock(mutex);
        for (const auto& [key, sum] : sums)
            mine << key.first << '\t' << key.second << '\t' << sum.calls << '\t' << sum.bytes << '\n';
    }
    const std::string text = mine.str();
    int rank = 0, ranks = 1, length = static_cast<int>(text.size());
    mpi().Comm_rank(mpi().world, &rank);
    mpi().Comm_size(mpi().world, &ranks);
    std::vector<int> lengths(ranks), displacements(ranks);
    const int bytes = sizeof length;
    if (mpi().Gather(&length, bytes, mpi().byte, lengths.data(), bytes, mpi().byte, 0, mpi().world) != 0)
        return;
    int all = 0;
    for (int r = 0; r < ranks; ++r) displacements[r] = std::exchange(all, all + lengths[r]);
    std::string texts(all, '\0');
    if (mpi().Gatherv(text.data(), length, mpi().byte, texts.data(), lengths.data(), displacements.data(),
                      mpi().byte, 0, mpi().world) != 0 ||
        rank != 0)
        return;
    std::map<std::pair<std::string, std::string>, Sum> total;
    std::istringstream lines(texts);
    std::string function, who, calls, moved;
    while (std::getline(lines, function, '\t') && std::getline(lines, who, '\t') &&
           std::getline(lines, calls, '\t') && std::getline(lines, moved)) {
        Sum& sum = total[{function, who}];
        sum.calls += std::stoll(calls);
        sum.bytes += std::stoll(moved);
    }
    std::fprintf(stderr, "jali: calls of MPI on %d ranks\n", ranks);
    for (const auto& [key, sum] : total)
        std::fprintf(stderr, "jali: %-28s %10lld calls %12s  by %s\n", key.first.c_str(),
                     static_cast<long long>(sum.calls), readable(sum.bytes).c_str(), key.second.c_str());
}

} // namespace jali::interposer
