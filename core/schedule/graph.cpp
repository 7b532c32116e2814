#include "schedule/graph.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace jali {

namespace {

// The variant's alternatives are in the order of their priority.
int priority(const Step& step) {
    return static_cast<int>(step.action.index());
}
static_assert(std::is_same_v<std::variant_alternative_t<5, decltype(Step::action)>, Copy>);
static_assert(std::is_same_v<std::variant_alternative_t<7, decltype(Step::action)>, Kernel>);
constexpr int first_that_works = 5, kernel_priority = 7;

} // namespace

std::string quoted_name(const Schedule& schedule, const Port& port) {
    const Step& step = schedule.steps()[port.step];
    const auto& part = step.parts[port.part].name;
    return "'" + step.name + (part.empty() ? "" : "/" + part) + "'";
}

Graph::Graph(const Schedule& schedule) {
    const auto& steps = schedule.steps();
    std::vector<std::int32_t> first(steps.size()); // number of each step's part 0; its others follow
    std::vector<std::int32_t> starts(kernel_priority + 2, 0);
    for (const Step& step : steps) starts[priority(step) + 1] += static_cast<int>(step.parts.size());
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    const int total = starts.back();
    messages_ = starts[first_that_works];
    first_kernel_ = starts[kernel_priority];
    ports_.resize(total);
    for (std::size_t s = 0; s < steps.size(); ++s) {
        auto& next = starts[priority(steps[s])];
        first[s] = next;
        for (std::size_t p = 0; p < steps[s].parts.size(); ++p)
            ports_[next++] = {static_cast<int>(s), static_cast<int>(p)};
    }

    waits_for_.assign(total, 0);
    begin_.assign(total + 1, 0);
    auto for_each_need = [&](auto&& visit) {
        for (int k = 0; k < total; ++k) {
            const auto [s, p] = ports_[k];
            for (const Port& need : steps[s].parts[p].needs) visit(k, need);
            if (p > 0) visit(k, Port{s, p - 1});
        }
    };
    for_each_need([&](int k, const Port& need) {
        if (need.step < 0 || need.step >= static_cast<int>(steps.size()) || need.part < 0 ||
            need.part >= static_cast<int>(steps[need.step].parts.size())) {
            throw ScheduleError("step " + quoted_name(schedule, ports_[k]) + " needs part " +
                                    std::to_string(need.part) + " of step " + std::to_string(need.step) +
                                    ", which does not exist",
                                Fault::structure, -1, ports_[k].step);
        }
        ++begin_[first[need.step] + need.part + 1];
        ++waits_for_[k];
    });
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    followers_.resize(begin_.back());
    std::vector<std::int32_t> filled(begin_.begin(), begin_.end() - 1);
    for_each_need([&](int k, const Port& need) { followers_[filled[first[need.step] + need.part]++] = k; });

    next_of_envelope_.assign(messages_, -1);
    std::vector<std::pair<Envelope, std::int32_t>> envelopes;
    envelopes.reserve(messages_);
    for (int k = 0; k < messages_; ++k)
        if (const auto envelope = envelope_of(steps[ports_[k].step])) envelopes.emplace_back(*envelope, k);
    std::sort(envelopes.begin(), envelopes.end());
    for (std::size_t i = 1; i < envelopes.size(); ++i) {
        if (envelopes[i - 1].first != envelopes[i].first) continue;
        next_of_envelope_[envelopes[i - 1].second] = envelopes[i].second;
        ++waits_for_[envelopes[i].second];
    }

    std::vector<std::int32_t> open = waits_for_;
    NumberSet ready;
    ready.resize(total);
    order_.reserve(total);
    auto happened = [&](int k) {
        if (--open[k] == 0) ready.insert(k);
    };
    for (int k = 0; k < total; ++k)
        if (open[k] == 0) ready.insert(k);
    while (!ready.empty()) {
        const int k = ready.first();
        ready.erase(k);
        order_.push_back(k);
        if (const int next = next_of_envelope(k); next >= 0) happened(next);
        for (int next : followers(k)) happened(next);
    }
    if (static_cast<int>(order_.size()) == total) return;
    const auto stuck = std::find_if(open.begin(), open.end(), [](int n) { return n > 0; }) - open.begin();
    throw ScheduleError("step " + quoted_name(schedule, ports_[stuck]) +
                            " waits for itself through a cycle of needs, or follows a step that does",
                        Fault::deadlock, -1, ports_[stuck].step);
}

} // namespace jali
