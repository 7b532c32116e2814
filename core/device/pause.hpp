// A look that found nothing, while the core stays ours: the other thread of it gets on meanwhile.
#pragma once

namespace jali {

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

} // namespace jali
