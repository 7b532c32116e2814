// Signals between devices: words of 64 bits that one device writes and another waits for, and how kernels do
// both. docs/memory-model.md has the protocol. Nothing else in the prelude publishes or spins.
//
// A word counts epochs, which only grow. A signal is: the stores of all writers, a barrier of their block, a
// count of the blocks that have retired, a release at system scope. A wait is: an acquire at system scope, a
// barrier of the block. Whoever waits looks at the host's memory now and then (`watch`): there it says what
// it waits for, and there the host says that it has given up. core/peers/signal_pad.hpp has the
// other side.

// Whose kernel waits; as in core/peers/signal_pad.hpp.
const int64_t IN_PACK_HALOS = 1, IN_AWAIT_HALOS = 2, IN_AWAIT_SLOTS = 3, IN_RECEIVE_HALOS = 4,
              IN_PASS_MESSAGES = 5, IN_COLLECTIVE = 6, IN_SITES = 7;
// Of the host's memory: a word that is not 0 when it gives up, an unused one, then reports of two words each.
const int REPORTS = 128;

// ---- the order of stores and loads -----------------------------------------------------------------------

// What this thread has stored, and whoever it has met or counted before, is there for whoever waits for the
// word to come to `epoch`.
JALI_INLINE void signal(int64_t* word, int64_t epoch) {
#if defined(__CUDACC_RTC__)
    // a fence by itself, which also acquires: it passes on what this thread has counted of others
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    asm volatile("st.relaxed.sys.global.s64 [%0], %1;" ::"l"(word), "l"(epoch) : "memory");
#else
    fence_system();
    *(volatile int64_t*)word = epoch;
#endif
}
// A credit alone: what was read is in registers, or stored by this thread's block where nobody else looks.
JALI_INLINE void signal_without_stores(int64_t* word, int64_t epoch) {
    *(volatile int64_t*)word = epoch;
}

