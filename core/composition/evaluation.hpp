// The final contents of every buffer of every rank, as symbols: a composition's meaning, without data.
#pragma once

#include "composition/composition.hpp"
#include "schedule/ordered_events.hpp"
#include "schedule/symbolic.hpp"

#include <functional>
#include <unordered_map>
#include <vector>

namespace jali {

struct Evaluation { // [rank * (buffers + 1) + buffer]; the last is a plan's scratch, with unspecified
                    // contents
    std::vector<symbolic::Contents> before, after;
    std::vector<symbolic::Ranges<bool>> written;
};

// `undefined` is called for a read of elements that are no input and were not written before; it throws.
Evaluation evaluate(const Composition& composition, symbolic::Symbols& symbols, bool reproducible,
                    const std::function<void(int rank, const Region&)>& undefined);

// Bytes of a buffer of a rank before a run.
std::uint64_t label_of_buffer(int rank, int buffer);

// Symbols of an evaluation as values of a rank's events, to which it adds their operands.
class ExportedValues {
  public:
    ExportedValues(const Composition& composition, symbolic::Symbols& symbols, bool reproducible,
                   std::vector<CombiningOperation>& operations, std::vector<Value>& values);
    std::int32_t number(int symbol);

  private:
    const symbolic::Symbols& symbols_;
    std::vector<Value>& values_;
    std::vector<std::int32_t> hows_; // by the number of an operation among symbols
    std::unordered_map<int, std::int32_t> numbers_;
};

} // namespace jali
