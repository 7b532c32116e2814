"""Claim: `launch.check()` proves the halos of a launch on four ranks in less than 50 ms.

Four virtual ranks split a Laplacian in two directions; every halo policy that is possible, on hosts and on devices. These are
the fake ones of the tests (tests/gpu/fake_driver.py; so pytest has to be there), of host memory: the launches that a check
records run there too, one after the other, which takes most of the time where ranks have many sites. With
JALI_TEST_REAL_GPU=1 "cuda" is what the machine has: four GPUs, or two, which then share one direction. A case is the slowest rank's time by the clock, its
median over the repeats and its range; `own`: milliseconds of processor time of that rank's thread, which has no part of what
fake devices compute, and which other processes disturb less.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jali.bench.timing import Result, arguments, show

GRIDS = {4: (1, 1, 2, 2), 2: (1, 1, 1, 2)}
REPEATS = 15
CHILD = "JALI_TEST_BENCHMARK_CHILD"
AIM = 50.0  # ms


def checked(device: str, size: int, grid: tuple[int, ...]) -> list[tuple[float, float]]:
    """Milliseconds of each check on this rank: by the clock, and of its thread's processor time."""
    from jali.bench.halo import make_case

    case = make_case("laplace", [size] * len(grid), grid, device)
    call = case.bind()
    launch, ranks = call.kernels[0].launch, case.lattice.communicator
    call()
    launch.check()  # what is made at the first time is no part of it
    found = []
    for _ in range(REPEATS):
        ranks.barrier()
        start = time.perf_counter(), time.thread_time()
        launch.check()
        end = time.perf_counter(), time.thread_time()
        found.append((1e3 * (end[0] - start[0]), 1e3 * (end[1] - start[1])))
    return found


def result(name: str, of_ranks: list[list[tuple[float, float]]]) -> Result:
    """Of the slowest rank of each check."""
    clock, own = ([max(rank[k] for rank in of_one) for of_one in zip(*of_ranks, strict=True)] for k in (0, 1))
    return Result(
        name, statistics.median(clock), min(clock), max(clock), "ms", {"own": statistics.median(own)}
    )


def with_fake_devices(folder: str) -> dict[str, str]:
    """The environment of a program whose devices, and their library of collectives, are those of the tests."""
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / path) for path in ("gpu", "")]
    from fake_driver import FILES, make_fake_ccl, make_fake_driver

    driver = str(make_fake_driver())
    named = {f"JALI_{name.upper()}": driver for names in FILES.values() for name in names}
    fake = {"JALI_FAKE_GPUS": str(max(GRIDS)), "JALI_FAKE_CCL_FOLDER": folder, CHILD: "1"}
    return {**os.environ, **named, "JALI_NCCL": str(make_fake_ccl()), **fake}


def main() -> int:
    options = arguments(__doc__, sizes="8,16")
    if CHILD not in os.environ and os.environ.get("JALI_TEST_REAL_GPU") != "1":
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, *sys.argv[1:]]
            return subprocess.run(command, env=with_fake_devices(folder), check=False).returncode
    import jali
    from jali import _core, settings
    from jali.errors import JaliError

    results = []
    settings.use(tune="off")
    ranks = max((n for n in GRIDS if n <= _core.Gpu.count("cuda")), default=max(GRIDS))
    grid = GRIDS[ranks]
    for device in ("cpu", "cuda"):
        for policy, *_ in _core.halo_policies(device):
            settings.use(halo_policy=policy)
            for size in map(int, options.sizes.split(",")):
                with contextlib.suppress(JaliError):  # not possible between ranks that are threads
                    results.append(
                        result(
                            f"{device} {policy}, {size}^4",
                            jali.virtual_ranks(ranks, checked, device, size, grid),
                        )
                    )
    show(results, options, f"{ranks} virtual ranks as {'x'.join(map(str, grid))}, {REPEATS} checks")
    if not options.json:
        clock, own = (
            sum(ms < AIM for ms in of)
            for of in zip(*((r.median, r.remarks["own"]) for r in results), strict=True)
        )
        print(
            f"under {AIM:g} ms: {clock} of {len(results)} by the clock, {own} by the processor time of a rank"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
