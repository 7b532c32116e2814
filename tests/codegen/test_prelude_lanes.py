"""What makes kernels reproducible: a site's bits do not depend on lanes, neighbours or instruction set. And memory access."""

from __future__ import annotations

import ctypes
import itertools
import re
import shutil
import subprocess

import numpy as np
import pytest
from prelude_harness import FLAGS, STRICT, assembly, evaluate, library, same_bits, source

SITES = 96

ELEMENTARY = """
out[0] = vexp(in[0]); out[1] = vlog(in[1]); vsincos(out + 2, out + 3, in[2]); out[4] = vtan(in[2]); out[5] = vsinh(in[0]);
out[6] = vcosh(in[0]); out[7] = vtanh(in[0]); out[8] = vatan2(in[0], in[1]); out[9] = vasin(in[3]); out[10] = vacos(in[3]);
out[11] = vpow(in[1], in[0]); out[12] = vsqrt(in[1]) + rsqrt(in[1]); out[13] = vfloor(in[0]) + to_real(to_integer(in[0]));
complex_log(out + 14, in); complex_sqrt(out + 16, in); out[18] = fms(in[0], in[1], in[2]); out[19] = fnma(in[0], in[1], in[2]);
out[20] = vceil(in[0]); out[21] = vround(in[0]); out[22] = vsign(in[2]); out[23] = modulus(in[1], in[2]);
complex_div(out + 24, in, in + 1); complex_exp(out + 26, in); put(out, 14, inverse(at(in, 1)));
"""
MATRIX = """
matmul<3, 3, 3, false, true>(out, in, in + 18); matmul_sub<3, 3, 3, true, false>(out, in, in + 18);
exp_antihermitian<2>(out + 18, in); traceless_antihermitian<3>(out + 26, in); exp_antihermitian<3>(out + 44, out + 26);
reunitarise<3>(out + 62, in); inverse<3>(out + 80, in); det<4>(out + 98, in); exp_matrix<2>(out + 100, in);
trace_mul<3, 3, false, true>(out + 108, in, in + 18); out[110] = norm2<18>(in); det<3>(out + 111, in);
inverse<2>(out + 113, in); inverse<4>(out + 121, in); reunitarise<2>(out + 153, in);
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
        x[:, 4::9] *= 1e15  # other lanes are inverted by elimination
        x[6:12, 5::7] = x[:6, 5::7] * 1.0001
    else:
        x = rng.integers(0, 1000, (2, SITES))
    return x.astype(dtype)


BODIES = {"elementary": (ELEMENTARY, 30), "matrix": (MATRIX, 161), "random": (RANDOM, 4)}


@pytest.mark.short(3)
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


@pytest.mark.short(1)
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


KINDS = list(itertools.product(("", "_add", "_sub"), (False, True), (False, True)))
SIGNED = "".join(
    f"for (int e = 0; e < 8; ++e) out[{8 * k} + e] = in[16 + e];\n"
    f"matmul{kind}<2, 2, 2, {str(a).lower()}, {str(b).lower()}>(out + {8 * k}, in, in + 8);\n"
    for k, (kind, a, b) in enumerate(KINDS)
)


def product_in_order(kind, adjoint_a, adjoint_b, a, b, c):
    """What product in matrix.hpp means: signs are flipped first, then everything is added in the written order."""
    out = np.empty_like(c)
    for i, j in itertools.product(range(2), range(2)):
        re, im = c[4 * i + 2 * j], c[4 * i + 2 * j + 1]
        for k in range(2):
            x = a[2 * (2 * k + i if adjoint_a else 2 * i + k) :]
            y = b[2 * (2 * j + k if adjoint_b else 2 * k + j) :]
            ar = -x[0] if kind == "_sub" else x[0]
            ai = -x[1] if (kind == "_sub") != adjoint_a else x[1]
            first = kind == "" and k == 0
            re = ar * y[0] if first else ar * y[0] + re
            im = ai * y[0] if first else ai * y[0] + im
            re = (ai if adjoint_b else -ai) * y[1] + re
            im = (-ar if adjoint_b else ar) * y[1] + im
        out[4 * i + 2 * j], out[4 * i + 2 * j + 1] = re, im
    return out


@pytest.mark.parametrize(("dtype", "lanes"), [(np.float64, 1), (np.float64, 8), (np.float32, 8)])
def test_zeros_of_products_have_the_signs_of_sums_in_the_written_order(dtype, lanes):
    rng = np.random.default_rng(3)
    # whole numbers, whose products are exact, so that sums cancel exactly
    x = rng.choice([0.0, -0.0, 1.0, -1.0, 2.0], (24, 960)).astype(dtype)
    got = evaluate(SIGNED, x, 8 * len(KINDS), lanes=lanes)
    for k, (kind, a, b) in enumerate(KINDS):
        expected = product_in_order(kind, a, b, x[:8], x[8:16], x[16:])
        assert np.signbit(expected[expected == 0]).any()
        assert same_bits(got[8 * k : 8 * k + 8], expected), (kind, a, b)


def test_products_flip_no_signs_but_those_of_their_first_factors():
    text = SIGNED.replace("2, 2, 2", "3, 3, 3")
    body = f"static void body(real* out, const real* in) {{ {text} }}\n"
    whole = body + 'extern "C" void run(double* out, const double* in) { body((real*)out, (const real*)in); }'
    for lanes, march in ((8, "x86-64-v4"), (4, "x86-64-v3")):
        products = [t for name, t in assembly(whole, lanes, np.float64, march).items() if "7product" in name]
        assert len(products) == len(KINDS)
        for code in products:
            assert len(re.findall(r"vfn?m(add|sub)\d+pd", code)) >= 90
            assert len(re.findall(r"vxorpd|vpxor", code)) <= 3  # of the first of three terms


def test_products_read_each_element_of_their_first_factor_once():
    """Two columns of three rows: 9 complex numbers, and 6 of the second factor that stay in registers."""
    body = "static void body(real* out, const real* in) { matmul<3, 3, 2, false, false>(out, in, in + 18); }"
    whole = body + 'extern "C" void run(double* out, const double* in) { body((real*)out, (const real*)in); }'
    (product,) = (t for name, t in assembly(whole, 8, np.float64, "x86-64-v4").items() if "7product" in name)
    assert len(re.findall(r"\(%rsi\)", product)) == 18


needs_clang = pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")


@needs_clang
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    ("dtype", "lanes"), [(np.float64, 8), (np.float64, 4), (np.float32, 16), (np.float32, 8), (np.float64, 1)]
)
def test_clang_makes_the_same_bits_as_gcc(body, dtype, lanes):
    text, outputs = BODIES[body]
    x = arguments(text, dtype)
    got = evaluate(text, x, outputs, lanes=lanes, extra=(), compiler="clang++")
    assert same_bits(got, evaluate(text, x, outputs, lanes=lanes))


@needs_clang
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_clang_computes_and_permutes_vectors_of_512_bits_as_wholes(dtype):
    """Halves of them, and lanes one by one through memory, took two to three times as long."""
    lanes = 64 // np.dtype(dtype).itemsize
    text = """
