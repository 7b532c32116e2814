"""Claim: least-squares migration with the same number of sources for each GPU takes as long on four as on one (weak scaling, 90 %), and
what communication costs is a fifth of what it costs by way of host memory.

Runs `jali example lsm --size gpu`: 1001 x 501 points and 64 sources for each rank; with `--size wide` 2001 x 1001 points and few data, so
that the sum of the image over ranks matters. Rounds take turns over numbers of ranks, and over
ways of collectives (`--collective all_reduce=host-staged`, values of JALI_COLLECTIVE); numbers are medians of rounds. The efficiency is the time of the first
number of ranks over that of others; communication includes what ranks wait for slower ones. The roof is the time without communication.
On hosts (`--device cpu --set sources_per_rank=2 --set receivers=11 --set times=1501`) it shows less: ranks share memory bandwidth.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="gpu", help="of the example: gpu, or wide for much communication")
    parser.add_argument("--engine", help="cupy or torch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--collective", nargs="+", default=[""], help="ways, beside which the chosen one is timed"
    )
    arguments = parser.parse_args()
    ways = list(dict.fromkeys(["", *arguments.collective]))
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for _ in range(arguments.rounds):
        for ranks in arguments.ranks:
            for way in ways:
                found.setdefault((ranks, way), []).append(run(ranks, arguments, way))
    first = statistics.median(step for step, _ in found[arguments.ranks[0], ""])
    print(
        f"{'ranks':>5}  {'way':24}{'ms a step':>10}{'range':>20}{'communication':>15}{'roof':>10}{'efficiency':>12}"
    )
    for (ranks, way), times in found.items():
        steps = sorted(step for step, _ in times)
        step, communication = statistics.median(steps), statistics.median(part for _, part in times)
        print(
            f"{ranks:5}  {way or 'as chosen':24}{step:10.3f}{f'{steps[0]:.3f} to {steps[-1]:.3f}':>20}{communication:12.3f} ms"
            f"{step - communication:10.3f}{first / step:11.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
