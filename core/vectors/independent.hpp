// `JALI_INDEPENDENT` before a loop: no iteration reads what another one writes, so that compilers vectorise
// it though they cannot see that its arrays are apart, or the same element for element.
#pragma once

#if defined(__clang__)
#define JALI_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define JALI_INDEPENDENT _Pragma("GCC ivdep")
#else
#define JALI_INDEPENDENT
#endif
