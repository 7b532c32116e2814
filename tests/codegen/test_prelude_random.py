"""Philox on lanes: published answers, an independent implementation, open intervals, moments."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from prelude_harness import library

MASK = 0xFFFFFFFF

# Vectors of the Random123 distribution (counter, key, result) for philox4x32-10
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK, MASK), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

TEXT = """
extern "C" void rounds(uint32_t* out, const uint32_t* counter, const uint32_t* key) {
  unsigned_integer c[4];
  for (int w = 0; w < 4; ++w)
    for (int l = 0; l < JALI_LANES; ++l) c[w][l] = counter[w * JALI_LANES + l];
  philox_rounds<1>(c, philox_schedule(uint64_t(key[1]) << 32 | uint64_t(key[0])));
  for (int w = 0; w < 4; ++w)
    for (int l = 0; l < JALI_LANES; ++l) out[w * JALI_LANES + l] = (uint32_t)c[w][l];
}
extern "C" void numbers(JALI_REAL* out, int64_t first, int64_t sites, uint64_t call, uint32_t draw, uint64_t key, int normal) {
  const philox_keys keys = philox_schedule(key);
  for (int64_t s = 0; s < sites; s += JALI_LANES) {
    int64_t index[JALI_LANES];
    for (int l = 0; l < JALI_LANES; ++l) index[l] = first + s + l;
    const site_vector site = make_site(index);
    real a, b;
    if (normal)
      philox_gaussian(&a, &b, site, call, draw, keys);
    else
      philox_uniform(&a, &b, site, call, draw, keys);
    __builtin_memcpy(out + s, &a, sizeof a);
    __builtin_memcpy(out + sites + s, &b, sizeof b);
  }
}
extern "C" void index_of(int64_t* out, const int64_t* coordinates, int ndim, const int64_t* extents) {
  integer x[5];
  for (int d = 0; d < ndim; ++d)
    for (int l = 0; l < JALI_LANES; ++l) x[d][l] = (lane_integer)coordinates[d * JALI_LANES + l];
  site_vector site;
  site_index(&site, ndim, x, extents);
  for (int l = 0; l < JALI_LANES; ++l) out[l] = int64_t(uint64_t(site.high[l]) << 32 | uint64_t(site.low[l]));
}
"""
VARIANTS = [
    (np.float64, 1),
    (np.float64, 2),
    (np.float64, 4),
    (np.float64, 8),
    (np.float32, 1),
    (np.float32, 4),
    (np.float32, 8),
]
IDS = [f"{'double' if d == np.float64 else 'float'}-{n}" for d, n in VARIANTS]


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10 as the paper writes it, on an array of counters (4, n)."""
    x = counter.astype(np.uint64)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        low, shift = np.uint64(MASK), np.uint64(32)
        x = np.array(
            [(p1 >> shift) ^ x[1] ^ np.uint64(k0), p1 & low, (p0 >> shift) ^ x[3] ^ np.uint64(k1), p0 & low]
        )
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return x


def numbers(dtype, lanes, first, sites, call=0, draw=0, key=0, normal=False):
    out = np.empty((2, sites), dtype)
    library(TEXT, lanes, dtype).numbers(
        ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(first), ctypes.c_int64(sites), ctypes.c_uint64(call),
        ctypes.c_uint32(draw), ctypes.c_uint64(key), ctypes.c_int(normal),
    )  # fmt: skip
    return out


@pytest.mark.short(2)
@pytest.mark.parametrize(("dtype", "lanes"), VARIANTS, ids=IDS)
@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN, ids=["zeros", "ones", "pi"])
def test_philox_gives_the_published_answers(dtype, lanes, counter, key, answer):
    # the published counter sits in one lane at a time; the others hold something else
    for lane in range(lanes):
        c = np.arange(4 * lanes, dtype=np.uint32).reshape(4, lanes)
        c[:, lane] = counter
        out = np.empty_like(c)
        k = np.array(key, np.uint32)
        library(TEXT, lanes, dtype).rounds(
            ctypes.c_void_p(out.ctypes.data), ctypes.c_void_p(c.ctypes.data), ctypes.c_void_p(k.ctypes.data)
        )
        assert tuple(int(v) for v in out[:, lane]) == answer


