// The same loops with AVX2 and F16C; CMakeLists.txt sets the flags where the compiler targets x86-64.
#include "schedule/reduce_loops.hpp"

namespace jali {
#if defined(__AVX2__) && defined(__F16C__)
constinit const ReduceTable reduce_table_avx2 = make_reduce_table();
#else
constinit const ReduceTable reduce_table_avx2{};
#endif
} // namespace jali
