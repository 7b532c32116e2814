#include "planning/plan_counts.hpp"

#include "composition/plan_steps.hpp"
#include "simulation/symmetry.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

namespace jali {

namespace {

// As in simulations: ranks whose pieces differ by more are not equivalent, and few ranks are counted one by
// one.
constexpr double nearly = 0.01;
constexpr int few_ranks = 128;

using OfRank = std::vector<std::map<int, CountedMessages>>; // a rank's sends, by stage and level

class Counter {
  public:
    Counter(const Composition& composition, const PlanParameters& parameters)
        : composition_(composition), parameters_(parameters),
          routes_((check_parameters(composition, parameters), parameters)),
          size_(static_cast<std::int64_t>(size_of(composition.type()))) {
        find_chunks();
    }

    int stages() const { return routes_.stages() * static_cast<int>(composition_.steps().size()); }

    OfRank of(int rank) const {
        OfRank found(stages());
        std::size_t stage = 0;
        for (const auto& step : composition_.steps()) {
            const StepOfRank part = step_of_rank(composition_, parameters_, routes_, step, rank);
            for (const StageOfRank& here : part.stages) {
                for (std::size_t begin = 0, end; begin < here.hops.size(); begin = end) {
                    end = begin + 1;
                    while (end < here.hops.size() && here.hops[end].peer == here.hops[begin].peer &&
                           here.hops[end].sending == here.hops[begin].sending)
                        ++end;
                    if (!here.hops[begin].sending) continue;
                    for (const auto& [chunk, times] : chunks_)
                        add(found[stage], step, here, begin, end, chunk, times);
                }
                ++stage;
            }
        }
        return found;
    }

  private:
    // Chunks whose pieces have the same sizes are counted as one.
    void find_chunks() {
        std::set<std::int64_t> counts;
        for (const auto& step : composition_.steps())
            for (const Primitive& primitive : step) counts.insert(primitive.count);
        std::map<std::vector<std::int64_t>, std::size_t> known;
        for (int chunk = 0; chunk < parameters_.depth; ++chunk) {
            std::vector<std::int64_t> sizes;
            for (const std::int64_t count : counts) {
                const auto [begin, end] = routes_.piece(count, chunk, 0, -1);
                sizes.push_back(end - begin);
            }
            const auto [at, inserted] = known.try_emplace(std::move(sizes), chunks_.size());
            if (inserted) chunks_.emplace_back(chunk, 0);
            ++chunks_[at->second].second;
        }
    }

    // Hops of one pair in a stage of a chunk: small pieces share a message, as PlanWriter has it.
    void add(std::map<int, CountedMessages>& levels, const std::vector<Primitive>& step,
             const StageOfRank& stage, std::size_t first, std::size_t last, int chunk, int times) const {
        std::int64_t together = 0;
        int level = 0;
        const auto message = [&](int of_level, std::int64_t bytes) {
            levels[of_level].messages += times;
            levels[of_level].bytes += bytes * times;
        };
        for (std::size_t k = first; k < last; ++k) {
            const HopOfRank& hop = stage.hops[k];
            const auto [begin, end] =
                routes_.piece(step[hop.piece.primitive].count, chunk, hop.piece.origin, hop.piece.stripe);
            const std::int64_t bytes = (end - begin) * size_;
            if (bytes == 0) continue;
            if (static_cast<std::size_t>(bytes) >= parameters_.pack_below) {
                message(hop.level, bytes);
            } else {
                if (together == 0) level = hop.level;
                together += bytes;
            }
        }
        if (together > 0) message(level, together);
    }

    const Composition& composition_;
    const PlanParameters& parameters_;
    const Routes routes_;
    std::int64_t size_;                       // of an element
    std::vector<std::pair<int, int>> chunks_; // one of each kind, and how many there are
};

// By how much two ranks differ: a share of bytes; none if they have different messages.
std::optional<double> difference(const OfRank& a, const OfRank& b) {
    double largest = 0;
    for (std::size_t stage = 0; stage < a.size(); ++stage) {
        if (a[stage].size() != b[stage].size()) return std::nullopt;
        for (auto x = a[stage].begin(), y = b[stage].begin(); x != a[stage].end(); ++x, ++y) {
            if (x->first != y->first || x->second.messages != y->second.messages) return std::nullopt;
            const auto p = static_cast<double>(x->second.bytes), q = static_cast<double>(y->second.bytes);
            largest = std::max(largest, std::abs(p - q) / std::max(p, q));
        }
    }
    return largest;
}

bool roots_alike(const Composition& composition) {
    std::vector<int> times(composition.ranks());
    for (const auto& step : composition.steps())
        for (const Primitive& primitive : step) ++times[primitive.root];
    return std::ranges::all_of(times, [&](int n) { return n == times[0]; });
}

} // namespace

PlanCounts count_messages(const Composition& composition, const PlanParameters& parameters, int each) {
    const Counter counter(composition, parameters);
    const int ranks = composition.ranks();
    PlanCounts found;
    std::map<int, OfRank> known;
    const auto of = [&](int rank) -> const OfRank& {
        const auto at = known.find(rank);
        return at != known.end() ? at->second : known.emplace(rank, counter.of(rank)).first->second;
    };
    const auto symmetry = [&]() -> std::optional<Symmetry> {
        if (ranks <= few_ranks || !roots_alike(composition)) return std::nullopt;
        auto all = Symmetry::of(parameters.hierarchy, parameters.ring);
        const auto alike = [&](int rank, int by) {
            const auto by_share = difference(of(rank), of(all->shifted(rank, by)));
            found.uneven = std::max(found.uneven, by_share.value_or(0));
            return by_share && *by_share <= (ranks <= each ? 0 : nearly);
        };
        int by = 0;
        for (int k = 0; all && k < static_cast<int>(all->digits().size()); ++k) {
            const Symmetry::Digit digit = all->digits()[k];
            if (!alike(0, digit.below) || !alike(0, (digit.factor - 1) * digit.below))
                all = all->without(k);
            else
                by += (digit.factor - 1) * digit.below;
        }
        if (!all || all->order() == 1) return std::nullopt;
        for (const int rank : all->representatives())
            if (!alike(rank, by)) return std::nullopt;
        return all;
    }();
    std::vector<int> counted;
    if (symmetry) counted = symmetry->representatives();
    for (int rank = 0; rank < ranks && !symmetry; ++rank) counted.push_back(rank);
    if (!symmetry) found.uneven = 0;
    found.counted = static_cast<int>(counted.size());
    found.stages.resize(counter.stages());
    for (const int rank : counted) {
        const auto at = known.find(rank);
        const OfRank here = at != known.end() ? at->second : counter.of(rank);
        for (std::size_t stage = 0; stage < here.size(); ++stage)
            for (const auto& [level, amount] : here[stage]) {
                CountedMessages& all = found.stages[stage][level];
                all.messages += amount.messages * (ranks / static_cast<int>(counted.size()));
                all.bytes += amount.bytes * (ranks / static_cast<int>(counted.size()));
            }
    }
    return found;
}

} // namespace jali
