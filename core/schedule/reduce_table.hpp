// The loops of element.hpp as a table, once per instruction set. Inside the core; reduce.cpp chooses.
#pragma once

#include "schedule/element.hpp"

namespace jali {

// into[k] = sources[0][k] op ... op sources[n - 1][k], divided by `divide_by` unless that is 1.
using ReduceLoop = void (*)(void* into, const void* const* sources, std::size_t n, std::size_t count,
                            int divide_by);

// Where no loop is defined for a type and operation, there is a null pointer.
struct ReduceTable {
    ReduceLoop loops[data_types][operations];
    ReduceLoop of(const Reduction& reduction) const {
        return loops[static_cast<int>(reduction.type)][static_cast<int>(reduction.operation)];
    }
};
extern const ReduceTable reduce_table_base;
extern const ReduceTable reduce_table_avx2; // all null where this build has none

} // namespace jali
