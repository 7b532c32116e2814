// The target CPU: how functions are declared, numbers of fixed width, and what is one instruction of scalars.
//
// No header is included and nothing is allocated. Tuned for x86-64; other targets take the per-lane forms.

#define JALI_INLINE static inline __attribute__((always_inline, unused))
#define JALI_MEMBER inline __attribute__((always_inline))
#define JALI_CALL static __attribute__((noinline, unused))
#define JALI_OUT_OF_LINE JALI_CALL
#define copy_bits __builtin_memcpy
#define JALI_LIKELY(condition) __builtin_expect(!!(condition), 1)
#if defined(__clang__)
#define JALI_UNROLL _Pragma("unroll")
#else
#define JALI_UNROLL _Pragma("GCC unroll 16")
#endif
#if defined(__has_builtin)
#define JALI_HAS(builtin) __has_builtin(builtin)
#else
#define JALI_HAS(builtin) 0
#endif

typedef __INT32_TYPE__ int32_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;

JALI_INLINE double fma_one(double a, double b, double c) {
    double r = __builtin_fma(a, b, c);
    JALI_ROUNDED(r);
    return r;
}
JALI_INLINE float fma_one(float a, float b, float c) {
    float r = __builtin_fmaf(a, b, c);
    JALI_ROUNDED(r);
    return r;
}
JALI_INLINE double sqrt_one(double a) {
    return __builtin_sqrt(a);
}
JALI_INLINE float sqrt_one(float a) {
    return __builtin_sqrtf(a);
}
JALI_INLINE double floor_one(double a) {
    return __builtin_floor(a);
}
JALI_INLINE float floor_one(float a) {
    return __builtin_floorf(a);
}
JALI_INLINE double infinity_of_target() {
    return __builtin_inf();
}
JALI_INLINE double nan_of_target() {
    return __builtin_nan("");
}
