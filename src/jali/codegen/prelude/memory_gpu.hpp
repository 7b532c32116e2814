// Fields in device memory: loading and storing the reals of a site.
//
// A field of N reals is [group][packet][site of the group][real of the packet]: sites come in groups of
// GROUP, a warp or half a wavefront, and reals in packets of up to 16 bytes (jali.codegen.storage_formats says how
// large), so that neighbouring threads read neighbouring packets. An entry of a neighbour table is class <<
// JALI_BLOCK_BITS | site; the class names a row of the boundary factors, phases[class][2].

const int GROUP = 32;
const uint32_t ENTRY_CLASS_SHIFT = JALI_BLOCK_BITS;
const uint32_t ENTRY_BLOCK = (uint32_t(1) << ENTRY_CLASS_SHIFT) - 1;

template <class T, int SIZE>
struct alignas(SIZE * sizeof(T)) packet {
    T value[SIZE];
};
template <int N, class T, int SIZE>
JALI_INLINE void load_site(real* out, const packet<T, SIZE>* base, int64_t x) {
    constexpr int PACKETS = N / SIZE;
    const packet<T, SIZE>* from = base + (x / GROUP) * (PACKETS * GROUP) + x % GROUP;
    JALI_UNROLL
    for (int k = 0; k < PACKETS; ++k) {
        const packet<T, SIZE> q = from[k * GROUP];
        JALI_UNROLL
        for (int j = 0; j < SIZE; ++j) out[k * SIZE + j] = JALI_REAL(q.value[j]);
    }
}
template <int N, class T, int SIZE>
JALI_INLINE void store_site(packet<T, SIZE>* base, int64_t x, const real* v) {
    constexpr int PACKETS = N / SIZE;
    packet<T, SIZE>* to = base + (x / GROUP) * (PACKETS * GROUP) + x % GROUP;
    JALI_UNROLL
    for (int k = 0; k < PACKETS; ++k) {
        packet<T, SIZE> q;
        JALI_UNROLL
        for (int j = 0; j < SIZE; ++j) q.value[j] = T(v[k * SIZE + j].value);
        to[k * GROUP] = q;
    }
}

// A field of a batch keeps its members one behind the other in each group: the base for a plain load of a site of one.
template <int N, class T, int SIZE>
JALI_INLINE packet<T, SIZE>* member_of(packet<T, SIZE>* base, int64_t x, int64_t members, int64_t member) {
    return base + (x / GROUP * (members - 1) + member) * (N / SIZE * GROUP);
}
template <int N, class T, int SIZE>
JALI_INLINE const packet<T, SIZE>* member_of(const packet<T, SIZE>* base, int64_t x, int64_t members, int64_t member) {
    return base + (x / GROUP * (members - 1) + member) * (N / SIZE * GROUP);
}

// T is the type of the numbers in memory: that of the arithmetic, or float under double. Loading is exact,
// storing rounds to nearest.
template <int N, class T, int SIZE>
JALI_INLINE const real* block_at(real* tmp, const packet<T, SIZE>* base, int64_t x) {
    load_site<N>(tmp, base, x);
    return tmp;
}
template <int N, class T, int SIZE>
JALI_INLINE void store_element(packet<T, SIZE>* base, int64_t x, const real* v) {
    store_site<N>(base, x, v);
}
#if JALI_WIDENS
template <int N, int SIZE>
JALI_INLINE void store_element(packet<float, SIZE>* base, int64_t x, const real* v, int64_t* counters) {
    if (any(beyond_float<N>(v))) count_overflow(counters, all_lanes(true));
    store_site<N>(base, x, v);
}
template <int N, int SIZE>
JALI_INLINE void as_stored(real* out, const packet<float, SIZE>*, const real* v) {
    for (int c = 0; c < N; ++c) out[c] = JALI_REAL(float(v[c].value));
}
#endif

