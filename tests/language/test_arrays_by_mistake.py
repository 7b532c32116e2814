"""An array of NumPy where a field, a number or a name is meant: the error says so, is short, and shows none of the array's numbers."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest

import jali
import jali.arrays
import jali.fermions
import jali.fft
import jali.gauge
import jali.linops
import jali.solvers
import jali.statistics
from jali import EVEN, SU, Colouring, Field, Lattice, LayoutError, Random, Real, Spinor, TraceError
from jali.errors import JaliError
from jali.fermions import WilsonDirac
from jali.gauge import GaugeField

NUMBER = 0.1234567
LONGEST = 600


def array(*shape):
    return np.full(shape, NUMBER)


@jali.site_function
def copy(X, out, f):
    out[X] = f[X]


@jali.site_function
def shifted(X, out, U):
    out[X] = U[0][X + X.directions()[0]]


@jali.site_function
def component(X, out, f):
    out[X][0] = f[X]


@jali.site_function
def summed(X, f, total):
    total += f[X]


LATTICE = Lattice(8, 8)
F = Field(LATTICE, Real())


@pytest.mark.parametrize("shape", [(8, 8), (64, 64), (8,), (8, 8, 3, 3)], ids=str)
def test_an_array_that_is_read_as_a_field_is_named_with_what_makes_one_of_it(shape):
    a = array(*shape)
    calls = {
        "f": [lambda: copy(F, a), lambda: LATTICE.sum(summed, a), lambda: LATTICE.sum(summed, f=a)],
        "out": [lambda: copy(a, F), lambda: component(a, F)],
        "U[0]": [lambda: shifted(F, [a, a])],
    }
    for name, all_calls in calls.items():
        for call in all_calls:
            with pytest.raises(TraceError) as caught:
                call()
            text = str(caught.value)
            assert text.startswith(f"{name}, an array of shape {shape}, is no field"), text
            assert f"lattice.wrap({name})" in text
            assert "test_arrays_by_mistake.py" in text
    if shape == LATTICE.extents and LATTICE.gpu is None:  # the cure, for memory of the host
        copy(F, LATTICE.wrap(a))
        assert np.all(F[...] == a)


def test_a_number_that_is_read_as_a_field_is_named():
    with pytest.raises(TraceError, match="f, a number, is no field"):
        copy(F, 2.0)
    with pytest.raises(TraceError, match=r"U\[0\], a number, is no field"):
        shifted(F, [2.0, 3.0])


def test_the_error_for_an_array_in_the_wilson_operator_names_the_conversion_to_a_field():
    U = GaugeField(Lattice(4, 4, 4, 4), SU(3)).cold_start()
    D, a = WilsonDirac(U, 0.1), array(4, 4, 4, 4, 4, 3)
    for call in (D.apply, D.adjoint, D.normal):
        with pytest.raises(
            LayoutError, match=r"acts on fields .*shape \(4, 4, 4, 4, 4, 3\).*lattice.wrap"
        ) as caught:
            call(a)
        assert len(str(caught.value)) < LONGEST
    psi = Field(U.lattice, Spinor(3))
    with pytest.raises(LayoutError, match=r"lattice.wrap"):
        D.apply(psi, a)


def subjects():
    """Public functions and methods of objects, by name."""
    U = GaugeField(Lattice(2, 2, 2, 2), SU(2)).cold_start()
    f, scalar = Field(U.lattice, Real()), U.lattice.scalar(1.0)
    for module in (jali, jali.gauge, jali.fermions, jali.fft, jali.linops, jali.solvers, jali.statistics):
        for name in getattr(module, "__all__", ()):
            one = getattr(module, name)
            if callable(one) and not (inspect.isclass(one) and issubclass(one, BaseException)):
                yield f"{module.__name__}.{name}", one
    things = [U.lattice, U, f, f + f, WilsonDirac(U, 0.1), Random(1), scalar, scalar < 2.0, EVEN, copy]
    x = jali.arrays.DistributedArray((8,))
    x[:] = 1.0
    things += [
        x,
        jali.linops.FirstDerivative((8,)),
        Colouring(2, lambda x: x[0] % 2),
        U.lattice.directions[0],
        jali.fermions.gamma[0],
    ]
    for thing in things:
        for name in dir(type(thing)):
            if not name.startswith("_") or name in (
                "__add__",
                "__mul__",
                "__getitem__",
                "__pow__",
                "__call__",
            ):
                one = inspect.getattr_static(type(thing), name)
                if not isinstance(one, property) and callable(found := getattr(thing, name, None)):
                    yield f"{type(thing).__name__}.{name}", found


LEFT_OUT = {"virtual_ranks", "report", "use_device"}  # which do other things than to look at arguments


def parameters(function):
    """How many arguments a function needs, and the names of others."""
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0, []
    positional = [
        p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
    ]
    needed = sum(p.default is p.empty for p in positional)
    return needed, [p.name for p in given if p.default is not p.empty and p.kind != p.POSITIONAL_ONLY]


def test_no_error_shows_the_numbers_of_an_array(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name, function in subjects():
        if name.rpartition(".")[2] in LEFT_OUT:
            continue
        needed, options = parameters(function)
        for value in (array(2, 2, 2, 2), array(3), [array(2, 2), array(2, 2)]):
            for named in ({}, *({option: value} for option in options)):
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        function(*[value] * needed, **named)
                except JaliError as error:
                    if str(error).count(str(NUMBER)) > 1 or len(str(error)) > LONGEST:
                        wrong.append(
                            f"{name}({', '.join(named)}): {type(error).__name__}: {str(error)[:200]}"
                        )
                except Exception:  # Python's and NumPy's own
                    continue
    assert not wrong, "\n".join(wrong)
