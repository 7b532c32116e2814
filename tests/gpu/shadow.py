"""Runs every kernel of other tests on a device as well, and compares bit for bit: `pytest -p shadow tests/language`.

A call of a site function on the host is repeated on a lattice of the device named by JALI_SHADOW, on copies of its
fields as they were before, with a copy of its random numbers. All fields, sums and counters must then be the same to the
last bit, but for the sign and payload of NaNs. `fast` sums are plain sums in some order; they may round otherwise.
JALI_SHADOW_REPORT names a file into which the numbers of calls and kernels are written.
"""

from __future__ import annotations

import json
import os
import re
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jali
from jali import graph_recorder
from jali.lattice.arguments import fields_of, scalars_of
from jali.lattice.sites import SiteFunction

DEVICE = os.environ.get("JALI_SHADOW", "cuda")

counted = {"calls": 0, "sums": 0, "not_shadowed": 0}
sources: set[str] = set()
_guard = threading.RLock()
_twins: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_run = SiteFunction.run


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays or numbers are equal to the last bit; one NaN is as good as another."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind == "c":
        real = np.float64 if a.dtype.itemsize == 16 else np.float32
        a, b = a.reshape(-1).view(real), b.reshape(-1).view(real)
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    word = np.uint64 if a.dtype.itemsize == 8 else np.uint32
    a, b = a.reshape(-1), b.reshape(-1)
    return bool(np.all((a.view(word) == b.view(word)) | (np.isnan(a) & np.isnan(b))))


def assert_same_bits(got: Any, expected: Any, what: str) -> None:
    """Fails with the place and the size of the first difference."""
    if same_bits(got, expected):
        return
    a, b = np.asarray(got), np.asarray(expected)
    assert a.shape == b.shape, f"{what}: shape {a.shape} instead of {b.shape}"
    assert a.dtype == b.dtype, f"{what}: {a.dtype} instead of {b.dtype}"
    positions = np.argwhere(~((a == b) | ((a != a) & (b != b))))
    if len(positions) == 0:
        raise AssertionError(f"{what}: signs of zeros differ")
    first = tuple(positions[0])
    raise AssertionError(
        f"{what}: {len(positions)} of {a.size} numbers differ, first at {first}: {a[first]!r}, not {b[first]!r}"
    )


def _twin_of(thing: Any, make: Any) -> Any:
    if thing not in _twins:
        _twins[thing] = make()
    return _twins[thing]


def _twin_lattice(lattice: jali.Lattice) -> jali.Lattice:
    make = lambda: jali.Lattice(lattice.extents, communicator=lattice.communicator, device=DEVICE)  # noqa: E731
    return _twin_of(lattice, make)


def _twin_field(field: jali.Field) -> jali.Field:
    def make() -> jali.Field:
        return jali.Field(
            _twin_lattice(field.lattice),
            field.element,
            precision=field.precision,
            storage=field.stored.format.name,
            boundary=field.boundary,
            name=f"twin of {field.name}",
        )

    return _twin_of(field, make)


def _twin_argument(argument: Any, generators: dict[int, jali.Random]) -> Any:
    """The argument on the device; `generators` holds the copies of them, one for each even if it is given twice."""
    if isinstance(argument, jali.Field):
        return _twin_field(argument)
    if getattr(argument, "fields", None) is not None:
        return [_twin_field(f) for f in argument.fields]
    if isinstance(argument, jali.Random):
        return generators.setdefault(id(argument), jali.Random.from_state(argument.state))
    if isinstance(argument, list | tuple):
        return type(argument)([_twin_argument(a, generators) for a in argument])
    return argument


def run_on_both(
    self: SiteFunction,
    domain: Any,
    arguments: tuple[Any, ...],
    lattice: Any = None,
    sums: Any = None,
    named: dict[str, Any] | None = None,
) -> Any:
    """In place of SiteFunction.run: on the host, then on the device; compares."""
    named = named or {}
    everything = (*arguments, *named.values())
    fields = {f.serial: f for f in fields_of(everything)}
    home = lattice if lattice is not None else next((f.lattice for f in fields.values()), None)
    # ranks of one process are threads; what they exchange between devices, and numbers that stay, are tested elsewhere
    staying = (sums is not None and not sums.wait) or any(
        isinstance(v, jali.Scalar) for v in scalars_of(everything)
    )
    if (
        staying
        or graph_recorder.recorders
        or home is None
        or home.gpu is not None
        or home.communicator.size > 1
    ):
        counted["not_shadowed"] += 1
        return _run(self, domain, arguments, lattice, sums, named)
    with _guard:
        try:
            before = {serial: field.local() for serial, field in fields.items() if field.is_set}
            generators: dict[int, jali.Random] = {}
            twins = tuple(_twin_argument(a, generators) for a in arguments)
            named_twins = {name: _twin_argument(a, generators) for name, a in named.items()}
            for serial, values in before.items():
                _twin_field(fields[serial]).set_local(values)
            function = _twin_of(self, lambda: SiteFunction(self.function))
        except jali.JaliError:
            # fields of several lattices and their like: the host says what is wrong with them
            return _run(self, domain, arguments, lattice, sums, named)
        exhausted = self.exhausted, function.exhausted
        expected = _run(self, domain, arguments, lattice, sums, named)
        there = None if lattice is None else _twin_lattice(lattice)
        got = _run(function, domain, twins, there, sums, named_twins)
        name = self.__name__
        for field in (f for f in fields.values() if f.is_set):
            assert_same_bits(
                _twin_field(field).local(), field.local(), f"{name}: {field.name} on {home} on {DEVICE}"
            )
        assert self.exhausted - exhausted[0] == function.exhausted - exhausted[1], f"{name}: counters differ"
        if sums is not None:
            pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
            for k, (a, b) in enumerate(pairs):
                if sums.fast:
                    scale = np.max(np.abs(np.asarray(b) * 1.0), initial=1.0) * home.volume
                    assert np.allclose(a, b, rtol=0, atol=1e-13 * scale, equal_nan=True), (
                        f"{name}: fast sum {k}"
                    )
                else:
                    assert_same_bits(a, b, f"{name}: sum {k} on {home} on {DEVICE}")
            counted["sums"] += 1
        counted["calls"] += 1
        for bound in list(function._bound.values()):  # threads bind others meanwhile
            sources.update(str(kernel.source) for kernel in bound.kernels)
        return expected


@pytest.fixture(scope="session", autouse=True)
def shadow() -> Iterator[None]:
    """All calls of site functions go both ways while tests run."""
    SiteFunction.run = run_on_both  # type: ignore[method-assign]
    yield
    SiteFunction.run = _run  # type: ignore[method-assign]
    report = os.environ.get("JALI_SHADOW_REPORT")
    if report:
        Path(report).write_text(json.dumps({**counted, "kernels": len(sources)}))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests whose name JALI_SHADOW_ONLY, a regular expression, finds."""
    only = os.environ.get("JALI_SHADOW_ONLY")
    if only:
        kept = [item for item in items if re.search(only, item.name)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
