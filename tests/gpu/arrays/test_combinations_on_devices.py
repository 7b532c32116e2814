"""Combinations of arrays on a device are programs of the site language, whose kernels have NumPy's bits and compile for real devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fake_cupy
import numpy as np
import pytest
from cubin import resources_of
from fake_driver import REAL

from jali import _core
from jali._core import with_gpu_prelude
from jali.array_namespaces import namespace_of
from jali.codegen.array_kernels import THREADS, emit_for_arrays
from jali.codegen.kernel_cache import load_on_device
from jali.codegen.operation import described
from jali.codegen.passes import analyse
from jali.codegen.rewriting import reachable
from jali.linops.combinations import ByKernel, Combination, backend_on, combination

pytestmark = pytest.mark.skipif(REAL, reason="CUDA's driver is the machine's in this run")


@pytest.fixture(autouse=True)
def cupy(fake_driver: Path, fake_ccl: str) -> Iterator[Any]:
    with fake_cupy.installed(fake_driver) as module:
        yield module


def test_a_kernel_has_rows_of_any_number_and_length(device: str) -> None:
    gpu = fake_cupy.use(device, 0)
    random = np.random.default_rng(0)
    formula = combination(((1.0, 1.0), (-2.0, 3.0)), 1.0, 0.1)
    for rows, count in ((1, 1), (1, 1023), (3, 1025), (700, 3), (2, 0), (0, 2)):
        a, b = (random.normal(size=(rows, count + 5)) for _ in range(2))
        x, y, out = (fake_cupy.there(v)[:, 2 : 2 + count] for v in (a, b, np.zeros_like(a)))
        by = backend_on(namespace_of(out), out)
        assert isinstance(by, ByKernel)
        assert by.gpu is gpu
        by.combine(formula, [x, y], out, None)
        right = (a - 2.0 * b / 3.0)[:, 2 : 2 + count] * 0.1
        np.testing.assert_array_equal(fake_cupy.asnumpy(out), right)


def by_numpy(formula: Combination, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Operation by operation, also those by 1, of real arrays."""
    number = arrays[0].dtype.type
    with np.errstate(all="ignore"):
        terms = [
            x * number(times) / number(over) for x, (times, over) in zip(arrays, formula.weights, strict=True)
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total / number(formula.divisor) * number(formula.factor)


def special_numbers(dtype: str) -> np.ndarray:
    least, normal = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).smallest_normal
    positive = [0.0, least, 3 * least, normal - least, normal, 1.0, 1 / 3, np.finfo(dtype).max, np.inf]
    return np.array([*positive, *(-x for x in positive), np.nan], dtype)


def random_weight(random: np.random.Generator) -> float:
    """Of both signs; 1, powers of two, and numbers that float32 rounds, to zero and to infinity too."""
    usual = [1.0, 0.5, 2.0, 3.0, 12.0, 1.0 + 1e-12, 1e-42, 1e39, 1e-50, 1e300]
    return float(random.choice([*usual, *random.normal(size=10)]) * random.choice([1, -1]))


# Some of these numbers are 0 or infinite in float32.
EXTREMES = [
    (((1.0, 1e-50), (1.0, -1e-50)), 1.0, 1.0),
    (((1.0, 3.0), (1.0, 1e39)), -1e-50, 0.3),
    (((1e39, 3.0), (-1e39, 1.0)), 1.0, -1e39),
    (((1.0, -1.0),), 3e-320, 1e-42),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.short(1)
def test_a_kernel_has_the_bits_of_numpy_for_all_kinds_of_numbers(dtype: str, device: str) -> None:
    fake_cupy.use(device, 0)
    random = np.random.default_rng(5)
    special = special_numbers(dtype)
    formulas = [combination(*extreme) for extreme in EXTREMES]
    for terms in (1, 1, 2, 2, 2, 3, 3, 4, 5, 6):
        weights = tuple((random_weight(random), random_weight(random)) for _ in range(terms))
        formulas.append(combination(weights, random_weight(random), random_weight(random)))
    for formula in formulas:
        arrays = [
            np.concatenate([random.permutation(np.tile(special, 40)), random.normal(size=300).astype(dtype)])
            for _ in formula.weights
        ]
        out = fake_cupy.there(np.empty_like(arrays[0]))
        backend_on(namespace_of(out), out).combine(formula, [*map(fake_cupy.there, arrays)], out, None)
        found, right = fake_cupy.asnumpy(out), by_numpy(formula, arrays)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(right))
        bits = f"u{right.itemsize}"
        known = ~np.isnan(right)  # which NaN an operation gives is the processor's choice
        np.testing.assert_array_equal(found[known].view(bits), right[known].view(bits))


def test_no_product_is_fused_and_factors_of_one_cost_nothing() -> None:
    def flops(weights: tuple[tuple[float, float], ...], divisor: float, factor: float) -> int:
        program = combination(weights, divisor, factor).site_program("float64")
        assert not any(described(node).fused for node in reachable(e.value for e in program.effects))
        return analyse(program).flops

    assert flops(((1.0, 1.0),), 1.0, 1.0) == 0
    assert flops(((1.0, 1.0), (-1.0, 1.0)), 1.0, 1.0) == 1
    assert flops(((3.0, 1.0), (3.0, 7.0)), 1.0, 1.0) == 4
    assert flops(((3.0, 7.0), (5.0, 7.0)), 0.7, 0.3) == 7


COMPILED = [
    (((0.5, 1.0), (-0.5, 1.0)), 0.7, 1.0),
    (((1.0, 12.0), (-2.0, 3.0), (2.0, 3.0), (-1.0, 12.0)), 1.0, 0.3),
    (((1.0, 1.0),), 2.0, -1.0),
    (((np.inf, 1.0), (3.0, -np.inf)), 0.0, -np.inf),  # as what float32 rounds to these
]


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_kernels_compile_for_real_devices(nvrtc: Any, precision: str) -> None:
    gpu = _core.Gpu.open("cuda", 0)
    for weights, divisor, factor in COMPILED:
        kernel = emit_for_arrays(Combination(weights, divisor, factor).site_program(precision))
        _, source = load_on_device(gpu, kernel.name, kernel.text, precision, THREADS)
        image = nvrtc.compile(with_gpu_prelude(source.read_text()), kernel.name, "sm_90")
        resources = resources_of(image)["kernel"]
        assert resources.stack == 0
        assert resources.registers <= 64
