"""`jali tune solvers`: measures the solvers of a Dirac operator on this machine, and writes a rule for `jali.solve`.

Links are those of a configuration, or quenched ones that are made here: their condition decides how solvers compare, so random links would not do. What is
measured, and how, is `jali.solvers.tuning`'s affair.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from jali import comm
from jali.cli.configurations import load_configuration
from jali.cli.operators import numbers_of, operator_from
from jali.errors import ParameterError
from jali.fermions import Dirac
from jali.gauge import SU, GaugeField, sweep
from jali.lattice import Field, Lattice, Random
from jali.solvers.rules import user_file
from jali.solvers.tuning import Timing, TunedSolver, tune_solver

SEED = 1
LATTICE, BETA, SWEEPS = (8, 8, 8, 16), 6.0, 30


def execute(arguments: argparse.Namespace) -> int:
    """Make the links, measure, write the rule, and print what was measured."""
    ranks = comm.current()
    name, mass = arguments.kernel, arguments.mass
    given = {**arguments.numbers, **({} if mass is None else {"mass": mass})}
    numbers = numbers_of(name, given, "jali tune solvers", ("mass",))
    if arguments.batch is not None and name == "domain-wall":
        raise ParameterError("the members of a batch of domain-wall are its slices: leave out --batch")
    U = _links(arguments)
    D = operator_from(name, numbers, U)
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
