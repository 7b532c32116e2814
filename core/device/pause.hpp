// A pause after a check that found nothing, without yielding the core: its other hardware thread proceeds.
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
