"""Elements are combined as they should, judged by Python integers and by NumPy in wider types."""

from __future__ import annotations

import operator
from functools import reduce as fold
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jali import _core

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}
COMPLEX = ["complex64", "complex128"]
# Beyond a block of each kind of loop and beside vectors' lengths.
COUNTS = [0, 1, 3, 7, 64, 1021, 9001]
LOOPS = pytest.mark.parametrize("portable", [False, True], ids=["best", "portable"])


def wrapped(value: int, dtype: npt.DTypeLike) -> int:
    bits = 8 * np.dtype(dtype).itemsize
    value %= 1 << bits
    return value - (1 << bits) if np.dtype(dtype).kind == "i" and value >= 1 << (bits - 1) else value


INTEGER_OPERATIONS: dict[str, Any] = {
    "sum": operator.add,
    "prod": operator.mul,
    "min": min,
    "max": max,
    "logical_and": lambda a, b: int(bool(a) and bool(b)),
    "logical_or": lambda a, b: int(bool(a) or bool(b)),
    "logical_xor": lambda a, b: int(bool(a) != bool(b)),
    "bit_and": operator.and_,
    "bit_or": operator.or_,
    "bit_xor": operator.xor,
}


def integers(dtype: str, count: int, sources: int, seed: int) -> list[npt.NDArray[Any]]:
    """Numbers over the whole range, zeros and extremes more often than chance would give them."""
    rng = np.random.default_rng(seed)
    limits = np.iinfo(dtype)
    result = []
    for _ in range(sources):
        values = rng.integers(limits.min, limits.max, count, dtype=dtype, endpoint=True)
        choice = rng.integers(0, 5, count)
        values[choice == 0] = 0
        values[choice == 1] = limits.max
        values[choice == 2] = limits.min
        result.append(values)
    return result


