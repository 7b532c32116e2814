#include "vectors/vector_loops.hpp"

namespace jali {
constinit const VectorTable vector_table_base = make_vector_table();
}
