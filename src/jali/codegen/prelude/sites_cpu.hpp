// Fields that a kernel finds site by site, in host memory: C-ordered arrays, fields of another lattice or of
// vectors of another length.
//
// A table of sites has an entry for each block of the kernel. Below SCATTERED it is the first of as many
// sites of an array as there are lanes, which follow each other; else SCATTERED | row, a row of the lists
// naming the site of each lane. With PAIRED these are two runs of such sites, of which the row says where
// they have, or would have, their lane 0, and how many lanes the first has; all of both can be read. A field
// of L lanes keeps N numbers of site s at block s / L, lane s % L. Ghosts of an array, and of a field on even
// sites, lie apart: from block `first` on, `away` bytes from where they would follow.
typedef __UINT16_TYPE__ uint16_t;
const uint32_t SCATTERED = uint32_t(1) << 31, PAIRED = uint32_t(1) << 30, ROW = PAIRED - 1;
struct site_table {
    const uint32_t *entries, *lists;
};
struct ghost_location {
    int64_t first, away;
};
JALI_INLINE const uint32_t* sites_of_lanes(site_table table, uint32_t entry) {
    return table.lists + int64_t(entry & ROW) * (JALI_LANES + 3);
}
// Number 0 of a site whose numbers take `size` bytes each; the next ones are L numbers further.
template <int L>
JALI_INLINE const char* location_of_site(const void* base, int64_t site, ghost_location ghosts, int64_t site_bytes,
                                      int64_t size) {
    const int64_t block = site / L;
    const char* place = (const char*)base + block * (L * site_bytes) + site % L * size;
    return block >= ghosts.first ? place + ghosts.away : place;
}

// One member of a field with a batch, whose members follow each other in every block.
template <class SITE>
struct member_sites {
    SITE* base;
    int64_t members, member;
};
template <class SITE>
JALI_INLINE member_sites<SITE> member_at(SITE* base, int64_t members, int64_t member) {
    return member_sites<SITE>{base, members, member};
}
template <int L, class SITE>
JALI_INLINE const char* location_of_site(member_sites<SITE> of, int64_t site, ghost_location ghosts,
                                         int64_t site_bytes, int64_t size) {
    const int64_t block = site / L;
    const char* place = (const char*)of.base + (block * of.members + of.member) * (L * site_bytes) + site % L * size;
    return block >= ghosts.first ? place + ghosts.away : place;
}
const ghost_location NO_GHOSTS = {int64_t(SCATTERED), 0};
// The site of a lane.
JALI_INLINE uint32_t site_of_lane(site_table table, int64_t x, int l) {
    const uint32_t entry = table.entries[x];
    return entry < SCATTERED ? entry + l : sites_of_lanes(table, entry)[l];
}