extern "C" void run(JALI_REAL* out, const JALI_REAL* in, uint32_t entry, const int32_t* permutations) {
  real tmp[18];
  matmul<3, 3, 3, false, true>((real*)out, stage<18>(tmp, in, entry, permutations), (const real*)in);
}
"""
    functions = assembly(text, lanes, dtype, "x86-64-v4", "clang++")
    (product,) = (code for name, code in functions.items() if "7product" in name)
    assert "%ymm" not in product
    assert len(re.findall(r"vfn?madd\d+p[sd]", product)) == 90
    permuted = "".join(code for name, code in functions.items() if "7product" not in name)
    assert re.search(r"vperm(pd|ps|q|d)\s.*%zmm", permuted)
    assert "vmovhp" not in permuted


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
  int64_t counters[2] = {}; // of values that cannot be held, which is tested elsewhere
  if (masked)
    store_element_masked<6>(base, block, tmp, lanes_from_bits(bits), counters);
  else
    store_element<6>(base, block, tmp, counters);
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


@pytest.mark.short(2)
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
    compiled = subprocess.run(
        ["g++", *FLAGS, "-H", "-S", "-o", made, file], check=True, capture_output=True, text=True
    )
    assert not [line for line in compiled.stderr.splitlines() if line.startswith(".")]
    assert re.findall(r"^([a-zA-Z_]\w*):", made.read_text(), re.MULTILINE) == ["nothing"]
