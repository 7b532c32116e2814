// GCC makes -fma(a, b, c) fma(-a, b, -c), which has the other zero where everything cancels: one lane would differ from several, whose
// multiply-adds it does not know as such. JALI_ROUNDED(x) hides where a value comes from; it is no instruction.
#if defined(__GNUC__) && !defined(__clang__) && (defined(__x86_64__) || defined(__i386__))
#define JALI_ROUNDED(x) asm("" : "+x"(x))
#elif defined(__GNUC__) && !defined(__clang__) && defined(__aarch64__)
#define JALI_ROUNDED(x) asm("" : "+w"(x))
#else
#define JALI_ROUNDED(x) (void)x
#endif
