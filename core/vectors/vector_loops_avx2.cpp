// The same loops with AVX2; CMakeLists.txt sets the flags where the compiler targets x86-64.
#include "vectors/vector_loops.hpp"

namespace jali {
#if defined(__AVX2__)
constinit const VectorTable vector_table_avx2 = make_vector_table();
#else
constinit const VectorTable vector_table_avx2{};
#endif
} // namespace jali
