"""`jali tune solvers`: measures the solvers of a Dirac operator on this machine, and writes a rule for `jali.solve`.

Links are those of a configuration, or quenched ones that are made here: their condition decides how solvers compare, so random links would not do. What is
measured, and how, is `jali.solvers.tuning`'s affair.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from jali import comm
from jali.cli.configurations import load_configuration
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
from jali.gauge import SU, GaugeField, sweep
from jali.lattice import Field, Lattice, Random
from jali.solvers.rules import user_file
from jali.solvers.tuning import Timing, TunedSolver, tune_solver

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
SEED = 1
LATTICE, BETA, SWEEPS = (8, 8, 8, 16), 6.0, 30


def operator_from(name: str | None, mass: float | None, given: Numbers, U: GaugeField) -> Dirac:
    """The operator of this name and these numbers. Raises ParameterError for others, and for those that are missing."""
    kind, _, usual = _known(name)
    numbers = {**usual, **given}
    if mass is not None:
        numbers["mass"] = mass
    if "Ls" in numbers and numbers["Ls"] == int(numbers["Ls"]):
        numbers["Ls"] = int(numbers["Ls"])
    _check(name, numbers)
    return kind(U, **numbers)


def _known(name: str | None) -> tuple[Callable[..., Dirac], tuple[str, ...], Numbers]:
    if name is None or name not in OPERATORS:
        what = "names an operator" if name is None else f"knows no operator {value_shown(name)}"
        raise ParameterError(f"jali tune solvers {what}: {', '.join(OPERATORS)}")
    return OPERATORS[name]


def _check(name: str | None, numbers: Numbers) -> None:
    _, needed, usual = _known(name)
    for word in needed:
        if word not in numbers:
            option = "--mass" if word == "mass" else f"--numbers {word}=..."
            raise ParameterError(f"the operator {name} needs its {word}: {option}")
    if unknown := sorted(numbers.keys() - {*needed, *usual}):
        raise ParameterError(
            f"the operator {name} has no {unknown[0]}; it has {', '.join([*needed, *usual]) or 'no numbers'}"
        )


def execute(arguments: argparse.Namespace) -> int:
    """Make the links, measure, write the rule, and print what was measured."""
    ranks = comm.current()
    name, mass, given = arguments.kernel, arguments.mass, arguments.numbers
    _check(name, {**_known(name)[2], **given, **({} if mass is None else {"mass": mass})})
    if arguments.batch is not None and name == "domain-wall":
        raise ParameterError("the members of a batch of domain-wall are its slices: leave out --batch")
    U = _links(arguments)
    D = operator_from(name, mass, given, U)
    last = {D.lattice.ndim - 1: "antiperiodic"}
    b = Field(D.lattice, D.element, boundary=last, batch=getattr(D, "Ls", None) or arguments.batch)
    b[...] = np.random.default_rng(SEED).normal(size=b.shape)

    def show(timing: Timing) -> None:
        if ranks.rank == 0 and not arguments.json:
            took = "-" if timing.seconds is None else f"{1e3 * timing.seconds:.4g} ms"
            print(f"{took:>12}  {timing.candidate}{'  ' if timing.note else ''}{timing.note}", flush=True)

    if ranks.rank == 0 and not arguments.json:
        print(f"{D!r}, tolerance {arguments.tolerance:g}", flush=True)
    output = None if arguments.output is None else str(arguments.output)
    found = tune_solver(
        D,
        b,
        arguments.tolerance,
        rounds=arguments.solves,
        output=output,
        force=arguments.force,
        callback=show,
    )
    if ranks.rank == 0:
        path = output or str(user_file())
        print(
            json.dumps(_document(D, found, path), indent=2)
            if arguments.json
            else f"\n{found.rule}\ninto {path}"
        )
    return 0


def _links(arguments: argparse.Namespace) -> GaugeField:
    """Of a configuration, or of quenched sweeps from a cold start."""
    if arguments.configuration is not None:
        if arguments.lattice is not None or arguments.beta is not None or arguments.sweeps is not None:
            raise ParameterError(
                "--configuration has links: --lattice, --beta and --sweeps are for links that are made here"
            )
        return load_configuration(
            str(arguments.configuration), None, None, comm.current(), arguments.device
        ).U
    lattice = Lattice(*(arguments.lattice or LATTICE), device=arguments.device)
    U, rng = GaugeField(lattice, SU(3)).cold_start(), Random(seed=SEED)
    beta = BETA if arguments.beta is None else arguments.beta
    for _ in range(SWEEPS if arguments.sweeps is None else arguments.sweeps):
        sweep(U, beta=beta, rng=rng, heatbath=1, overrelaxation=4)
    return U


def _document(D: Dirac, found: TunedSolver, path: str) -> dict[str, Any]:
    timings = [
        {
            "candidate": str(one.candidate),
            "method": one.candidate.method,
            "form": one.candidate.form,
            "inner": one.candidate.inner,
            "options": dict(one.candidate.options),
            "seconds": one.seconds,
            "iterations": one.iterations,
            "residual": None if one.seconds is None else one.residual,
            "note": one.note,
        }
        for one in found.timings
    ]
    return {"operator": repr(D), "timings": timings, "rule": found.rule, "path": path}
