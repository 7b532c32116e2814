#include "schedule/batches.hpp"

#include <algorithm>

namespace jali {

const char* name_of(StepRole role) {
    constexpr const char* names[] = {"produce", "grant credit",   "pack",   "await credit", "put",
                                     "signal",  "wait",           "unpack", "exchange",     "copy to host",
                                     "message", "copy to device", "bulk",   "boundary"};
    return names[static_cast<std::size_t>(role)];
}

Phase phase_of(StepRole role) {
    switch (role) {
    case StepRole::produce:
        return Phase::produce;
    case StepRole::pack:
        return Phase::pack;
    case StepRole::unpack:
    case StepRole::copy_to_device:
        return Phase::unpack;
    case StepRole::bulk:
        return Phase::bulk;
    case StepRole::boundary:
        return Phase::boundary;
    default:
        return Phase::transport;
    }
}

bool Batch::has_any(StepRoles set) const {
    return std::any_of(roles.begin(), roles.end(),
                       [&](StepRole role) { return (set_of({role}) & set) != 0; });
}

std::string words_of(const Batch& batch) {
    std::string text;
    for (StepRole role : batch.roles) text += (text.empty() ? "" : " + ") + std::string(name_of(role));
    return batch.stage < 0 ? text : text + " of stage " + std::to_string(batch.stage);
}

namespace {

// These as one, in the place of one of them.
void merge(std::vector<Batch>& batches, const std::vector<int>& chosen, int at) {
    Batch merged;
    merged.stream = batches[chosen.front()].stream;
    for (int k : chosen) {
        const Batch& batch = batches[k];
        merged.roles.insert(merged.roles.end(), batch.roles.begin(), batch.roles.end());
        merged.stage = std::max(merged.stage, batch.stage);
        merged.stream = std::min(merged.stream, batch.stream);
        merged.needs.insert(merged.needs.end(), batch.needs.begin(), batch.needs.end());
        merged.parts.insert(merged.parts.end(), batch.parts.begin(), batch.parts.end());
    }
    std::stable_sort(merged.roles.begin(), merged.roles.end());
    std::vector<int> index(batches.size());
    std::vector<Batch> kept;
    for (int k = 0; k < static_cast<int>(batches.size()); ++k) {
        const bool inside = std::binary_search(chosen.begin(), chosen.end(), k);
        if (k == at) {
            for (int c : chosen) index[c] = static_cast<int>(kept.size());
            kept.push_back(merged);
        } else if (!inside) {
            index[k] = static_cast<int>(kept.size());
            kept.push_back(batches[k]);
        }
    }
    for (int k = 0; k < static_cast<int>(kept.size()); ++k) {
        std::vector<int> needs;
        for (int need : kept[k].needs)
            if (index[need] != k) needs.push_back(index[need]);
        std::sort(needs.begin(), needs.end());
        needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
        kept[k].needs = std::move(needs);
    }
    batches = std::move(kept);
}

} // namespace

void fuse(std::vector<Batch>& batches, const Fusion& rule, int stage) {
    const int count = static_cast<int>(batches.size());
    std::vector<int> chosen;
    for (int k = 0; k < count; ++k)
        if (batches[k].has_any(rule.together) && (batches[k].stage < 0 || batches[k].stage == stage))
            chosen.push_back(k);
    const auto excluded = [&](int k) { return batches[k].has_any(rule.not_with); };
    if (chosen.size() < 2 || std::any_of(chosen.begin(), chosen.end(), excluded)) return;
    const auto inside = [&](int k) { return std::binary_search(chosen.begin(), chosen.end(), k); };
    const int first = chosen.front(), last = chosen.back();
    // possible positions: that of the first of them, or of the last
    bool at_first = true, at_last = true;
    for (int k : chosen)
        for (int need : batches[k].needs) at_first &= inside(need) || need < first;
    for (int k = first; k < count; ++k) {
        if (inside(k)) continue;
        for (int need : batches[k].needs) {
            at_last &= !inside(need) || k > last;
            if (rule.if_nobody_else_waits && inside(need) && need != last) return;
        }
    }
    if (!at_first && !at_last) return;
    merge(batches, chosen, at_first ? first : last);
}

} // namespace jali