// A look at a word, and one after which what its writer stored before is there.
JALI_INLINE int64_t seen(const int64_t* word) {
    return *(const volatile int64_t*)word;
}
JALI_INLINE int64_t acquired(const int64_t* word) {
#if defined(__CUDACC_RTC__)
    int64_t value;
    asm volatile("ld.acquire.sys.global.s64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
#else
    const int64_t value = seen(word);
    fence_system();
    return value;
#endif
}

struct alignas(16) bytes16 {
    int64_t a, b;
};
// What another device has written: not from a cache that does not know.
JALI_INLINE bytes16 fresh(const bytes16* p) {
#if defined(__CUDACC_RTC__)
    bytes16 q;
    asm volatile("ld.global.cg.v2.s64 {%0, %1}, [%2];" : "=l"(q.a), "=l"(q.b) : "l"(p) : "memory");
    return q;
#else
    const volatile int64_t* words = (const volatile int64_t*)p;
    return {words[0], words[1]};
#endif
}

// ---- signals ---------------------------------------------------------------------------------------------

// All threads of a block, when they have stored `mine` of the `shares` that a signal stands for: true in one
// thread of all blocks, which has seen that all are done and is to signal. `retired` is 0 before and after.
JALI_INLINE bool all_retired(int64_t* retired, int64_t shares, int64_t mine) {
    meet();
    if (thread_in_block() != 0) return false;
    if (shares == 1) return true;
    // one fence for a block, and that of the signal for all of them: each sees what it counted
    fence_device();
    bool last = false;
    for (int64_t k = 0; k < mine; ++k) last = count_atomically(retired) + 1 == shares;
    if (last) *retired = 0;
    return last;
}

// ---- waits -----------------------------------------------------------------------------------------------

// Says what a thread waits for, and hears whether the host has given up. One place for a word: of two waits
// that share one the later is told.
JALI_INLINE bool given_up(const void* word, int64_t epoch, int64_t step, int64_t* watch) {
    volatile int64_t* report = watch + 2 + 2 * (uint64_t(word) / sizeof(int64_t) % REPORTS);
    report[0] = int64_t(word);
    report[1] = step << 56 | epoch;
    return *(volatile int64_t*)watch != 0;
}
JALI_INLINE void waits_no_longer(const void* word, int64_t* watch) {
    ((volatile int64_t*)watch)[3 + 2 * (uint64_t(word) / sizeof(int64_t) % REPORTS)] = 0;
}

// One thread, until the word has come to `epoch`, or the host has given up: then false. No fence, which would
// wait for what this thread's block has stored elsewhere; and while there is nothing to see no acquiring
// either, which empties the first-level cache that others use.
JALI_INLINE bool wait(const int64_t* word, int64_t epoch, int64_t step, int64_t* watch) {
    if (acquired(word) >= epoch) return true;
    bool told = false;
    // the host's memory is far away, so it is asked now and then only
    for (uint32_t checks = 1; seen(word) < epoch; ++checks) {
        if (checks % HOST_CHECK_INTERVAL == 0) {
            told = true;
            if (given_up(word, epoch, step, watch)) return false;
        }
        pause(word, epoch);
    }
    if (told) waits_no_longer(word, watch);
    return acquired(word) >= epoch;
}
// All threads of a block, of which one waits.
JALI_INLINE bool wait_in_block(const int64_t* word, int64_t epoch, int64_t step, int64_t* watch) {
    return meet_all(thread_in_block() != 0 || wait(word, epoch, step, watch));
}
// All threads of a block, for all these words.
JALI_INLINE bool wait_for_all(const int64_t* const* words, int64_t count, int64_t epoch, int64_t step,
                              int64_t* watch) {
    bool came = true;
    for (int64_t k = thread_in_block(); k < count; k += threads_in_block())
        came &= wait(words[k], epoch, step, watch);
    return meet_all(came);
}

// ---- words that are data as well -------------------------------------------------------------------------

// 16 bytes as 32, every 4 bytes with the flag behind them: written and read 8 bytes at least at a time.
union flagged_words {
    bytes16 all;
    uint32_t word[4];
    JALI_MEMBER flagged_words() {}
};
JALI_INLINE void store_flagged(char* to, const bytes16& what, uint32_t flag) {
    flagged_words q;
    q.all = what;
#if defined(__CUDACC_RTC__)
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(q.word[0]), "r"(flag),
                 "r"(q.word[1])
                 : "memory");
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to + 16), "r"(q.word[2]),
                 "r"(flag), "r"(q.word[3])
                 : "memory");
#else
    for (int k = 0; k < 4; ++k) ((volatile uint64_t*)to)[k] = uint64_t(flag) << 32 | q.word[k];
#endif
}
// A look at them: whether all four are there.
JALI_INLINE bool read_flagged(const char* from, uint32_t flag, bytes16& what) {
    flagged_words q;
#if defined(__CUDACC_RTC__)
    uint32_t f0, f1, f2, f3;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.word[0]), "=r"(f0), "=r"(q.word[1]), "=r"(f1)
                 : "l"(from)
                 : "memory");
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.word[2]), "=r"(f2), "=r"(q.word[3]), "=r"(f3)
                 : "l"(from + 16)
                 : "memory");
    const bool there = (f0 == flag) & (f1 == flag) & (f2 == flag) & (f3 == flag);
#else
    bool there = true;
    for (int k = 0; k < 4; ++k) {
        const uint64_t both = ((const volatile uint64_t*)from)[k];
        q.word[k] = uint32_t(both);
        there = there && uint32_t(both >> 32) == flag;
    }
#endif
    what = q.all;
    return there;
}
// One thread, until `look()` has found all flags, or the host has given up: then false. `missing(flag)` is
// where one of them is not.
template <class Check, class Missing>
JALI_INLINE bool wait_for_flags(int64_t step, int64_t* watch, Check check, Missing missing) {
    const char* told = nullptr;
    for (uint32_t checks = 1; !check(); ++checks) {
        if (checks % HOST_CHECK_INTERVAL == 0) {
            uint32_t flag = 0;
            told = missing(flag);
            if (given_up(told, flag, step, watch)) return false;
        }
        pause();
    }
    if (told != nullptr) waits_no_longer(told, watch);
    return true;
}
