#include "halo/halo_steps.hpp"
#include "halo/policy.hpp"
#include "settings/settings.hpp"

#include <algorithm>

namespace jali {

namespace {

constexpr HaloActions computing = set_of({HaloAction::bulk, HaloAction::boundary});
constexpr HaloActions packing = set_of({HaloAction::produce, HaloAction::pack});
constexpr HaloActions marks = set_of({HaloAction::begin, HaloAction::join});

class Steps {
  public:
    Steps(const HaloPolicy& policy, const HaloShape& shape) : policy_(policy), shape_(shape) {
        beside_ = policy.overlap && shape.has_bulk;
        if (beside_) begin_ = add(HaloAction::begin, -1, false);
        if (shape.produces) add(HaloAction::produce, -1, false);
        moves(HaloTime::first, -1);
        for (int s = 0; s < shape.stages; ++s) moves(HaloTime::first_by_stage, s);
        if (beside_) {
            side_ = add(HaloAction::bulk, -1, true);
            steps_[side_].needs = {shape.bulk_waits_for_packing ? packed_ : begin_};
        }
        moves(HaloTime::behind_bulk, -1);
        for (int s = 0; s < shape.stages; ++s) stage(s);
        if (beside_ && shape.boundary_fills) {
            const int join = add(HaloAction::join, -1, false);
            steps_[join].needs.push_back(side_);
        }
        fuse(policy.transport->fusions);
        fuse(policy.fusions);
        for (HaloStep& step : steps_) leave_out(step);
    }
    std::vector<HaloStep> take() { return std::move(steps_); }

  private:
    // On the device's own stream a step comes after the one before it there.
    int add(HaloAction action, int stage, bool beside) {
        const int number = static_cast<int>(steps_.size());
        steps_.push_back({{action}, stage, beside, {}});
        int& last = beside ? side_ : main_;
        if (last >= 0) steps_[number].needs.push_back(last);
        last = number;
        if (action == HaloAction::pack) packed_ = number;
        return number;
    }
    void moves(HaloTime time, int stage) {
        for (const HaloMove& move : policy_.transport->moves) {
            if (move.time != time) continue;
            add(move.action, stage, false);
            if (stage >= 0) arrived_.resize(static_cast<std::size_t>(shape_.stages), -1);
            if (stage >= 0) arrived_[stage] = main_;
        }
    }
    // Boundaries of all stages but the last are beside, behind the bulk, where they keep no exchange waiting.
    void stage(int s) {
        const bool last = s + 1 == shape_.stages;
        moves(HaloTime::by_stage, s);
        if (last) moves(HaloTime::with_last_stage, s);
        const int arrived = s < static_cast<int>(arrived_.size()) && arrived_[s] >= 0 ? arrived_[s] : main_;
        const bool beside = beside_ && !last;
        const int side_before = side_;
        const int boundary = add(HaloAction::boundary, s, beside);
        auto& needs = steps_[boundary].needs;
        if (beside) needs.push_back(arrived);
        if (beside_ && last && !shape_.boundary_fills) needs.push_back(side_before);
    }

