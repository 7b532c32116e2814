// Several sites of one thread: JALI_SITES rounds of JALI_WIDTH neighbours, where these are defined.
//
// A block takes a tile of positions. In every round each of its threads takes the next JALI_WIDTH of them, so
// that neighbouring threads meet neighbouring memory in every round. What a thread computes for its sites is
// stored when all of it is known, so that the loads of all are under way together. Positions beyond the ends
// are computed as the first one is, and left out of everything that can be seen. With JALI_WIDTH above 1
// positions are sites: neighbours lie side by side in each packet of a group, and are loaded and stored by up
// to 16 bytes at once.
#if defined(JALI_SITES)
const int EACH = JALI_SITES * JALI_WIDTH;

struct thread_sites {
    int64_t i[EACH], x[EACH];  // position and site
    bool there[EACH];          // the launch has this position
    int64_t first[JALI_SITES]; // site of a round's first neighbour, a multiple of JALI_WIDTH
    bool whole[JALI_SITES];    // all neighbours of a round are there
};
JALI_INLINE thread_sites sites_of_thread(int64_t tile, int64_t begin, int64_t end, const int32_t* blocks) {
    thread_sites own;
    JALI_UNROLL
    for (int s = 0; s < JALI_SITES; ++s) {
        const int64_t at = tile + (s * threads_in_block() + thread_in_block()) * JALI_WIDTH;
        own.first[s] = at < end ? at : begin / JALI_WIDTH * JALI_WIDTH;
        own.whole[s] = (JALI_WIDTH == 1 || at >= begin) && at + JALI_WIDTH <= end;
        JALI_UNROLL
        for (int l = 0; l < JALI_WIDTH; ++l) {
            const int j = s * JALI_WIDTH + l;
            own.there[j] = (JALI_WIDTH == 1 || at + l >= begin) && at + l < end;
            own.i[j] = own.there[j] ? at + l : begin;
            own.x[j] = JALI_WIDTH == 1 && blocks ? (int64_t)blocks[own.i[j]] : own.i[j];
        }
    }
    return own;
}

// The tiles of a block in a part of the grid; the first begins where neighbours do.
#define JALI_FOR_EACH_TILE(part, tile, begin, end)                                                           \
    for (int64_t tile = (begin) / JALI_WIDTH * JALI_WIDTH + (part).block * threads_in_block() * EACH;        \
         tile < (end); tile += (part).threads() * EACH)

// Of JALI_WIDTH neighbours, packet by packet: reals of one packet in a row, as wide as memory is accessed.
template <int N, class T, int SIZE_>
struct neighbours {
    static const int SIZE = SIZE_, PACKETS = N / SIZE, ROW = SIZE * JALI_WIDTH;
    static const int MOST = 16 / int(sizeof(T)), PIECE = ROW < MOST ? ROW : MOST;
    typedef packet<T, PIECE> piece;
    static JALI_MEMBER int64_t place(int64_t x) {
        return ((x / GROUP) * (PACKETS * GROUP) + x % GROUP) * SIZE;
    }
};
template <int N, class T, int SIZE>
JALI_INLINE void load_neighbours(real (*out)[N], const packet<T, SIZE>* base, int64_t x) {
    typedef neighbours<N, T, SIZE> row;
    const T* from = (const T*)base + row::place(x);
    JALI_UNROLL
    for (int k = 0; k < row::PACKETS; ++k) {
        JALI_UNROLL
        for (int r = 0; r < row::ROW; r += row::PIECE) {
            const typename row::piece q = *(const typename row::piece*)(from + k * GROUP * row::SIZE + r);
            JALI_UNROLL
            for (int j = 0; j < row::PIECE; ++j)
                out[(r + j) / row::SIZE][k * row::SIZE + (r + j) % row::SIZE] = JALI_REAL(q.value[j]);
        }
    }
}
template <int N, class T, int SIZE>
JALI_INLINE void store_neighbours(packet<T, SIZE>* base, int64_t x, const real (*v)[N]) {
    typedef neighbours<N, T, SIZE> row;
    T* to = (T*)base + row::place(x);
    JALI_UNROLL
    for (int k = 0; k < row::PACKETS; ++k) {
        JALI_UNROLL
        for (int r = 0; r < row::ROW; r += row::PIECE) {
            typename row::piece q;
            JALI_UNROLL
            for (int j = 0; j < row::PIECE; ++j)
                q.value[j] = T(v[(r + j) / row::SIZE][k * row::SIZE + (r + j) % row::SIZE].value);
            *(typename row::piece*)(to + k * GROUP * row::SIZE + r) = q;
        }
    }
}