// Units of a coded field: its packets, and the norm of a site behind those of its group.
template <class FORMAT, int UNITS, int PACKET>
JALI_INLINE const char* group_of(const coded<FORMAT, UNITS, PACKET>* base, int64_t x) {
    return (const char*)base + (x / GROUP) * (GROUP * coded<FORMAT, UNITS, PACKET>::site_bytes);
}
template <int N, class FORMAT, int UNITS, int PACKET>
JALI_INLINE coded<FORMAT, UNITS, PACKET>* member_of(coded<FORMAT, UNITS, PACKET>* base, int64_t x, int64_t members,
                                                    int64_t member) {
    const int64_t bytes = coded<FORMAT, UNITS, PACKET>::site_bytes * GROUP;
    return (coded<FORMAT, UNITS, PACKET>*)((char*)base + (x / GROUP * (members - 1) + member) * bytes);
}
template <int N, class FORMAT, int UNITS, int PACKET>
JALI_INLINE const coded<FORMAT, UNITS, PACKET>* member_of(const coded<FORMAT, UNITS, PACKET>* base, int64_t x,
                                                          int64_t members, int64_t member) {
    return member_of<N>((coded<FORMAT, UNITS, PACKET>*)base, x, members, member);
}
template <class FORMAT, int UNITS, int PACKET>
JALI_INLINE void load_units(integer* units, real* norm, const coded<FORMAT, UNITS, PACKET>* base, int64_t x) {
    typedef packet<typename FORMAT::unit, PACKET> piece;
    const char* group = group_of(base, x);
    const piece* from = (const piece*)group + x % GROUP;
    JALI_UNROLL
    for (int k = 0; k < UNITS / PACKET; ++k) {
        const piece q = from[k * GROUP];
        JALI_UNROLL
        for (int j = 0; j < PACKET; ++j) units[k * PACKET + j] = lane_integer(q.value[j]);
    }
    if (FORMAT::norm)
        *norm = JALI_REAL(((const float*)(group + GROUP * UNITS * sizeof(typename FORMAT::unit)))[x % GROUP]);
}
template <class FORMAT, int UNITS, int PACKET>
JALI_INLINE void store_units(coded<FORMAT, UNITS, PACKET>* base, int64_t x, const integer* units, real norm) {
    typedef packet<typename FORMAT::unit, PACKET> piece;
    char* group = (char*)group_of(base, x);
    piece* to = (piece*)group + x % GROUP;
    JALI_UNROLL
    for (int k = 0; k < UNITS / PACKET; ++k) {
        piece q;
        JALI_UNROLL
        for (int j = 0; j < PACKET; ++j) q.value[j] = typename FORMAT::unit(units[k * PACKET + j].value);
        to[k * GROUP] = q;
    }
    if (FORMAT::norm)
        ((float*)(group + GROUP * UNITS * sizeof(typename FORMAT::unit)))[x % GROUP] = float(norm.value);
}
// The boundary factor of what an entry names.
template <int N>
JALI_INLINE void phase_across(real* x, uint32_t entry, const given_real* phases) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    if (kind != 0) apply_phase<N>(x, phases + kind * 2);
}
// Somebody's array in C order: a site's packets follow each other. Ghosts lie apart, in groups; `ghosts` is
// where these would begin if sites were in front of them.
template <class SITE>
struct array_sites {
    SITE *base, *ghosts;
    int64_t first_ghost;
};
template <class SITE>
JALI_INLINE array_sites<SITE> in_array(SITE* base, int64_t first_ghost, int64_t away) {
    return array_sites<SITE>{base, (SITE*)((char*)base + away), first_ghost};
}
template <int N, class T, int SIZE>
JALI_INLINE const real* block_in_row(real* out, const packet<T, SIZE>* base, int64_t x) {
    const packet<T, SIZE>* from = base + x * (N / SIZE);
    JALI_UNROLL
    for (int k = 0; k < N / SIZE; ++k) {
        const packet<T, SIZE> q = from[k];
        JALI_UNROLL
        for (int j = 0; j < SIZE; ++j) out[k * SIZE + j] = JALI_REAL(q.value[j]);
    }
    return out;
}
template <int N, class T, int SIZE>
JALI_INLINE void store_in_row(packet<T, SIZE>* base, int64_t x, const real* v) {
    packet<T, SIZE>* to = base + x * (N / SIZE);
    JALI_UNROLL
    for (int k = 0; k < N / SIZE; ++k) {
        packet<T, SIZE> q;
        JALI_UNROLL
        for (int j = 0; j < SIZE; ++j) q.value[j] = T(v[k * SIZE + j].value);
        to[k] = q;
    }
}
// Whole numbers: a site is one unit, in groups and in rows.
template <int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE const V* block_in_row(V* out, const coded<FORMAT, UNITS, PACKET>* base, int64_t x) {
    static_assert(UNITS == PACKET, "a coded site of an array is one packet");
    return block_at<N>(out, base, x);
}
// A site of an array that has a batch keeps its members one behind the other.
template <int N, class T, int SIZE>
JALI_INLINE packet<T, SIZE>* member_in_row(packet<T, SIZE>* base, int64_t x, int64_t members, int64_t member) {
    return base + (x * (members - 1) + member) * (N / SIZE);
}
template <int N, class T, int SIZE>
JALI_INLINE const packet<T, SIZE>* member_in_row(const packet<T, SIZE>* base, int64_t x, int64_t members,
                                                 int64_t member) {
    return base + (x * (members - 1) + member) * (N / SIZE);
}
template <int N, class FORMAT, int UNITS, int PACKET>
JALI_INLINE coded<FORMAT, UNITS, PACKET>* member_in_row(coded<FORMAT, UNITS, PACKET>* base, int64_t x, int64_t members,
                                                        int64_t member) {
    const int64_t bytes = coded<FORMAT, UNITS, PACKET>::site_bytes;
    return (coded<FORMAT, UNITS, PACKET>*)((char*)base + (x * (members - 1) + member) * bytes);
}
template <int N, class FORMAT, int UNITS, int PACKET>
JALI_INLINE const coded<FORMAT, UNITS, PACKET>* member_in_row(const coded<FORMAT, UNITS, PACKET>* base, int64_t x,
                                                              int64_t members, int64_t member) {
    return member_in_row<N>((coded<FORMAT, UNITS, PACKET>*)base, x, members, member);
}
template <int N, class SITE>
JALI_INLINE array_sites<SITE> member_of(array_sites<SITE> field, int64_t x, int64_t members, int64_t member) {
    return array_sites<SITE>{member_in_row<N>(field.base, x, members, member),
                             member_of<N>(field.ghosts, x, members, member), field.first_ghost};
}
template <int N, class V, class SITE>
JALI_INLINE const V* block_at(V* tmp, array_sites<SITE> field, int64_t x) {
    return x < field.first_ghost ? block_in_row<N>(tmp, field.base, x) : block_at<N>(tmp, field.ghosts, x);
}
template <int N, class T, int SIZE>
JALI_INLINE void store_element(array_sites<packet<T, SIZE>> field, int64_t x, const real* v) {
    store_in_row<N>(field.base, x, v);
}
#if JALI_WIDENS
template <int N, int SIZE>
JALI_INLINE void store_element(array_sites<packet<float, SIZE>> field, int64_t x, const real* v,
                               int64_t* counters) {
    if (any(beyond_float<N>(v))) count_overflow(counters, all_lanes(true));
    store_in_row<N>(field.base, x, v);
}
#endif
template <int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE void store_element(array_sites<coded<FORMAT, UNITS, PACKET>> field, int64_t x, const V* v,
                               int64_t* counters) {
    store_element<N>(field.base, x, v, counters);
}

