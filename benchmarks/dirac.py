"""Claims: on one H200, 32^4, hops of Dirac operators between half fields, with the inverse diagonal in the same kernel, take these parts of a copy's
bandwidth over compulsory bytes in float64: Wilson 89 %, clover 93 %, staggered 95 %, HISQ 96 %, domain walls of 12 slices 49 %; of a batch of 8 fields,
which share links, HISQ has 4.0 times the throughput per member.

For each operator and format: the time of a kernel on half of the sites, its compulsory bytes (fields once, links of both colours once) over
the bandwidth of a copy in the same run, and the throughput of a member of a batch. Links have 12 reals where they are unitary; HISQ's fat and long
links have 18. `--device cpu` runs on one core; `JALI_TUNE=now` finds the fastest launches first. `--once` shows each kernel once to a profiler of counters:

    ncu --profile-from-start off --clock-control none --metrics ... python benchmarks/dirac.py --device cuda --once
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
from collections.abc import Iterator

from half_lattice import REPEATED, copy_rate, seconds

import jali
from jali import Lattice
from jali.bench.operators import FORMATS, OPERATORS, SLICES, compulsory_bytes, links_of, operator_case
from jali.bench.timing import pin


@contextlib.contextmanager
def shown_to_profiler() -> Iterator[None]:
    """What is launched here is what a profiler of CUDA sees that does not profile from the start."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuProfilerStart()
    yield
    driver.cuProfilerStop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--extents", default="8")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--operators", default=",".join(OPERATORS))
    parser.add_argument("--batches", default="0,8", help="members; 0: a field without a batch")
    parser.add_argument("--full", action="store_true", help="also D psi of fields on all sites")
    parser.add_argument(
        "--once", action="store_true", help="show each kernel to a profiler once, in place of timing it"
    )
    parser.add_argument("--rounds", type=int, default=24)
    options = parser.parse_args()
    if options.once and not options.device.startswith("cuda"):
        parser.error("--once is for CUDA's profilers")
    if options.device == "cpu":
        pin()
    rate = copy_rate(options.device, options.rounds // 2)
    print(f"copy: {rate / 1e12:.3f} TB/s on {options.device}", flush=True)
    for extent in map(int, options.extents.split(",")):
        lattice = Lattice(*[extent] * 4, device=options.device)
        for format in options.formats.split(","):
            U, links = links_of(lattice, format)
            for name in options.operators.split(","):
                single = 0.0
                kinds = [(int(b) or None, False) for b in options.batches.split(",")]
                for batch, full in kinds + [(None, True)] * options.full:
                    case = operator_case(name, U, links, format, batch, full)
                    if case.D.joins_members and single and not full:
                        continue  # its batch is the fifth direction

                    def turns(calls, case=case):
                        for _ in range(calls):  # of the same numbers: those of hops of hops would overflow
                            case.kernel(*case.arguments(case.odd, case.even))

                    what = f"{SLICES} slices" * case.D.joins_members or f"batch of {batch}" * bool(batch)
                    what = "full " * full + (what or "one")
                    label = f"{extent}^4 {format:8s} {name:18s}{what:15s}"
                    turns(1)
                    if options.once:
                        with shown_to_profiler():
                            case.kernel(*case.arguments(case.odd, case.even))
                            lattice.gpu.synchronize()
                        print(label, flush=True)
                        continue
                    calls = REPEATED if lattice.gpu is not None else REPEATED // 10
                    repeat = functools.partial(turns, calls)
                    call = jali.graph(repeat, lattice).run if lattice.gpu is not None else repeat
                    time_of_call = seconds(call, lattice, options.rounds) / calls
                    (bound,) = case.kernel.kernels(*case.arguments(case.odd, case.even))
                    sites = lattice.volume if full else lattice.volume // 2
                    members = case.even.batch or 1
                    least, flops = sites * compulsory_bytes(bound), sites * bound.cost.flops
                    single = single or time_of_call / members
                    remark = f"{single * members / time_of_call:.2f} times the throughput of one" * bool(
                        batch and not case.D.joins_members
                    )
                    print(
                        f"{label}{1e6 * time_of_call:9.2f} us {least / sites:6.0f} bytes  "
                        f"{least / time_of_call / rate:6.1%} of copy {flops / time_of_call / 1e9:8.1f} Gflop/s  {remark}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
