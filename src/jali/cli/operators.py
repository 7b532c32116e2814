"""Dirac operators by name and numbers, as commands take them."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence

from jali.cli.options import numbers_argument
from jali.errors import ParameterError
from jali.fermions import (
    HISQ,
    Asqtad,
    CloverDirac,
    Dirac,
    DomainWallDirac,
    Laplace,
    Staggered,
    TwistedCloverDirac,
    TwistedMassDirac,
    WilsonDirac,
)
from jali.files import value_shown
from jali.gauge import GaugeField

Numbers = dict[str, float]
OPERATORS: dict[str, tuple[Callable[..., Dirac], tuple[str, ...], Numbers]] = {
    "wilson": (WilsonDirac, ("mass",), {}),
    "clover": (CloverDirac, ("mass",), {"csw": 1.0}),
    "twisted-mass": (TwistedMassDirac, ("mass", "mu"), {}),
    "twisted-clover": (TwistedCloverDirac, ("mass", "mu"), {"csw": 1.0}),
    "staggered": (Staggered, ("mass",), {}),
    "asqtad": (Asqtad, ("mass",), {"u0": 1.0}),
    "hisq": (HISQ, ("mass",), {"epsilon": 0.0}),
    "domain-wall": (DomainWallDirac, ("mass",), {"M5": 1.8, "Ls": 8, "b": 1.0, "c": 0.0}),
    "laplace": (Laplace, (), {}),
}
"""By name: the class, the numbers that it needs, and those that have a default."""
WITH_KAPPA = ("wilson", "clover", "twisted-mass", "twisted-clover")
"""Operators whose mass may be given by kappa, 1 / (2 mass + 8)."""
QUARKS = tuple(name for name in OPERATORS if name != "laplace")
NEGATIVE = re.compile(r"-[0-9.][-+0-9.,e]*")
OPTIONS = ("mass", "kappa", "csw", "mu")  # numbers with an option of their own


def numbers_of(name: str | None, given: Numbers, command: str, options: Sequence[str] = OPTIONS) -> Numbers:
    """The numbers of the operator of this name: those that are given, and the usual ones. `options` have an option of their own in the command. Raises ParameterError for other
    names and numbers, and for those that are missing."""
    if name is None or name not in OPERATORS:
        what = "names an operator" if name is None else f"knows no operator {value_shown(name)}"
        raise ParameterError(f"{command} {what}: {', '.join(OPERATORS)}")
    _, needed, usual = OPERATORS[name]
    numbers = {**usual, **given}
    by_kappa = name in WITH_KAPPA and "kappa" in numbers
    if by_kappa and "mass" in numbers:
        raise ParameterError("the mass of a quark is given by --mass or by --kappa, not by both")
    for word in needed:
        if word not in numbers and not (word == "mass" and by_kappa):
            kappa = " or --kappa" if word == "mass" and name in WITH_KAPPA and "kappa" in options else ""
            option = f"--{word}" if word in options else f"--numbers {word}=..."
            raise ParameterError(f"the operator {name} needs its {word}: {option}{kappa}")
    known = [*needed, *usual, *(["kappa"] if name in WITH_KAPPA else [])]
    if unknown := sorted(numbers.keys() - set(known)):
        raise ParameterError(
            f"the operator {name} has no {unknown[0]}; it has {', '.join(known) or 'no numbers'}"
        )
    for word, value in numbers.items():
        if not math.isfinite(value):
            raise ParameterError(f"the {word} of the operator {name} is a finite number, not {value}")
    if not 0 < numbers.get("kappa", 0.1) < 1:
        raise ParameterError(f"kappa is a number between 0 and 1, not {numbers['kappa']:g}")
    if "Ls" in numbers and numbers["Ls"] == int(numbers["Ls"]):
        numbers["Ls"] = int(numbers["Ls"])
    return numbers


def operator_from(name: str, numbers: Numbers, U: GaugeField) -> Dirac:
    """The operator of this name with the numbers of `numbers_of`."""
    return OPERATORS[name][0](U, **numbers)


def add_operator_arguments(parser: argparse.ArgumentParser) -> None:
    """`--operator` and its numbers."""
    group = parser.add_argument_group("the quark")
    group.add_argument(
        "--operator", required=True, metavar="NAME", choices=QUARKS, help=f"one of {', '.join(QUARKS)}"
    )
    parser._negative_number_matcher = NEGATIVE  # lists of numbers may begin with one
    group.add_argument("--mass", type=float, metavar="M", help="bare mass")
    group.add_argument(
        "--kappa", type=float, metavar="K", help="in place of the mass: 1 / (2 mass + 8), of Wilson quarks"
    )
    group.add_argument("--csw", type=float, metavar="C", help="coefficient of the clover term (default 1)")
    group.add_argument("--mu", type=float, metavar="MU", help="twisted mass")
    group.add_argument(
        "--numbers",
        type=numbers_argument,
        default={},
        metavar="NAME=NUMBER,...",
        help="others, such as M5=1.8,Ls=12",
    )


def numbers_given(arguments: argparse.Namespace, command: str) -> Numbers:
    """The numbers of the options of `add_operator_arguments`. Raises ParameterError where they do not fit the operator."""
    own = {word: value for word in OPTIONS if (value := getattr(arguments, word)) is not None}
    if twice := sorted(own.keys() & arguments.numbers.keys()):
        raise ParameterError(f"{twice[0]} is given by --{twice[0]} and by --numbers: give one of them")
    return numbers_of(arguments.operator, {**arguments.numbers, **own}, command)


def check_solve(arguments: argparse.Namespace) -> None:
    """Raises ParameterError for a `--tolerance` and an `--inner` that make no sense."""
    if not 0 < arguments.tolerance < 1:
        raise ParameterError(f"--tolerance {arguments.tolerance:g} should be a number between 0 and 1")
    if arguments.inner == "":
        raise ParameterError("--inner names a storage, such as fixed16, or none")