#if JALI_LANES > 1 && JALI_HAS(__builtin_shufflevector)
#define JALI_SHUFFLES
#endif
// Writes the lanes of a mask to numbers that follow each other, and touches no others: these may be another
// thread's.
#if JALI_LANES > 1 && JALI_REAL_BITS == 512 && defined(__AVX512DQ__)
typedef long long mask_512 __attribute__((vector_size(64)));
typedef int mask_512_of_32 __attribute__((vector_size(64)));
JALI_INLINE void store_some(JALI_REAL* to, real v, mask active) {
#if JALI_DOUBLE
    __builtin_ia32_storeupd512_mask(to, v, __builtin_ia32_cvtq2mask512((mask_512)active));
#else
    __builtin_ia32_storeups512_mask(to, v, __builtin_ia32_cvtd2mask512((mask_512_of_32)active));
#endif
}
#elif JALI_LANES > 1 && JALI_REAL_BITS == 256 && defined(__AVX__)
typedef long long mask_256 __attribute__((vector_size(32)));
typedef int mask_256_of_32 __attribute__((vector_size(32)));
JALI_INLINE void store_some(JALI_REAL* to, real v, mask active) {
#if JALI_DOUBLE
    __builtin_ia32_maskstorepd256((real*)to, (mask_256)active, v);
#else
    __builtin_ia32_maskstoreps256((real*)to, (mask_256_of_32)active, v);
#endif
}
#else
JALI_INLINE void store_some(JALI_REAL* to, real v, mask active) {
    for (int l = 0; l < JALI_LANES; ++l)
        if (active[l]) to[l] = v[l];
}
#endif
// Between N numbers of each of JALI_LANES sites that follow each other and vectors of lanes.
template <int N, class T>
struct run_of_sites {
    static JALI_MEMBER void load(real* out, const T* from) {
        for (int c = 0; c < N; ++c) {
#define JALI_LANE(l) JALI_REAL(from[l * N + c])
            out[c] = real{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
        }
    }
    static JALI_MEMBER void store(T* to, const real* v) {
        JALI_UNROLL
        for (int l = 0; l < JALI_LANES; ++l)
            for (int c = 0; c < N; ++c) to[l * N + c] = T(v[c][l]);
    }
    static JALI_MEMBER void store_some(T* to, const real* v, mask active) {
        for (int l = 0; l < JALI_LANES; ++l) {
            if (!active[l]) continue;
            for (int c = 0; c < N; ++c) to[l * N + c] = T(v[c][l]);
        }
    }
};
template <>
struct run_of_sites<1, JALI_REAL> {
    static JALI_MEMBER void load(real* out, const JALI_REAL* from) { copy_bits(out, from, sizeof *out); }
    static JALI_MEMBER void store(JALI_REAL* to, const real* v) { copy_bits(to, v, sizeof *v); }
    static JALI_MEMBER void store_some(JALI_REAL* to, const real* v, mask active) {
        ::store_some(to, *v, active);
    }
};
#if defined(JALI_SHUFFLES)
template <>
struct run_of_sites<2, JALI_REAL> {
    static JALI_MEMBER void load(real* out, const JALI_REAL* from) {
        real a, b;
        copy_bits(&a, from, sizeof a);
        copy_bits(&b, from + JALI_LANES, sizeof b);
#define JALI_LANE(l) 2 * l
        out[0] = __builtin_shufflevector(a, b, JALI_EACH_LANE(JALI_LANE));
#undef JALI_LANE
#define JALI_LANE(l) 2 * l + 1
        out[1] = __builtin_shufflevector(a, b, JALI_EACH_LANE(JALI_LANE));
#undef JALI_LANE
    }
#define JALI_LOWER(l) l / 2 + l % 2 * JALI_LANES
#define JALI_UPPER(l) (JALI_LANES + l) / 2 + l % 2 * JALI_LANES
    static JALI_MEMBER void store(JALI_REAL* to, const real* v) {
        const real a = __builtin_shufflevector(v[0], v[1], JALI_EACH_LANE(JALI_LOWER));
        const real b = __builtin_shufflevector(v[0], v[1], JALI_EACH_LANE(JALI_UPPER));
        copy_bits(to, &a, sizeof a);
        copy_bits(to + JALI_LANES, &b, sizeof b);
    }
    static JALI_MEMBER void store_some(JALI_REAL* to, const real* v, mask active) {
        const real a = __builtin_shufflevector(v[0], v[1], JALI_EACH_LANE(JALI_LOWER));
        const real b = __builtin_shufflevector(v[0], v[1], JALI_EACH_LANE(JALI_UPPER));
        ::store_some(to, a, __builtin_shufflevector(active, active, JALI_EACH_LANE(JALI_LOWER)));
        ::store_some(to + JALI_LANES, b, __builtin_shufflevector(active, active, JALI_EACH_LANE(JALI_UPPER)));
    }
#undef JALI_LOWER
#undef JALI_UPPER
};
#endif

// The N numbers of the sites that a table names.
template <int L, int N, class T>
JALI_INLINE const real* gather(real* tmp, const T* base, site_table table, int64_t x, ghost_location ghosts) {
    const uint32_t entry = table.entries[x];
    if (L == 1 && JALI_LIKELY(entry < SCATTERED)) {
        run_of_sites<N, T>::load(tmp, base + int64_t(entry) * N);
        return tmp;
    }
    const uint32_t* sites = sites_of_lanes(table, entry);
    if (L == 1 && N <= 2 && (entry & PAIRED)) {
        const uint32_t* runs = sites + JALI_LANES;
        real second[N];
        run_of_sites<N, T>::load(tmp, base + int64_t(runs[0]) * N);
        run_of_sites<N, T>::load(second, base + int64_t(runs[1]) * N);
#define JALI_LANE(l) l
        const mask first = integer{JALI_EACH_LANE(JALI_LANE)} < splat_integer(runs[2]);
#undef JALI_LANE
        for (int c = 0; c < N; ++c) tmp[c] = select(first, tmp[c], second[c]);
        return tmp;
    }
    const T* from[JALI_LANES];
    for (int l = 0; l < JALI_LANES; ++l)
        from[l] = (const T*)location_of_site<L>(base, sites[l], ghosts, N * sizeof(T), sizeof(T));
    for (int c = 0; c < N; ++c) {
#define JALI_LANE(l) JALI_REAL(from[l][c * L])
        tmp[c] = real{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
    }
    return tmp;
}
template <int L, int N, class T>
JALI_INLINE void scatter(T* base, site_table table, int64_t x, const real* v, mask active) {
    const uint32_t entry = table.entries[x];
    if (L == 1 && JALI_LIKELY(entry < SCATTERED)) {
        T* to = base + int64_t(entry) * N;
        if (JALI_LIKELY(all(active))) return run_of_sites<N, T>::store(to, v);
        return run_of_sites<N, T>::store_some(to, v, active);
    }
    const uint32_t* sites = sites_of_lanes(table, entry);
    for (int l = 0; l < JALI_LANES; ++l) {
        if (!active[l]) continue;
        T* to = (T*)location_of_site<L>(base, sites[l], NO_GHOSTS, N * sizeof(T), sizeof(T));
        for (int c = 0; c < N; ++c) to[c * L] = T(v[c][l]);
    }
}
// The same of a member.
template <int L, int N, class T>
JALI_INLINE const real* gather(real* tmp, member_sites<T> of, site_table table, int64_t x, ghost_location ghosts) {
    const T* from[JALI_LANES];
    for (int l = 0; l < JALI_LANES; ++l)
        from[l] = (const T*)location_of_site<L>(of, site_of_lane(table, x, l), ghosts, N * sizeof(T), sizeof(T));
    for (int c = 0; c < N; ++c) {
#define JALI_LANE(l) JALI_REAL(from[l][c * L])
        tmp[c] = real{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
    }
    return tmp;
}
template <int L, int N, class T>
JALI_INLINE void scatter(member_sites<T> of, site_table table, int64_t x, const real* v, mask active) {
    for (int l = 0; l < JALI_LANES; ++l) {
        if (!active[l]) continue;
        T* to = (T*)location_of_site<L>(of, site_of_lane(table, x, l), NO_GHOSTS, N * sizeof(T), sizeof(T));
        for (int c = 0; c < N; ++c) to[c * L] = T(v[c][l]);
    }
}
#if JALI_WIDENS
template <int L, int N, class SITES>
JALI_INLINE void scatter(SITES base, site_table table, int64_t x, const real* v, mask active, int64_t* counters) {
    const mask lost = beyond_float<N>(v) & active;
    if (!JALI_LIKELY(!any(lost))) count_overflow(counters, lost);
    scatter<L, N>(base, table, x, v, active);
}
#endif

// The same for coded fields: [unit][lane] of a block, and the norms of its lanes. SITES: all of a field, or a member.
template <int L, int N, class FORMAT, int UNITS, int PACKET, class V, class SITES>
JALI_INLINE const V* gather_units(V* tmp, SITES base, site_table table, int64_t x, ghost_location ghosts) {
    typedef typename FORMAT::unit unit;
    constexpr int64_t bytes = coded<FORMAT, UNITS, PACKET>::site_bytes;
    integer units[UNITS];
    real norm = splat(0);
    for (int l = 0; l < JALI_LANES; ++l) {
        const uint32_t site = site_of_lane(table, x, l);
        const char* from = location_of_site<L>(base, site, ghosts, bytes, sizeof(unit));
        for (int c = 0; c < UNITS; ++c) {
            unit u;
            copy_bits(&u, from + c * L * sizeof u, sizeof u);
            units[c][l] = lane_integer(u);
        }
        if (FORMAT::norm) {
            float n;
            const char* norms =
                location_of_site<L>(base, site, ghosts, bytes, sizeof n) + L * UNITS * sizeof(unit);
            copy_bits(&n, norms, sizeof n);
            norm[l] = JALI_REAL(n);
        }
    }
    FORMAT::template decode<N>(tmp, units, norm);
    return tmp;
}
template <int L, int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE const V* gather_coded(V* tmp, const coded<FORMAT, UNITS, PACKET>* base, site_table table, int64_t x,
                                  ghost_location ghosts) {
    return gather_units<L, N, FORMAT, UNITS, PACKET>(tmp, base, table, x, ghosts);
}
template <int L, int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE const V* gather_coded(V* tmp, member_sites<const coded<FORMAT, UNITS, PACKET>> of, site_table table,
                                  int64_t x, ghost_location ghosts) {
    return gather_units<L, N, FORMAT, UNITS, PACKET>(tmp, of, table, x, ghosts);
}
template <int L, int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE const V* gather_coded(V* tmp, member_sites<coded<FORMAT, UNITS, PACKET>> of, site_table table, int64_t x,
                                  ghost_location ghosts) {
    return gather_units<L, N, FORMAT, UNITS, PACKET>(tmp, of, table, x, ghosts);
}
template <int L, int N, class FORMAT, int UNITS, int PACKET, class V, class SITES>
JALI_INLINE void scatter_units(SITES base, site_table table, int64_t x, const V* v, mask active, int64_t* counters) {
    typedef typename FORMAT::unit unit;
    constexpr int64_t bytes = coded<FORMAT, UNITS, PACKET>::site_bytes;
    integer units[UNITS];
    real norm = splat(0);
    const mask lost = FORMAT::template encode<N>(units, &norm, v) & active;
    if (!JALI_LIKELY(!any(lost))) count_overflow(counters, lost);
    for (int l = 0; l < JALI_LANES; ++l) {
        if (!active[l]) continue;
        const uint32_t site = site_of_lane(table, x, l);
        char* to = (char*)location_of_site<L>(base, site, NO_GHOSTS, bytes, sizeof(unit));
        for (int c = 0; c < UNITS; ++c) {
            const unit u = unit(units[c][l]);
            copy_bits(to + c * L * sizeof u, &u, sizeof u);
        }
        if (FORMAT::norm) {
            const float n = float(norm[l]);
            char* norms =
                (char*)location_of_site<L>(base, site, NO_GHOSTS, bytes, sizeof n) + L * UNITS * sizeof(unit);
            copy_bits(norms, &n, sizeof n);
        }
    }
}

template <int L, int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE void scatter_coded(coded<FORMAT, UNITS, PACKET>* base, site_table table, int64_t x, const V* v, mask active,
                               int64_t* counters) {
    scatter_units<L, N, FORMAT, UNITS, PACKET>(base, table, x, v, active, counters);
}
template <int L, int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE void scatter_coded(member_sites<coded<FORMAT, UNITS, PACKET>> of, site_table table, int64_t x, const V* v,
                               mask active, int64_t* counters) {
    scatter_units<L, N, FORMAT, UNITS, PACKET>(of, table, x, v, active, counters);
}

// Boundary factors of what a table names: phases[class][re, im], or signs[class].
template <int PARTS>
JALI_INLINE bool factors_of_sites(given_real* factors, site_table table, const uint16_t* classes, int64_t x,
                                  const given_real* of_classes) {
    const uint32_t entry = table.entries[x];
    if (JALI_LIKELY(entry < SCATTERED)) return false;
    const uint16_t* kinds = classes + int64_t(entry & ROW) * JALI_LANES;
    bool any_other = false;
    for (int l = 0; l < JALI_LANES; ++l) {
        any_other |= kinds[l] != 0;
        for (int part = 0; part < PARTS; ++part)
            factors[part * JALI_LANES + l] = of_classes[kinds[l] * PARTS + part];
    }
    return any_other;
}
template <int N>
JALI_INLINE void phase_sites(real* v, site_table table, const uint16_t* classes, int64_t x,
                             const given_real* phases) {
    given_real factors[2 * JALI_LANES];
    if (factors_of_sites<2>(factors, table, classes, x, phases)) apply_phase<N>(v, factors);
}
template <int N, class V>
JALI_INLINE void sign_sites(V* v, site_table table, const uint16_t* classes, int64_t x,
                            const given_real* signs) {
    given_real factors[JALI_LANES];
    if (factors_of_sites<1>(factors, table, classes, x, signs)) apply_sign<N>(v, factors);
}