    void fuse(std::span<const HaloFusion> rules) {
        for (const HaloFusion& rule : rules) {
            if (rule.if_only_stage && shape_.stages > 1) continue;
            if (rule.in_kernel() && !(shape_.on.all() && shape_.kernel_has_roles)) continue;
            for (int s = 0; s < shape_.stages; ++s) fuse(rule, s);
        }
    }
    void fuse(const HaloFusion& rule, int stage) {
        std::vector<int> chosen;
        for (int k = 0; k < static_cast<int>(steps_.size()); ++k)
            if (steps_[k].has_any(rule.together) && (steps_[k].stage < 0 || steps_[k].stage == stage))
                chosen.push_back(k);
        const auto excluded = [&](int k) { return steps_[k].has_any(rule.not_with); };
        if (chosen.size() < 2 || std::any_of(chosen.begin(), chosen.end(), excluded)) return;
        const auto inside = [&](int k) { return std::binary_search(chosen.begin(), chosen.end(), k); };
        const int first = chosen.front(), last = chosen.back();
        // where they may stand: as the first of them, or as the last
        bool at_first = true, at_last = true;
        for (int k : chosen)
            for (int need : steps_[k].needs) at_first &= inside(need) || need < first;
        for (int k = first; k < static_cast<int>(steps_.size()); ++k) {
            if (inside(k)) continue;
            for (int need : steps_[k].needs) {
                at_last &= !inside(need) || k > last;
                if (rule.if_nobody_else_waits && inside(need) && need != last) return;
            }
        }
        if (!at_first && !at_last) return;
        merge(chosen, at_first ? first : last);
    }
    void merge(const std::vector<int>& chosen, int at) {
        HaloStep merged;
        merged.beside = true;
        for (int k : chosen) {
            const HaloStep& step = steps_[k];
            merged.actions.insert(merged.actions.end(), step.actions.begin(), step.actions.end());
            merged.stage = std::max(merged.stage, step.stage);
            merged.beside &= step.beside;
            merged.needs.insert(merged.needs.end(), step.needs.begin(), step.needs.end());
        }
        std::stable_sort(merged.actions.begin(), merged.actions.end());
        std::vector<int> place(steps_.size());
        std::vector<HaloStep> kept;
        for (int k = 0; k < static_cast<int>(steps_.size()); ++k) {
            const bool inside = std::binary_search(chosen.begin(), chosen.end(), k);
            if (k == at) {
                for (int c : chosen) place[c] = static_cast<int>(kept.size());
                kept.push_back(merged);
            } else if (!inside) {
                place[k] = static_cast<int>(kept.size());
                kept.push_back(steps_[k]);
            }
        }
        for (int k = 0; k < static_cast<int>(kept.size()); ++k) {
            std::vector<int> needs;
            for (int need : kept[k].needs)
                if (place[need] != k) needs.push_back(place[need]);
            std::sort(needs.begin(), needs.end());
            needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
            kept[k].needs = std::move(needs);
        }
        steps_ = std::move(kept);
    }

    void leave_out(HaloStep& step) const {
        if (shape_.on.all() || step.has_any(marks)) return;
        const bool packs = step.has_any(packing), computes = step.has_any(computing);
        // a kernel that stores into the receiver's memory is the transport as well
        const bool carries = !computes && (!packs || step.has(HaloAction::put));
        if ((carries && !shape_.on.transport) || (packs && !carries && !shape_.on.pack) ||
            (step.has(HaloAction::bulk) && !shape_.on.bulk) ||
            (step.has(HaloAction::boundary) && !shape_.on.boundary))
            step.actions.clear();
    }

    const HaloPolicy& policy_;
    const HaloShape& shape_;
    std::vector<HaloStep> steps_;
    bool beside_ = false;
    int main_ = -1, side_ = -1, begin_ = -1, packed_ = -1;
    std::vector<int> arrived_; // [stage]: the step with which its halos are there
};

} // namespace

const char* name_of(HaloAction action) {
    constexpr const char* names[] = {"begin",  "produce", "offer",    "pack",     "admit", "put",
                                     "signal", "wait",    "place",    "exchange", "fetch", "message",
                                     "bring",  "bulk",    "boundary", "join"};
    return names[static_cast<std::size_t>(action)];
}

bool HaloStep::has_any(HaloActions set) const {
    return std::any_of(actions.begin(), actions.end(),
                       [&](HaloAction a) { return (set_of({a}) & set) != 0; });
}

std::string words_of(const HaloStep& step) {
    std::string text;
    for (HaloAction action : step.actions) text += (text.empty() ? "" : " + ") + std::string(name_of(action));
    return step.stage < 0 ? text : text + " of stage " + std::to_string(step.stage);
}

std::vector<HaloStep> halo_steps(const HaloPolicy& policy, const HaloShape& shape) {
    return Steps(policy, shape).take();
}

HaloSwitches halo_switches() {
    const std::string& off = settings().halo_off;
    if (off.empty()) return {};
    const auto is_on = [&](const char* part) { return off.find(part) == std::string::npos; };
    return {is_on("pack"), is_on("transport"), is_on("bulk"), is_on("boundary")};
}

} // namespace jali