// A field whose sites are written where a table leads.
template <class FIELD>
struct led_sites {
    FIELD field;
    const uint32_t* table;
};
template <class FIELD>
JALI_INLINE led_sites<FIELD> led_by(FIELD field, const uint32_t* table) {
    return led_sites<FIELD>{field, table};
}
template <int N, class V, class FIELD>
JALI_INLINE void store_element(led_sites<FIELD> to, int64_t x, const V* v) {
    store_element<N>(to.field, int64_t(to.table[x] & ENTRY_BLOCK), v);
}
template <int N, class V, class FIELD>
JALI_INLINE void store_element(led_sites<FIELD> to, int64_t x, const V* v, int64_t* counters) {
    store_element<N>(to.field, int64_t(to.table[x] & ENTRY_BLOCK), v, counters);
}

// What an entry of a neighbour table names.
template <int N, class V, class FIELD>
JALI_INLINE const V* stage(V* tmp, FIELD base, uint32_t entry) {
    return block_at<N>(tmp, base, int64_t(entry & ENTRY_BLOCK));
}
template <int N, class FIELD>
JALI_INLINE const real* stage_phased(real* tmp, FIELD base, uint32_t entry, const given_real* phases) {
    stage<N>(tmp, base, entry);
    phase_across<N>(tmp, entry, phases);
    return tmp;
}
template <int N, class V, class FIELD>
JALI_INLINE const V* stage_signed(V* tmp, FIELD base, uint32_t entry, const given_real* signs) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    stage<N>(tmp, base, entry);
    if (kind != 0) apply_sign<N>(tmp, signs + kind);
    return tmp;
}
