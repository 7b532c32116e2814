"""Arithmetics are entries of one table; nothing else compares their names."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import jali
from jali.codegen.arithmetics import (
    ARITHMETICS,
    IEEE_PRECISIONS,
    PRECISIONS,
    arithmetic_of,
    at_least,
    seen_by_numpy,
    widest,
)
from jali.codegen.storage_formats import FORMATS

PACKAGE = Path(jali.__file__).parent
# types of arrays, of whatever library, not of what kernels compute in
ARRAYS = {
    PACKAGE / "comm" / "elements.py",
    PACKAGE / "fft" / "steps.py",
    PACKAGE / "arrays" / "file_formats" / "segy.py",
}


@pytest.mark.parametrize("name", IEEE_PRECISIONS)
def test_columns_are_those_of_numpy(name: str) -> None:
    arithmetic = ARITHMETICS[name]
    real = arithmetic.dtype("real")
    assert real.name == arithmetic.name
    assert real.itemsize == arithmetic.bytes == arithmetic.dtype("int").itemsize
    assert arithmetic.dtype("complex").itemsize == 2 * arithmetic.bytes
    assert arithmetic.epsilon == np.finfo(real).eps
    assert {np.dtype(np.single): "s", np.dtype(np.double): "d"}[real] == arithmetic.letter
    largest = 2**31 - 1 if arithmetic.bits == 32 else 2**63 - 1
    rounds = int(real.type(largest)) != largest
    assert arithmetic.widens_whole == (rounds and int(float(largest)) == largest)
    assert FORMATS[arithmetic.name].unit_bytes == arithmetic.bytes
    assert arithmetic.whole_bits == arithmetic.bits
    assert arithmetic.word == seen_by_numpy(arithmetic.name) == arithmetic.name


def test_arithmetics_are_ordered_by_width() -> None:
    rounding = [ARITHMETICS[name].epsilon for name in PRECISIONS]
    assert rounding == sorted(rounding, reverse=True)
    assert widest(["float32", "float64", "float32"]) == "float64"
    assert widest(["float32"]) == "float32"
    assert widest([]) == "float64"
    assert at_least("float32") == PRECISIONS
    assert at_least("float64") == ("float64",)


def test_numbers_of_several_machine_words_are_classes_that_numpy_sees_otherwise() -> None:
    assert IEEE_PRECISIONS == ("float32", "float64")
    for a in ARITHMETICS.values():
        assert {bool(column) for column in (a.text, a.storage, a.numpy)} == {a.words > 1}


def test_sums_are_of_an_arithmetic_of_the_table() -> None:
    double = ARITHMETICS["float64"]
    assert {ARITHMETICS[a.sums] for a in ARITHMETICS.values()} == {double}
    narrow = replace(double, name="narrow", epsilon=2.0**-23, numpy="float32")
    assert narrow.dtype("real") == np.float32
    assert (narrow.whole_bits, narrow.widens_whole) == (32, True)
    assert not replace(narrow, sums="float32").widens_whole
    assert not replace(narrow, epsilon=2.0**-30).widens_whole


def test_a_number_of_several_words_has_the_arithmetic_of_one() -> None:
    pair = replace(ARITHMETICS["float64"], name="pair", words=2, numpy="float64")
    assert (pair.word, pair.bytes, pair.whole_bits) == ("float32", 8, 64)


def test_an_arithmetic_is_known_by_types_of_its_numbers_alone() -> None:
    for name, types in (("float32", "f4 c8 i4"), ("float64", "f8 c16 i8")):
        for text in types.split():
            assert arithmetic_of(np.dtype(text)) is ARITHMETICS[name]
    for text in ("f2", "i2", "u4", "?", "U3", "g"):
        assert arithmetic_of(np.dtype(text)) is None


def names_compared(node: ast.AST) -> bool:
    """`precision == "float64"`, and dictionaries with these names as keys."""
    if isinstance(node, ast.Compare):
        parts: list[ast.AST] = [node.left, *node.comparators]
    elif isinstance(node, ast.Dict):
        parts = [key for key in node.keys if key is not None]
    else:
        return False
    return any(isinstance(part, ast.Constant) and part.value in PRECISIONS for part in parts)


def test_no_code_compares_names_of_arithmetics() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path not in ARRAYS
        for text in [path.read_text()]
        if any(name in text for name in PRECISIONS)
        for node in ast.walk(ast.parse(text))
        if names_compared(node)
    ]
    assert found == []


@pytest.mark.parametrize("text", ['p == "float64"', '"float32" != p', '{"float64": 8, "float32": 4}[p]'])
def test_a_comparison_of_names_is_found(text: str) -> None:
    assert any(map(names_compared, ast.walk(ast.parse(text))))
