#include "schedule/reduce_loops.hpp"

namespace jali {
constinit const ReduceTable reduce_table_base = make_reduce_table();
}
