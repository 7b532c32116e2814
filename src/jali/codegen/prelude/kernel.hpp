// What a generated kernel says besides arithmetic: coordinates, contributions to sums, loops over attempts.

JALI_INLINE int64_t lanes_unset(mask m) {
  int64_t count = 0;
  for (int l = 0; l < JALI_LANES; ++l) count += m[l] == 0;
  return count;
}

// A repeat_until gave up on so many sites.
JALI_INLINE void count_exhausted(int64_t* counters, int64_t sites) {
#if defined(JALI_GPU)
  add_atomically(counters, sites);
#else
  counters[0] += sites;
#endif
}

JALI_INLINE double double_of_bits(uint64_t bits) {
  double x;
  copy_bits(&x, &bits, sizeof x);
  return x;
}

// Global coordinates of a block's sites in direction d: that of lane 0, and what each lane adds to it. Which of the
// two sets of offsets a block uses stands behind the coordinates: in some layouts lanes wrap around the lattice in half
// of the blocks.
JALI_INLINE integer block_coordinate(int d, int ndim, const int32_t* coordinates, const int32_t* lane_offsets,
                                     int64_t blocks, int64_t x) {
  integer r;
#if JALI_LANES == 1
  r[0] = coordinates[d * blocks + x];
#else
  const int32_t* more = lane_offsets + coordinates[ndim * blocks + x] + d * JALI_LANES;
  for (int l = 0; l < JALI_LANES; ++l) r[l] = coordinates[d * blocks + x] + more[l];
#endif
  return r;
}

// A pivot of a matrix is not what it has to be at these sites: found[0] counts them, found[1] keeps the first one, as the
// largest word of 36 bits that fall as the number of the site rises, x_0 + L_0 (x_1 + L_1 (x_2 + ...)), in a batch times
// its members plus the number of the member, 8 of the number of the pivot and the upper 19 of its value as a double
// (`jali.lattice.pivots` reads them).
template <int NDIM>
JALI_INLINE void count_pivots(int64_t* found, mask failed, integer number, real value, const int32_t* coordinates,
                              const int32_t* lane_offsets, const int64_t* extents, int64_t blocks, int64_t x,
                              int64_t members = 1, int64_t member = 0) {
  const uint64_t most = (uint64_t(1) << 36) - 1;
  integer at[NDIM];
  JALI_UNROLL
  for (int d = 0; d < NDIM; ++d) at[d] = block_coordinate(d, NDIM, coordinates, lane_offsets, blocks, x);
  JALI_UNROLL
  for (int l = 0; l < JALI_LANES; ++l) {
    if (failed[l] == 0) continue;
    uint64_t site = 0, bits;
    JALI_UNROLL
    for (int d = NDIM - 1; d >= 0; --d) site = site * uint64_t(extents[d]) + uint64_t(at[d][l]);
    site = site * uint64_t(members) + uint64_t(member);
    const double pivot = double(value[l]);
    copy_bits(&bits, &pivot, sizeof bits);
    const uint64_t word = (most - (site < most ? site : most)) << 27 | uint64_t(number[l]) << 19 | bits >> 45;
#if defined(JALI_GPU)
    add_atomically(found, 1);
    raise_atomically(found + 1, word);
#else
    ++found[0];
    if (int64_t(word) > found[1]) found[1] = int64_t(word);
#endif
  }
}

// Quotient and remainder toward minus infinity, for positive divisors.
JALI_INLINE integer floor_div(integer a, integer b) {
  integer r;
  for (int l = 0; l < JALI_LANES; ++l) {
    const lane_integer quotient = a[l] / b[l];
    r[l] = quotient - (quotient * b[l] > a[l] ? 1 : 0);
  }
  return r;
}
JALI_INLINE integer floor_mod(integer a, integer b) {
  integer r;
  for (int l = 0; l < JALI_LANES; ++l) {
    const lane_integer rest = a[l] % b[l];
    r[l] = rest < 0 ? rest + b[l] : rest;
  }
  return r;
}

// The position that a loop over begin..end-1 visits at a turn: four streams a quarter of a window apart, in turn.
// One core reads several streams from memory faster than one, since its prefetchers follow each by itself. For
// loops that share nothing between sites; the windows keep the streams in few pages.
const int64_t WINDOW = 1024;
JALI_INLINE int64_t position_at(int64_t turn, int64_t begin, int64_t end) {
  const int64_t first = begin + ((turn - begin) & -WINDOW), rest = end - first;
  const int64_t quarter = (rest < WINDOW ? rest : WINDOW) >> 2, k = turn - first;
  return first + (k < 4 * quarter ? (k & 3) * quarter + (k >> 2) : k);
}

// Contributions to sums are doubles in either precision, whole numbers that are compared have 64 bits.
JALI_INLINE void store_sum(double* target, real v) {
#if JALI_DOUBLE
  *(real*)target = v;
#else
  for (int l = 0; l < JALI_LANES; ++l) target[l] = double(v[l]);
#endif
}
#if !JALI_WIDENS
JALI_INLINE void store_sum(double* target, wide v) {
  for (int l = 0; l < JALI_LANES; ++l) target[l] = v[l];
}
#endif
JALI_INLINE void store_whole(double* target, integer v) {
  for (int l = 0; l < JALI_LANES; ++l) {
    const int64_t whole = v[l];
    copy_bits(target + l, &whole, sizeof whole);
  }
}
// Labels are whole numbers, also where these are real ones: what is none, or too large for any label, is of none.
JALI_INLINE void store_label(double* target, integer v) { store_whole(target, v); }
JALI_INLINE void store_label(double* target, real v) {
  for (int l = 0; l < JALI_LANES; ++l) {
    const int64_t whole = v[l] >= 0 && v[l] < JALI_REAL(1 << 30) ? int64_t(v[l]) : -1;
    copy_bits(target + l, &whole, sizeof whole);
  }
}