def test_reference_implementation_gives_the_published_answers():
    for counter, key, answer in KNOWN:
        assert tuple(int(v) for v in philox(np.array(counter)[:, None], key)[:, 0]) == answer


@pytest.mark.parametrize(("dtype", "lanes"), VARIANTS, ids=IDS)
def test_uniforms_are_the_documented_function_of_site_call_draw_and_key(dtype, lanes):
    first, sites, call, draw, key = 2**32 - 64, 128, 0x1234_5678_9ABC, 0xFEDC, 0x0123_4567_89AB_CDEF
    site = np.arange(first, first + sites, dtype=np.uint64)
    counter = np.array(
        [
            site & np.uint64(MASK),
            site >> np.uint64(32),
            np.full(sites, call & MASK),
            np.full(sites, (call >> 32) << 16 | draw),
        ]
    )
    words = philox(counter, (key & MASK, key >> 32))
    got = numbers(dtype, lanes, first, sites, call, draw, key)
    if dtype == np.float64:
        bits = [
            words[0] << np.uint64(20) | words[1] >> np.uint64(12),
            words[2] << np.uint64(20) | words[3] >> np.uint64(12),
        ]
        expected = [(b.astype(np.longdouble) + 0.5) * np.longdouble(2) ** -52 for b in bits]
    else:
        expected = [
            ((w >> np.uint64(9)).astype(np.longdouble) + 0.5) * np.longdouble(2) ** -23
            for w in (words[0], words[2])
        ]
    assert np.array_equal(got.astype(np.longdouble), np.array(expected))


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["double", "float"])
def test_all_zero_and_all_one_bits_give_numbers_strictly_between_zero_and_one(dtype):
    text = """
    extern "C" void ends(JALI_REAL* out) {
      const unsigned_integer zeros = splat_word(0), ones = splat_word(0xffffffffu);
      out[0] = unit_interval(zeros, zeros)[0];
      out[1] = unit_interval(ones, ones)[0];
      real a, b;
      gaussian_pair(&a, &b, unit_interval(zeros, zeros), unit_interval(ones, ones));
      out[2] = a[0];
    }
    """
    out = np.empty(3, dtype)
    library(text, 4, dtype).ends(ctypes.c_void_p(out.ctypes.data))
    half_step = 2.0**-53 if dtype == np.float64 else 2.0**-24
    assert out[0] == half_step
    assert out[1] == dtype(1) - dtype(half_step)
    assert 0 < out[0] < out[1] < 1
    assert np.isfinite(out[2])
    assert out[2] == pytest.approx(np.sqrt(-2 * np.log(half_step)), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["double", "float"])
def test_gaussians_are_the_box_muller_transform_of_the_uniforms(dtype):
    u = numbers(dtype, 4, 0, 4096, call=3, draw=1, key=99).astype(np.longdouble)
    if dtype == np.float32:  # below a logarithm the next 23 bits count too
        site = np.arange(4096, dtype=np.uint64)
        high, low, _, _ = philox(np.array([site, 0 * site, 0 * site + 3, 0 * site + 1]), (99, 0))
        bits = (high << np.uint64(14)) | (low >> np.uint64(18))
        u[0] = ((bits.astype(np.longdouble) + 0.5) * np.longdouble(2) ** -46).astype(np.float32)
    g = numbers(dtype, 4, 0, 4096, call=3, draw=1, key=99, normal=True)
    radius, angle = np.sqrt(-2 * np.log(u[0])), 8 * np.arctan(np.longdouble(1)) * u[1]
    expected = np.array([radius * np.cos(angle), radius * np.sin(angle)])
    np.testing.assert_allclose(
        g.astype(np.longdouble), expected, rtol=4 * np.finfo(dtype).eps, atol=4 * np.finfo(dtype).eps * 1e-3
    )


