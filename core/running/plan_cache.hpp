// Plans of calls, kept for the next equal call: beyond the capacity the least recently used plan is dropped.
#pragma once

#include "composition/standard_collectives.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

namespace jali {

struct CacheCounts {
    std::int64_t found = 0, made = 0, dropped = 0;
    std::size_t kept = 0;
};

// Used by one thread at a time.
template <class Plan>
class PlanCache {
  public:
    // Null: there is none.
    std::shared_ptr<Plan> find(const CollectiveCall& call) {
        if (latest_ == nullptr || !(latest_->first == call)) { // programs repeat themselves
            const auto found = plans_.find(call);
            if (found == plans_.end()) return nullptr;
            latest_ = &*found;
        }
        ++counts_.found;
        latest_->second.last = ++asked_;
        return latest_->second.plan;
    }

    // For a call without a plan. Returns a dropped plan, so that the caller controls its end.
    [[nodiscard]] std::shared_ptr<Plan> add(const CollectiveCall& call, std::shared_ptr<Plan> plan) {
        ++counts_.made;
        plans_.insert_or_assign(call, Kept{std::move(plan), ++asked_});
        if (plans_.size() <= most) return nullptr;
        const auto oldest =
            std::ranges::min_element(plans_, {}, [](const auto& each) { return each.second.last; });
        std::shared_ptr<Plan> dropped = std::move(oldest->second.plan);
        if (latest_ == &*oldest) latest_ = nullptr;
        plans_.erase(oldest);
        ++counts_.dropped;
        return dropped;
    }

    CacheCounts counts() const {
        CacheCounts counts = counts_;
        counts.kept = plans_.size();
        return counts;
    }

    std::size_t most = 256;

  private:
    struct Kept {
        std::shared_ptr<Plan> plan;
        std::uint64_t last; // number of its last request
    };
    std::unordered_map<CollectiveCall, Kept> plans_;
    std::pair<const CollectiveCall, Kept>* latest_ = nullptr; // of them
    std::uint64_t asked_ = 0;
    CacheCounts counts_;
};

} // namespace jali
