// Fields in device memory: loading and storing the reals of a site.
//
// A field of N reals is [group][packet][site of the group][real of the packet]: sites come in groups of
// GROUP, a warp or half a wavefront, and reals in packets of up to 16 bytes, so that neighbouring threads read
// neighbouring packets. An entry of a neighbour table is class << JALI_BLOCK_BITS | site; the class names a row of the
// boundary factors, phases[class][2].

const int GROUP = 32;
const uint32_t ENTRY_CLASS_SHIFT = JALI_BLOCK_BITS;
const uint32_t ENTRY_BLOCK = (uint32_t(1) << ENTRY_CLASS_SHIFT) - 1;

template <class T, int SIZE>
struct alignas(SIZE * sizeof(T)) packet {
    T value[SIZE];
};
// Reals of a packet: the most that 16 bytes hold and the element divides into.
template <class T>
constexpr int packet_size(int reals) {
    return sizeof(T) == 8 ? (reals % 2 == 0 ? 2 : 1) : reals % 4 == 0 ? 4 : reals % 2 == 0 ? 2 : 1;
}

template <int N, class T>
JALI_INLINE void load_site(real* out, const T* base, int64_t x) {
    constexpr int SIZE = packet_size<T>(N), PACKETS = N / SIZE;
    const packet<T, SIZE>* from = (const packet<T, SIZE>*)base + (x / GROUP) * (PACKETS * GROUP) + x % GROUP;
    JALI_UNROLL
    for (int k = 0; k < PACKETS; ++k) {
        const packet<T, SIZE> q = from[k * GROUP];
        JALI_UNROLL
        for (int j = 0; j < SIZE; ++j) out[k * SIZE + j] = JALI_REAL(q.value[j]);
    }
}
template <int N, class T>
JALI_INLINE void store_site(T* base, int64_t x, const real* v) {
    constexpr int SIZE = packet_size<T>(N), PACKETS = N / SIZE;
    packet<T, SIZE>* to = (packet<T, SIZE>*)base + (x / GROUP) * (PACKETS * GROUP) + x % GROUP;
    JALI_UNROLL
    for (int k = 0; k < PACKETS; ++k) {
        packet<T, SIZE> q;
        JALI_UNROLL
        for (int j = 0; j < SIZE; ++j) q.value[j] = T(v[k * SIZE + j].value);
        to[k * GROUP] = q;
    }
}

// T is the type of the field in memory: that of the arithmetic, or float under double. Loading is exact, storing
// rounds to nearest.
template <int N, class T>
JALI_INLINE const real* block_at(real* tmp, const T* base, int64_t x) {
    load_site<N>(tmp, base, x);
    return tmp;
}
template <int N, class T>
JALI_INLINE const real* stage(real* tmp, const T* base, uint32_t entry) {
    load_site<N>(tmp, base, int64_t(entry & ENTRY_BLOCK));
    return tmp;
}
template <int N, class T>
JALI_INLINE const real* stage_phased(real* tmp, const T* base, uint32_t entry, const JALI_REAL* phases) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    stage<N>(tmp, base, entry);
    if (kind != 0) apply_phase<N>(tmp, phases + kind * 2);
    return tmp;
}
template <int N, class T>
JALI_INLINE const real* stage_signed(real* tmp, const T* base, uint32_t entry, const JALI_REAL* signs) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    stage<N>(tmp, base, entry);
    if (kind != 0) apply_sign<N>(tmp, signs + kind);
    return tmp;
}
template <int N, class T>
JALI_INLINE void store_element(T* base, int64_t x, const real* v) {
    store_site<N>(base, x, v);
}