@LOOPS
@pytest.mark.parametrize("name", INTEGER_OPERATIONS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_combined_exactly_and_wrap(dtype: str, name: str, portable: bool) -> None:
    operation = INTEGER_OPERATIONS[name]
    for count, sources in [(1, 3), (67, 2), (1021, 5), (8200, 3)]:
        values = integers(dtype, count, sources, count + sources)
        into = np.full(count, 77, dtype)
        _core.reduce(dtype, name, into, values, portable=portable)
        rows = zip(*(v.tolist() for v in values), strict=True)
        exact = [fold(lambda a, b: wrapped(operation(a, b), dtype), row) for row in rows]
        np.testing.assert_array_equal(into, np.array(exact, dtype))


@LOOPS
@pytest.mark.parametrize("sources", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("count", COUNTS)
def test_sums_of_floats_go_from_left_to_right(count: int, sources: int, portable: bool) -> None:
    rng = np.random.default_rng(count)
    for kind, dtype in [("fp32", "float32"), ("fp64", "float64"), ("complex64", "complex64")]:
        values = [
            (rng.standard_normal(count) * 10.0 ** rng.integers(-6, 6, count)).astype(dtype)
            for _ in range(sources)
        ]
        into = np.zeros(count, dtype)
        _core.reduce(kind, "sum", into, values, portable=portable)
        np.testing.assert_array_equal(into, fold(operator.add, values))


def bf16_of(value: float) -> int:
    """The nearest bfloat16, ties to even, by exact search between the two neighbours of a binary32."""
    bits = int(np.float32(value).view(np.uint32))
    if np.isnan(np.float32(value)):
        return (bits >> 16) | 0x40
    low = bits >> 16
    if not bits & 0xFFFF:
        return low
    if (low & 0x7F80) == 0x7F80:
        return low
    # Distances to the neighbours in units of the binary32's last digit: monotonic in the bits.
    down, up = bits & 0xFFFF, 0x10000 - (bits & 0xFFFF)
    if down != up:
        return low if down < up else low + 1
    return low if low % 2 == 0 else low + 1


def bf16_to_float(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@LOOPS
@pytest.mark.parametrize("name", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("sources", [2, 3, 6])
def test_bf16_is_combined_in_fp32_and_rounded_once(name: str, sources: int, portable: bool) -> None:
    rng = np.random.default_rng(sources)
    values = [rng.integers(0, 1 << 16, 4001).astype(np.uint16) for _ in range(sources)]
    into = np.zeros(4001, np.uint16)
    _core.reduce("bf16", name, into, values, portable=portable)
    function = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[name]
    with np.errstate(all="ignore"):
        wide = fold(function, [bf16_to_float(v) for v in values])
    nan = np.isnan(wide)
    assert nan.any()
    np.testing.assert_array_equal(np.isnan(bf16_to_float(into)), nan)
    zero = wide == 0  # which of two zeros is the smaller is left open
    np.testing.assert_array_equal(bf16_to_float(into)[zero], 0)
    rest = ~(nan | zero)
    np.testing.assert_array_equal(into[rest], [bf16_of(x) for x in wide[rest]])


@LOOPS
@pytest.mark.parametrize("name", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("sources", [2, 3, 6])
def test_fp16_is_combined_in_fp32_and_rounded_once(name: str, sources: int, portable: bool) -> None:
    rng = np.random.default_rng(sources)
    values = [rng.integers(0, 1 << 16, 4001).astype(np.uint16).view(np.float16) for _ in range(sources)]
    into = np.zeros(4001, np.float16)
    _core.reduce("fp16", name, into, values, portable=portable)
    function = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[name]
    with np.errstate(all="ignore"):
        expected = fold(function, [v.astype(np.float32) for v in values]).astype(np.float16)
    np.testing.assert_array_equal(into, expected)


@LOOPS
def test_every_fp16_survives_widening_and_rounding(portable: bool) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    into, zero = np.zeros_like(every), np.zeros_like(every)
    _core.reduce("fp16", "max", into, [every, every], portable=portable)
    nan = np.isnan(every.view(np.float16))
    np.testing.assert_array_equal(into[~nan], every[~nan])
    np.testing.assert_array_equal(into[nan], every[nan] | 0x200)  # quiet, else as it was
    _core.reduce("fp16", "sum", into, [every, zero], portable=portable)
    np.testing.assert_array_equal(into.view(np.float16), every.view(np.float16))


@LOOPS
def test_fp16_is_rounded_to_nearest_even_everywhere(portable: bool) -> None:
    # x + x/2048 and its like lie on and beside the middle between two neighbours, subnormal ones included.
    every = np.arange(0x7C00, dtype=np.uint16).view(np.float16)
    for shift in (0.5, 2.0**-11, 2.0**-12, 3 * 2.0**-12):
        factor = np.full_like(every, 1 + shift if shift == 0.5 else shift)
        into = np.zeros_like(every)
        with np.errstate(all="ignore"):
            _core.reduce("fp16", "prod", into, [every, factor], portable=portable)
            expected = (every.astype(np.float64) * factor.astype(np.float64)).astype(np.float16)
        np.testing.assert_array_equal(into.view(np.uint16), expected.view(np.uint16))


def test_sixteen_bits_do_not_stall_where_narrow_sums_would() -> None:
    ones = [np.ones(5, np.float16)] * 4096
    into = np.zeros(5, np.float16)
    _core.reduce("fp16", "sum", into, ones)
    assert np.all(into == 4096)  # adding one to 2048 in fp16 gives 2048


@LOOPS
@pytest.mark.parametrize("dtype", FLOATS)
def test_minimum_and_maximum_keep_a_nan_of_either_side(dtype: str, portable: bool) -> None:
    kind = FLOATS[dtype]
    values = np.array([np.nan, 1, -np.inf, np.inf, -2.5] * 41, kind)
    a, b = (x.ravel().astype(kind) for x in np.meshgrid(values, values))
    into = np.zeros_like(a)
    for name, function in (("min", np.minimum), ("max", np.maximum)):
        for sources in ([a, b], [a, b, a], [b, a, b, b]):
            _core.reduce(dtype, name, into, sources, portable=portable)
            np.testing.assert_array_equal(into, fold(function, sources))


@LOOPS
@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_products_are_exact_on_gaussian_integers(dtype: str, portable: bool) -> None:
    rng = np.random.default_rng(3)
    parts = rng.integers(-9, 10, (4, 2, 531))
    values = [(re + 1j * im).astype(dtype) for re, im in parts]
    into = np.zeros(531, dtype)
    _core.reduce(dtype, "prod", into, values, portable=portable)
    re, im = parts[0]
    for a, b in parts[1:]:
        re, im = re * a - im * b, re * b + im * a
    np.testing.assert_array_equal(into, (re + 1j * im).astype(dtype))


@LOOPS
@pytest.mark.parametrize("dtype", [*FLOATS, "bf16", *COMPLEX])
@pytest.mark.parametrize("sources", [1, 2, 3, 5])
def test_average_is_the_sum_divided_once(dtype: str, sources: int, portable: bool) -> None:
    rng = np.random.default_rng(sources)
    count = 2500
    if dtype == "bf16":
        values = [(rng.integers(0, 1 << 14, count)).astype(np.uint16) for _ in range(sources)]
        into: npt.NDArray[Any] = np.zeros(count, np.uint16)
        wide = fold(operator.add, [bf16_to_float(v) for v in values]) / np.float32(7)
        expected: npt.NDArray[Any] = np.array([bf16_of(x) for x in wide], np.uint16)
    else:
        kind = FLOATS.get(dtype, dtype)
        values = [rng.standard_normal(count).astype(kind) for _ in range(sources)]
        into = np.zeros(count, kind)
        wider = np.float32 if dtype == "fp16" else kind
        total = fold(operator.add, [v.astype(wider) for v in values])
        real = total.view(total.real.dtype) / total.real.dtype.type(7)
        expected = real.view(total.dtype).astype(kind)
    _core.reduce(dtype, "avg", into, values, divide_by=7, portable=portable)
    np.testing.assert_array_equal(into, expected)


@LOOPS
@pytest.mark.parametrize("dtype", ["int8", "int32", "fp16", "bf16", "fp64", "complex64"])
@pytest.mark.parametrize("which", [0, 1, 3])
def test_result_may_be_any_of_the_sources(dtype: str, which: int, portable: bool) -> None:
    rng = np.random.default_rng(which)
    bytes_each = dict(_core.element_types())[dtype]
    for sources in (which + 1, 4, 7):
        values = [np.frombuffer(rng.bytes(3001 * bytes_each), np.uint8) & 0x3F for _ in range(sources)]
        expected = np.zeros_like(values[0])
        _core.reduce(dtype, "sum", expected, values, portable=portable)
        _core.reduce(dtype, "sum", values[which], values, portable=portable)
        np.testing.assert_array_equal(values[which], expected)


@LOOPS
def test_nothing_beside_the_result_is_written(portable: bool) -> None:
    for dtype, bytes_each in _core.element_types():
        for count in (1, 5, 13, 1037):
            frame = np.full((count + 8) * bytes_each, 0xA5, np.uint8)
            inside = frame[4 * bytes_each : (count + 4) * bytes_each]
            source = np.ones(count * bytes_each, np.uint8)
            _core.reduce(dtype, "sum", inside, [source] * 3, portable=portable)
            assert np.all(frame[: 4 * bytes_each] == 0xA5)
            assert np.all(frame[-4 * bytes_each :] == 0xA5)
            assert np.any(inside != 0xA5)


def test_one_source_is_copied_bit_for_bit() -> None:
    bits = np.array([0x7E01, 0xFC01, 0x8000, 0x0001, 3], np.uint16)  # a signalling NaN among them
    into = np.zeros(5, np.uint16)
    for dtype, name in (("fp16", "sum"), ("bf16", "max"), ("uint16", "logical_and")):
        into[:] = 0
        _core.reduce(dtype, name, into, [bits])
        np.testing.assert_array_equal(into, bits)


def test_user_operation_gets_the_earlier_operand_first() -> None:
    # a + 10 b is neither commutative nor associative: order and sides show.
    values = [np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5.0, 6.0])]
    into = np.zeros(2)
    _core.reduce("fp64", "user", into, values, user=lambda a, b: a + 10 * b)
    np.testing.assert_array_equal(into, (values[0] + 10 * values[1]) + 10 * values[2])


def test_user_operation_may_work_in_place_over_many_blocks() -> None:
    def larger_magnitude(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> None:
        b[...] = np.where(abs(a) >= abs(b), a, b)

    rng = np.random.default_rng(1)
    values = [rng.standard_normal(100_003).astype(np.float32) for _ in range(4)]
    stacked = np.array(values)
    expected = np.take_along_axis(stacked, abs(stacked).argmax(axis=0)[None], 0)[0]
    _core.reduce("fp32", "user", values[2], values, user=larger_magnitude)
    np.testing.assert_array_equal(values[2], expected)


def test_user_operation_sees_numpys_types() -> None:
    seen = []
    for dtype, bytes_each in _core.element_types():
        if dtype == "bf16":
            continue
        into = np.zeros(bytes_each, np.uint8)

        def look(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
            seen.append((a.dtype.name, b.dtype.name, a.flags.writeable, b.flags.writeable))
            return a

        _core.reduce(dtype, "user", into, [np.ones(bytes_each, np.uint8)] * 2, user=look)
    names = [FLOATS.get(dtype, dtype) for dtype, _ in _core.element_types() if dtype != "bf16"]
    assert seen == [(name, name, False, True) for name in names]


def test_error_of_a_user_operation_arrives() -> None:
    def fail(a: Any, b: Any) -> None:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        _core.reduce("fp64", "user", np.zeros(1), [np.ones(1)] * 2, user=fail)


@pytest.mark.parametrize(
    ("dtype", "name", "divide_by", "message"),
    [
        ("int32", "avg", 1, "'avg' is not defined for int32; int32 has sum, prod, min, max, logical_and"),
        ("int32", "sum", 2, "'sum' of int32 cannot be divided by 2"),
        ("fp32", "bit_or", 1, "'bit_or' is not defined for fp32; fp32 has sum, prod, min, max, avg"),
        ("fp32", "max", 2, "'max' of fp32 cannot be divided by 2"),
        ("complex64", "min", 1, "'min' is not defined for complex64; complex64 has sum, prod, avg"),
        ("fp32", "sum", 0, "divided by 0; it must be at least 1"),
        ("fp32", "mean", 1, "no operation 'mean'; use one of sum, prod"),
        ("float", "sum", 1, "no element type 'float'; use one of int8"),
        ("fp32", "user", 1, "a user operation has no function"),
    ],
)
def test_what_is_not_defined_is_refused(dtype: str, name: str, divide_by: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.reduce(dtype, name, np.zeros(2), [np.zeros(2)], divide_by=divide_by)


def test_operations_are_those_of_the_type() -> None:
    for dtype in INTEGERS:
        assert set(_core.operations_of(dtype)) == set(INTEGER_OPERATIONS)
    for dtype in (*FLOATS, "bf16"):
        assert set(_core.operations_of(dtype)) == {"sum", "prod", "min", "max", "avg"}
    for dtype in COMPLEX:
        assert set(_core.operations_of(dtype)) == {"sum", "prod", "avg"}
