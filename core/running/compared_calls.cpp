#include "running/compared_calls.hpp"

#include <algorithm>
#include <cstring>

namespace jali {

namespace {

constexpr std::string_view what = "a comparison of calls"; // in errors of ranks that are not in checked mode

// Texts with their lengths in front.
std::vector<std::byte> packed(const DescribedCall& call) {
    std::vector<std::byte> bytes;
    const auto add = [&](const std::string& text) {
        const auto size = static_cast<std::uint32_t>(text.size());
        const auto head = std::as_bytes(std::span(&size, 1)), body = std::as_bytes(std::span(text));
        bytes.insert(bytes.end(), head.begin(), head.end());
        bytes.insert(bytes.end(), body.begin(), body.end());
    };
    add(call.location);
    for (const auto& [key, value] : call.facts) {
        add(key);
        add(value);
    }
    return bytes;
}

DescribedCall unpacked(std::span<const std::byte> bytes) {
    const auto next = [&] {
        std::uint32_t size = 0;
        if (bytes.size() >= sizeof(size)) {
            std::memcpy(&size, bytes.data(), sizeof(size));
            bytes = bytes.subspan(sizeof(size));
        }
        const auto body = bytes.first(std::min<std::size_t>(size, bytes.size()));
        bytes = bytes.subspan(body.size());
        return std::string(reinterpret_cast<const char*>(body.data()), body.size());
    };
    DescribedCall call;
    call.location = next();
    while (!bytes.empty()) {
        std::string key = next();
        call.facts.emplace_back(std::move(key), next());
    }
    return call;
}

std::string named(const std::vector<int>& ranks) {
    constexpr std::size_t most = 8;
    std::string text = ranks.size() > 1 ? "ranks " : "rank ";
    for (std::size_t k = 0; k < std::min(most, ranks.size()); ++k)
        text += (k > 0 ? ", " : "") + std::to_string(ranks[k]);
    if (ranks.size() > most) text += " and " + std::to_string(ranks.size() - most) + " more";
    return text;
}

// The values with their ranks; empty if all values are equal.
std::string who(const std::vector<std::string>& said) {
    std::vector<std::pair<std::string, std::vector<int>>> by_value;
    for (int rank = 0; const std::string& value : said) {
        const auto same = std::ranges::find_if(by_value, [&](const auto& one) { return one.first == value; });
        (same != by_value.end() ? *same : by_value.emplace_back(value, std::vector<int>()))
            .second.push_back(rank++);
    }
    std::string text;
    if (by_value.size() == 1) return text;
    for (const auto& [value, ranks] : by_value)
        text += (text.empty() ? "" : ", ") + value + " on " + named(ranks);
    return text;
}

} // namespace

DescribedCall describe(const CollectiveCall& call, bool on_devices, const std::source_location& location) {
    const auto flag = [](bool on) { return std::string(on ? "True" : "False"); };
    const auto said = [](const auto& name) { return std::string(name); };
    std::string counts;
    for (const std::int64_t n : call.counts) counts += (counts.empty() ? "" : ", ") + std::to_string(n);
    const bool several = call.counts.size() > 1;
    DescribedCall described{{{"call", said(name_of(call.collective))},
                             {"memory", on_devices ? "of devices" : "of the host"},
                             {"element type", said(name_of(call.type))},
                             {several ? "counts" : "count", several ? "[" + counts + "]" : counts}},
                            ""};
    const auto is = [&](auto... these) { return ((call.collective == these) || ...); };
    using enum Collective;
    if (is(all_reduce, reduce, reduce_scatter))
        described.facts.emplace_back("operation", said(name_of(call.operation)));
    if (is(broadcast, reduce, gather, scatter))
        described.facts.emplace_back("root", std::to_string(call.root));
    described.facts.emplace_back("in place", flag(call.in_place));
    described.facts.emplace_back("algorithm", call.algorithm.empty() ? "chosen" : call.algorithm);
    described.facts.emplace_back("reproducible", flag(call.reproducible));
    const std::string_view file = location.file_name();
    described.location =
        std::string(file.substr(file.rfind('/') + 1)) + ":" + std::to_string(location.line());
    return described;
}

void compare_calls(Communicator& ranks, const DescribedCall& mine) {
    std::vector<DescribedCall> reported;
    for (const auto& bytes : ranks.all_gather(packed(mine), what)) reported.push_back(unpacked(bytes));
    std::vector<std::string> keys;
    for (const DescribedCall& one : reported)
        for (const auto& fact : one.facts)
            if (std::ranges::find(keys, fact.first) == keys.end()) keys.push_back(fact.first);
    const auto who_said = [&](auto value_of) {
        std::vector<std::string> said;
        for (const DescribedCall& one : reported) said.push_back(value_of(one));
        return who(said);
    };
    std::string differences;
    for (const std::string& key : keys) {
        const std::string said = who_said([&](const DescribedCall& one) {
            const auto fact = std::ranges::find_if(one.facts, [&](const auto& f) { return f.first == key; });
            return fact != one.facts.end() ? fact->second : "not given";
        });
        if (said.empty()) continue;
        differences += (differences.empty() ? "" : "; ") + key + ": " + said;
        if (key == "call") break; // further differences would confuse
    }
    if (differences.empty()) return;
    const std::string locations = who_said([](const DescribedCall& one) { return one.location; });
    throw AgreedError("ranks do not make the same call; " + differences +
                      (locations.empty() ? "" : " (at " + locations + ")"));
}

} // namespace jali
