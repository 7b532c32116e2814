"""What makes kernels reproducible: a site's bits do not depend on lanes, neighbours or instruction set. And memory access."""

from __future__ import annotations

import ctypes
import re
import subprocess

import numpy as np
import pytest
from prelude_harness import FLAGS, STRICT, evaluate, library, same_bits, source

SITES = 96

ELEMENTARY = """
out[0] = vexp(in[0]); out[1] = vlog(in[1]); vsincos(out + 2, out + 3, in[2]); out[4] = vtan(in[2]); out[5] = vsinh(in[0]);
out[6] = vcosh(in[0]); out[7] = vtanh(in[0]); out[8] = vatan2(in[0], in[1]); out[9] = vasin(in[3]); out[10] = vacos(in[3]);
out[11] = vpow(in[1], in[0]); out[12] = vsqrt(in[1]) + rsqrt(in[1]); out[13] = vfloor(in[0]) + to_real(to_integer(in[0]));
complex_log(out + 14, in); complex_sqrt(out + 16, in); out[18] = fms(in[0], in[1], in[2]); out[19] = fnma(in[0], in[1], in[2]);
"""
MATRIX = """
matmul<3, 3, 3, false, true>(out, in, in + 18); matmul_sub<3, 3, 3, true, false>(out, in, in + 18);
exp_antihermitian<2>(out + 18, in); traceless_antihermitian<3>(out + 26, in); exp_antihermitian<3>(out + 44, out + 26);
reunitarise<3>(out + 62, in); inverse<3>(out + 80, in); det<4>(out + 98, in); exp_matrix<2>(out + 100, in);
trace_mul<3, 3, false, true>(out + 108, in, in + 18); out[110] = norm2<18>(in);
"""
RANDOM = """
integer x[2];
for (int l = 0; l < JALI_LANES; ++l) { x[0][l] = (lane_integer)in[0][l]; x[1][l] = (lane_integer)in[1][l]; }
const int64_t extents[2] = {1000, 1000};
site_vector site;
site_index(&site, 2, x, extents);
const philox_keys keys = philox_schedule(7);
philox_uniform(out, out + 1, site, 5, 6, keys);
philox_gaussian(out + 2, out + 3, site, 5, 6, keys);
"""


def arguments(body: str, dtype: type) -> np.ndarray:
    """Arguments that send neighbouring lanes through different special cases and different numbers of squarings."""
    rng = np.random.default_rng(5)
    if body == ELEMENTARY:
        x = np.array(
            [
                rng.normal(size=SITES) * 20,
                np.exp(rng.normal(size=SITES) * 8),
                rng.normal(size=SITES) * 1e4,
                rng.uniform(-1, 1, SITES),
            ]
        )
        x[2, ::7] *= 1e20
        x[0, 3::11], x[1, 5::13], x[2, 4::17] = np.inf, -1.0, np.nan
        x[1, 6::19] = np.finfo(dtype).smallest_subnormal * 5
    elif body == MATRIX:
        x = rng.normal(size=(36, SITES)) * np.exp(rng.normal(size=SITES) * 1.5)
        x[:, ::9] = 0
    else:
        x = rng.integers(0, 1000, (2, SITES))
    return x.astype(dtype)


BODIES = {"elementary": (ELEMENTARY, 20), "matrix": (MATRIX, 111), "random": (RANDOM, 4)}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    ("dtype", "lanes", "march"),
    [
        (np.float64, 1, "native"),
        (np.float64, 2, "native"),
        (np.float64, 8, "native"),
        (np.float64, 4, "x86-64-v3"),
        (np.float64, 2, "x86-64-v2"),
        (np.float32, 1, "native"),
        (np.float32, 4, "native"),
        (np.float32, 16, "native"),
        (np.float32, 4, "x86-64-v2"),
    ],
    ids=lambda p: (
        {np.float64: "double", np.float32: "float"}.get(p, str(p)) if isinstance(p, type) else str(p)
    ),
)
def test_bits_do_not_depend_on_lanes_or_instruction_set(body, dtype, lanes, march):
    text, outputs = BODIES[body]
    x = arguments(text, dtype)
    usual = evaluate(text, x, outputs, lanes=4 if dtype == np.float64 else 8)
    assert same_bits(evaluate(text, x, outputs, lanes=lanes, march=march), usual)


@pytest.mark.parametrize("body", BODIES)
def test_bits_do_not_depend_on_the_optimisation_level(body):
    text, outputs = BODIES[body]
    x = arguments(text, np.float64)
    for level in ("-O1", "-O3"):
        assert same_bits(evaluate(text, x, outputs, extra=(*STRICT, level)), evaluate(text, x, outputs))