def test_gaussians_in_single_precision_have_tails_beyond_the_step_of_their_uniforms():
    """The step 2^-23 of a uniform would end them at 5.8 standard deviations, and leave gaps of 0.1 before."""
    text = """
    extern "C" void tails(float* out, const uint32_t* high, const uint32_t* low) {
      for (int k = 0; k < 8; ++k) {
        real a, b;
        gaussian_pair(&a, &b, fine_unit_interval(splat_word(high[k]), splat_word(low[k])), splat(0));
        out[k] = a[0];
      }
    }
    """
    high = np.array([0, 0, 0, 1, 511, 512, 5000, MASK], np.uint32)
    low = np.array([0, MASK, 1 << 20, 77, MASK, 0, 12345678, MASK], np.uint32)
    out = np.empty(8, np.float32)
    library(text, 4, np.float32).tails(*(ctypes.c_void_p(a.ctypes.data) for a in (out, high, low)))
    exact = np.array([(int(h) << 14 | int(b) >> 18) + 0.5 for h, b in zip(high, low, strict=True)]) * 2.0**-46
    np.testing.assert_allclose(out[:7], np.sqrt(-2 * np.log(exact[:7])), rtol=1e-6)
    assert out[0] > 8
    assert abs(out[7]) == 0
    assert len(np.unique(out)) == 8


def test_moments_of_uniforms_and_gaussians_are_those_of_their_distributions():
    n = 1 << 17
    u = numbers(np.float64, 4, 0, n, key=7).ravel()
    g = numbers(np.float64, 4, 0, n, call=1, key=7, normal=True).ravel()
    root = np.sqrt(u.size)
    # (sample mean - expectation) / (standard deviation of the mean); 5 sigma
    for values, mean, sigma in [
        (u - 0.5, 0, np.sqrt(1 / 12)),
        ((u - 0.5) ** 2, 1 / 12, np.sqrt(1 / 180)),
        ((u - 0.5) ** 4, 1 / 80, 1 / 60),
        (g, 0, 1),
        (g**2, 1, np.sqrt(2)),
        (g**3, 0, np.sqrt(15)),
        (g**4, 3, np.sqrt(96)),
    ]:
        assert abs(values.mean() - mean) < 5 * sigma / root
    counts = np.bincount((u * 256).astype(int), minlength=256)
    chi2 = np.sum((counts - u.size / 256) ** 2) / (u.size / 256)
    assert abs(chi2 - 255) < 5 * np.sqrt(2 * 255)


def test_neighbouring_sites_calls_draws_and_seeds_are_uncorrelated():
    n = 1 << 15
    base = numbers(np.float64, 4, 0, n, call=5, draw=2, key=11)[0] - 0.5
    second = numbers(np.float64, 4, 0, n, call=5, draw=2, key=11)[1] - 0.5
    others = [
        numbers(np.float64, 4, 1, n, call=5, draw=2, key=11)[0] - 0.5,
        numbers(np.float64, 4, 0, n, call=6, draw=2, key=11)[0] - 0.5,
        numbers(np.float64, 4, 0, n, call=5, draw=3, key=11)[0] - 0.5,
        numbers(np.float64, 4, 0, n, call=5, draw=2, key=12)[0] - 0.5,
        second,
    ]
    for other in others:
        assert abs(np.mean(base * other)) * 12 < 5 / np.sqrt(n)


@pytest.mark.parametrize(("dtype", "lanes"), VARIANTS, ids=IDS)
def test_site_index_counts_direction_zero_fastest_and_beyond_32_bits(dtype, lanes):
    extents = np.array([70000, 3, 90001, 17], np.int64)
    rng = np.random.default_rng(0)
    x = np.array([rng.integers(0, e, lanes) for e in extents], np.int64)
    out = np.empty(lanes, np.int64)
    library(TEXT, lanes, dtype).index_of(
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_void_p(x.ctypes.data),
        ctypes.c_int(4),
        ctypes.c_void_p(extents.ctypes.data),
    )
    assert np.array_equal(out, x[0] + extents[0] * (x[1] + extents[1] * (x[2] + extents[2] * x[3])))
    assert extents.prod() > 2**32
