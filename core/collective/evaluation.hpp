// What a composition leaves in every buffer of every rank, as symbols: its meaning, without data.
#pragma once

#include "collective/composition.hpp"
#include "schedule/schedule.hpp"
#include "schedule/symbolic.hpp"

#include <functional>
#include <vector>

namespace jali {

struct Evaluation { // [rank * (buffers + 1) + buffer]; the last is a plan's scratch, of which nothing is said
    std::vector<symbolic::Contents> before, after;
    std::vector<symbolic::Ranges<bool>> written;
};

// `undefined` is told what is read though it is no input and was not written before; it throws.
Evaluation evaluate(const Composition& composition, symbolic::Symbols& symbols, bool reproducible,
                    const std::function<void(int rank, const Region&)>& undefined);

} // namespace jali