@pytest.mark.parametrize("body", BODIES)
def test_bits_of_a_site_do_not_depend_on_its_neighbours_in_the_vector(body):
    text, outputs = BODIES[body]
    x = arguments(text, np.float64)
    order = np.random.default_rng(6).permutation(SITES)
    assert same_bits(evaluate(text, x[:, order], outputs), evaluate(text, x, outputs)[:, order])


MEMORY = """
static void keep_result(JALI_REAL* out, const real* v, int n) { __builtin_memcpy(out, v, n * sizeof(real)); }
extern "C" int staged(JALI_REAL* out, const JALI_REAL* base, uint32_t entry, const int32_t* permutations, const JALI_REAL* phases,
                      int how) {
  real tmp[6];
  const real* v = how == 0   ? stage<6>(tmp, base, entry, permutations)
                  : how == 1 ? stage_phased<6>(tmp, base, entry, permutations, phases)
                             : stage_signed<6>(tmp, base, entry, permutations, phases);
  keep_result(out, v, 6);
  return v == tmp;
}
extern "C" void staged_single(JALI_REAL* out, const float* base, uint32_t entry, const int32_t* permutations,
                              const JALI_REAL* phases, int how) {
  real tmp[6];
  const real* v = how == 0   ? stage<6>(tmp, base, entry, permutations)
                  : how == 1 ? stage_phased<6>(tmp, base, entry, permutations, phases)
                             : stage_signed<6>(tmp, base, entry, permutations, phases);
  keep_result(out, v, 6);
}
extern "C" void stored_element(JALI_REAL* base, int64_t block, const JALI_REAL* v, uint32_t bits, int masked) {
  real tmp[6];
  __builtin_memcpy(tmp, v, sizeof tmp);
  if (masked)
    store_element_masked<6>(base, block, tmp, lanes_from_bits(bits));
  else
    store_element<6>(base, block, tmp);
}
#if JALI_DOUBLE
extern "C" void stored_single(float* base, int64_t block, const double* v, uint32_t bits, int masked) {
  real tmp[6];
  __builtin_memcpy(tmp, v, sizeof tmp);
  if (masked)
    store_element_masked<6>(base, block, tmp, lanes_from_bits(bits));
  else
    store_element<6>(base, block, tmp);
}
#endif
extern "C" int tests(uint32_t bits) { return any(lanes_from_bits(bits)) + 2 * all(lanes_from_bits(bits)); }
"""
LAYOUTS = [
    (np.float64, 1),
    (np.float64, 2),
    (np.float64, 4),
    (np.float64, 8),
    (np.float32, 1),
    (np.float32, 4),
    (np.float32, 8),
]
layouts = pytest.mark.parametrize(
    ("dtype", "lanes"), LAYOUTS, ids=[f"{'double' if d == np.float64 else 'float'}-{n}" for d, n in LAYOUTS]
)
BLOCKS, N, CLASSES = 5, 6, 4


