"""Claim: least-squares migration with the same number of sources for each GPU takes as long on four as on one (weak scaling, 90 %), and
what communication costs is a fifth of what it costs by way of host memory.

Runs `jali example lsm --size gpu`: 1001 x 501 points and 64 sources for each rank; with `--size wide` 2001 x 1001 points and few data, so
that the sum of the image over ranks matters. Rounds (`--repeat`) take turns over numbers of ranks, and over
ways of collectives (`--collective all_reduce=host-staged`, values of JALI_COLLECTIVE); numbers are medians of rounds. The efficiency is the time of the first
number of ranks over that of others; communication includes what ranks wait for slower ones. The roof is the time without communication.
On hosts (`--device cpu --set sources_per_rank=2 --set receivers=11 --set times=1501`) it shows less: ranks share memory bandwidth.

`--against pylops-mpi` measures that library (0.8.0; where it is, PYTHONPATH says) beside jali: for each number of ranks one run, in which
both solve the same problem `--repeat` times in turn, with the same local operator, after solutions that are not measured and whose norms
of residuals are compared, jali's also with its own of data that differ in their last bits: roundings, also those of sums of no fixed order on
devices, grow from step to step, so that libraries have to agree as long as jali agrees with itself. It communicates by NCCL on devices, by MPI on hosts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import migration_sides
from migration_sides import JALI, OTHER

from jali.amounts import counted
from jali.bench.compare.pairs import LAUNCH


def run(ranks: int, arguments: argparse.Namespace, collective: str) -> tuple[float, float]:
    """ms per iteration, and those of them in communication."""
    command = [sys.executable, "-m", "jali", "example", "lsm", "--json", "-n", str(ranks)]
    command += ["--device", arguments.device, "--size", arguments.size]
    command += ["--engine", arguments.engine] if arguments.engine else []
    command += [word for text in arguments.overrides for word in ("--set", text)]
    environment = dict(os.environ)
    if collective:
        environment["JALI_COLLECTIVE"] = collective
    done = subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE)
    times = json.loads(done.stdout)["times"]["iterations"]
    step = 1e3 * times["seconds"] / times["steps"]
    return step, step * times["communication"]


def alone(arguments: argparse.Namespace) -> None:
    """Measure jali, and say what was found."""
    specs = list(dict.fromkeys(["", *arguments.collective]))
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for _ in range(arguments.repeat):
        for ranks in arguments.ranks:
            for spec in specs:
                found.setdefault((ranks, spec), []).append(run(ranks, arguments, spec))
    first = statistics.median(step for step, _ in found[arguments.ranks[0], ""])
    print(
        f"{'ranks':>5}  {'spec':24}{'ms a step':>10}{'range':>20}{'communication':>15}{'roof':>10}{'efficiency':>12}"
    )
    for (ranks, spec), times in found.items():
        steps = sorted(step for step, _ in times)
        step, communication = statistics.median(steps), statistics.median(part for _, part in times)
        print(
            f"{ranks:5}  {spec or 'as chosen':24}{step:10.3f}{f'{steps[0]:.3f} to {steps[-1]:.3f}':>20}{communication:12.3f} ms"
            f"{step - communication:10.3f}{first / step:11.1%}",
            flush=True,
        )


def apart(costs: list[float], right: list[float]) -> list[float]:
    """Relative differences."""
    return [abs(a - b) / b for a, b in zip(costs, right, strict=True)]


def beside(arguments: argparse.Namespace) -> None:
    """Measure jali and pylops-mpi, and say what was found."""
    program = [sys.executable, str(Path(migration_sides.__file__).resolve()), *sys.argv[1:]]
    first: dict[str, float] = {}
    for ranks in arguments.ranks:
        command = program if ranks == 1 else [sys.executable, "-c", LAUNCH, str(ranks), *program]
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE)
        if done.returncode:
            raise SystemExit(f"{counted(ranks, 'rank')} failed, with code {done.returncode}; see above")
        found = json.loads(done.stdout.splitlines()[-1])
        if not first:
            print(
                f"arrays of {found['engine']}; local operator of {OTHER}: {arguments.kirchhoff}'s Kirchhoff"
            )
            print(
                f"{'ranks':>5}  {'':12}{'ms a step':>10}{'range':>22}{'efficiency':>12}{'/ jali':>8}  largest difference of residuals"
            )
        own = apart(found["again"], found["costs"][JALI])
        alike = max(3, next((k for k, part in enumerate(own) if part > 1e-10), len(own)))  # steps
        medians = {name: statistics.median(times) for name, times in found["times"].items()}
        for name, times in found["times"].items():
            step = medians[name]
            first.setdefault(name, step)
            differs = own if name == JALI else apart(found["costs"][name], found["costs"][JALI])
            print(
                f"{ranks:5}  {name:12}{step:10.3f}{f'{min(times):.3f} to {max(times):.3f}':>22}{first[name] / step:12.1%}"
                f"{step / medians[JALI]:8.2f}  {max(differs):.1e}",
                flush=True,
            )
            if max(differs[:alike]) > 1e-6:
                raise SystemExit(
                    f"residuals of {name} differ by more than 1e-6 in the first {alike} steps, where those of jali differ by "
                    f"{max(own[:alike]):.1e}: these are not the same problem"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    migration_sides.add_arguments(parser)
    arguments = parser.parse_args()
    if min(arguments.ranks) < 1 or arguments.repeat < 1:
        parser.error("--ranks and --repeat are whole numbers from 1")
    if arguments.against and arguments.collective != [""]:
        parser.error("--collective is measured without --against")
    if arguments.against and importlib.util.find_spec("pylops_mpi") is None:
        parser.error(f"{OTHER} is not found: PYTHONPATH says where it is")
    (beside if arguments.against else alone)(arguments)


if __name__ == "__main__":
    main()