template <int N, class T, int SIZE>
JALI_INLINE void load_sites(real (*out)[N], const packet<T, SIZE>* base, const thread_sites& own) {
    JALI_UNROLL
    for (int s = 0; s < JALI_SITES; ++s) {
#if JALI_WIDTH == 1
        load_site<N>(out[s], base, own.x[s]);
#else
        load_neighbours<N>(out + s * JALI_WIDTH, base, own.first[s]);
#endif
    }
}
template <int N, class T, int SIZE>
JALI_INLINE void store_sites(packet<T, SIZE>* base, const thread_sites& own, const real (*v)[N]) {
    JALI_UNROLL
    for (int s = 0; s < JALI_SITES; ++s) {
        if (JALI_WIDTH > 1 && own.whole[s]) {
            store_neighbours<N>(base, own.first[s], v + s * JALI_WIDTH);
            continue;
        }
        JALI_UNROLL
        for (int j = s * JALI_WIDTH; j < (s + 1) * JALI_WIDTH; ++j)
            if (own.there[j]) store_site<N>(base, own.x[j], v[j]);
    }
}
#if JALI_WIDENS
template <int N, int SIZE>
JALI_INLINE void store_sites(packet<float, SIZE>* base, const thread_sites& own, const real (*v)[N],
                             int64_t* counters) {
    JALI_UNROLL
    for (int j = 0; j < EACH; ++j)
        if (own.there[j] && any(beyond_float<N>(v[j]))) count_overflow(counters, all_lanes(true));
    store_sites<N>(base, own, v);
}
#endif
// Coded fields: site by site.
template <int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE void load_sites(V (*out)[N], const coded<FORMAT, UNITS, PACKET>* base, const thread_sites& own) {
    JALI_UNROLL
    for (int j = 0; j < EACH; ++j) block_at<N>(out[j], base, own.x[j]);
}
template <int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE void store_sites(coded<FORMAT, UNITS, PACKET>* base, const thread_sites& own, const V (*v)[N],
                             int64_t* counters) {
    JALI_UNROLL
    for (int j = 0; j < EACH; ++j)
        if (own.there[j]) store_element<N>(base, own.x[j], v[j], counters);
}
// Arrays, and fields that a table leads to: site by site.
template <int N, class V, class SITE>
JALI_INLINE void load_sites(V (*out)[N], array_sites<SITE> field, const thread_sites& own) {
    JALI_UNROLL
    for (int j = 0; j < EACH; ++j) block_at<N>(out[j], field, own.x[j]);
}
#define JALI_STORE_SITE_BY_SITE(KIND, WHAT)                                                                  \
    template <int N, class V, class WHAT>                                                                    \
    JALI_INLINE void store_sites(KIND<WHAT> to, const thread_sites& own, const V(*v)[N]) {                   \
        JALI_UNROLL                                                                                          \
        for (int j = 0; j < EACH; ++j)                                                                       \
            if (own.there[j]) store_element<N>(to, own.x[j], v[j]);                                          \
    }                                                                                                        \
    template <int N, class V, class WHAT>                                                                    \
    JALI_INLINE void store_sites(KIND<WHAT> to, const thread_sites& own, const V(*v)[N],                     \
                                 int64_t* counters) {                                                        \
        JALI_UNROLL                                                                                          \
        for (int j = 0; j < EACH; ++j)                                                                       \
            if (own.there[j]) store_element<N>(to, own.x[j], v[j], counters);                                \
    }
JALI_STORE_SITE_BY_SITE(array_sites, SITE)
JALI_STORE_SITE_BY_SITE(led_sites, FIELD)
#undef JALI_STORE_SITE_BY_SITE
#endif