def aligned(shape, dtype):
    """Zeros at an address that any vector may be loaded from."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count].view(dtype).reshape(shape)


def memory(dtype, lanes):
    rng = np.random.default_rng(lanes)
    field = aligned((BLOCKS, N, lanes), dtype)
    field[:] = rng.normal(size=field.shape)
    permutations = np.array([rng.permutation(lanes) for _ in range(CLASSES)], np.int32)
    permutations[0] = np.arange(lanes)
    return field, permutations


def address(a):
    return ctypes.c_void_p(a.ctypes.data)


def staged(dtype, lanes, field, entry, permutations, phases, how):
    out = np.empty((N, lanes), dtype)
    copied = library(MEMORY, lanes, dtype).staged(
        address(out), address(field), ctypes.c_uint32(entry), address(permutations), address(phases), how
    )
    return out, bool(copied)


@layouts
def test_staging_permutes_lanes_and_leaves_class_zero_in_place(dtype, lanes):
    field, permutations = memory(dtype, lanes)
    for kind in range(CLASSES):
        for block in range(BLOCKS):
            out, copied = staged(dtype, lanes, field, kind << 26 | block, permutations, permutations, 0)
            assert np.array_equal(out, field[block][:, permutations[kind]])
            assert copied == (kind > 0)


@layouts
def test_boundary_phases_multiply_complex_numbers_lane_by_lane(dtype, lanes):
    field, permutations = memory(dtype, lanes)
    rng = np.random.default_rng(1)
    phases = rng.normal(size=(CLASSES, 2, lanes)).astype(dtype)
    for kind in range(1, CLASSES):
        out, _ = staged(dtype, lanes, field, kind << 26 | 2, permutations, phases, 1)
        source = field[2][:, permutations[kind]]
        expected = (source[::2] + 1j * source[1::2]) * (phases[kind, 0] + 1j * phases[kind, 1])
        np.testing.assert_allclose(out[::2] + 1j * out[1::2], expected, rtol=0, atol=8 * np.finfo(dtype).eps)


@layouts
@pytest.mark.parametrize("mixed", [False, True], ids=["real-phases", "next-to-complex-phases"])
def test_phases_one_minus_one_and_zero_are_exact_even_for_signed_zero_infinity_and_nan(dtype, lanes, mixed):
    field, permutations = memory(dtype, lanes)
    field[3, :, 0] = [0.0, -0.0, np.inf, -np.inf, -0.0, np.nan]
    for factor in (1.0, -1.0, 0.0):
        phases = np.zeros((CLASSES, 2, lanes), dtype)
        phases[:, 0] = factor
        where = permutations[1] == 0
        if mixed:
            phases[:, :, ~where] = 0.5
        for how in (1, 2):
            factors = phases if how == 1 else np.ascontiguousarray(phases[:, 0])
            out, _ = staged(dtype, lanes, field, 1 << 26 | 3, permutations, factors, how)
            lane = np.flatnonzero(where)[0]
            source = field[3, :, 0]
            expected = source if factor == 1 else -source if factor == -1 else np.zeros(N, dtype)
            assert same_bits(np.ascontiguousarray(out[:, lane]), np.ascontiguousarray(expected))


@layouts
def test_stores_write_their_block_and_masked_stores_only_chosen_lanes(dtype, lanes):
    field, _ = memory(dtype, lanes)
    v = np.random.default_rng(2).normal(size=(N, lanes)).astype(dtype)
    for bits in (0, 1, 0b0101_0101_0101_0101, 0xFFFF_FFFF, 1 << (lanes - 1)):
        for masked in (0, 1):
            target = aligned(field.shape, dtype)
            target[:] = field
            library(MEMORY, lanes, dtype).stored_element(
                address(target), ctypes.c_int64(3), address(v), ctypes.c_uint32(bits), masked
            )
            chosen = np.array([bool(bits >> lane & 1) or not masked for lane in range(lanes)])
            expected = field.copy()
            expected[3] = np.where(chosen, v, field[3])
            assert np.array_equal(target, expected)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_single_precision_storage_is_widened_exactly_and_rounded_to_nearest(lanes):
    field, permutations = memory(np.float32, lanes)
    code = library(MEMORY, lanes, np.float64)
    phases = np.random.default_rng(3).normal(size=(CLASSES, 2, lanes))
    signs = np.where(np.random.default_rng(4).random((CLASSES, lanes)) < 0.5, -1.0, 1.0)
    out, wide = np.empty((N, lanes)), aligned(field.shape, np.float64)
    wide[:] = field
    for kind in range(CLASSES):
        for how, factors in enumerate((phases, phases, signs)):
            entry = kind << 26 | 4
            code.staged_single(
                address(out),
                address(field),
                ctypes.c_uint32(entry),
                address(permutations),
                address(factors),
                how,
            )
            expected, _ = staged(np.float64, lanes, wide, entry, permutations, factors, how)
            assert np.array_equal(out, expected)
    v = np.random.default_rng(5).normal(size=(N, lanes))
    for bits, masked in ((0, 0), (0b0110, 1), (0b1001, 1)):
        target = aligned(field.shape, np.float32)
        target[:] = field
        code.stored_single(address(target), ctypes.c_int64(1), address(v), ctypes.c_uint32(bits), masked)
        chosen = np.array([bool(bits >> lane & 1) or not masked for lane in range(lanes)])
        expected = field.copy()
        expected[1] = np.where(chosen, v.astype(np.float32), field[1])
        assert np.array_equal(target, expected)


@layouts
def test_any_and_all_see_exactly_the_lanes_there_are(dtype, lanes):
    code = library(MEMORY, lanes, dtype)
    full = (1 << lanes) - 1
    for bits in (0, 1, full, full - 1, 0xFFFF_FFFF, ~full & 0xFFFF_FFFF, 1 << (lanes - 1)):
        here = bits & full
        assert code.tests(ctypes.c_uint32(bits)) == (here != 0) + 2 * (here == full)


def test_prelude_includes_no_header_and_leaves_nothing_of_what_a_kernel_does_not_use(tmp_path):
    """So that it costs a compiler next to nothing."""
    file, made = tmp_path / "nothing.cpp", tmp_path / "nothing.s"
    file.write_text(source('extern "C" int nothing() { return 0; }', 4, np.float64))
    told = subprocess.run(
        ["g++", *FLAGS, "-H", "-S", "-o", made, file], check=True, capture_output=True, text=True
    )
    assert not [line for line in told.stderr.splitlines() if line.startswith(".")]
    assert re.findall(r"^(\w+):", made.read_text(), re.MULTILINE) == ["nothing"]
