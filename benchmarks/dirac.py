"""Claims: hops of Dirac operators between half fields, with the inverse diagonal in the same kernel, run at the speed of memory; a batch of 8
fields shares links.

For each operator and format: the time of a kernel on half of the sites, its compulsory bytes (fields once, links of both colours once) over
the bandwidth of a copy in the same run, and the throughput of a member of a batch. Links have 12 reals where the group allows it; HISQ's fat and long
links have 18. `--device cpu` runs on one core; `JALI_TUNE=now` finds the fastest launches first.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

from half_lattice import FORMATS, REPEATED, copy_rate, seconds

import jali
from jali import EVEN, ODD, SU, Field, Lattice
from jali.bench.timing import pin
from jali.fermions import (
    HISQ,
    CloverDirac,
    DomainWallDirac,
    Staggered,
    TwistedCloverDirac,
    TwistedMassDirac,
    WilsonDirac,
    hisq_links,
)
from jali.gauge import GaugeField

LS = 12


def domain_wall(U: Any, links: list[Field], storage: Any) -> Any:
    return DomainWallDirac(links, 0.1, 1.8, Ls=LS)


def hisq(U: Any, links: list[Field], storage: Any) -> Any:
    D = HISQ(hisq_links(U), 0.1, epsilon=0.0)
    if storage is not None:
        stored = [[f.like(storage=storage).assign(f) for f in fields] for fields in (D.links, D.long)]
        D.links, D.long = stored
    return D


# an operator of links in double or single precision, of the same ones as they are stored, and of a storage for other fields; its kernel
OPERATORS: dict[str, tuple[Callable[..., Any], str]] = {
    "Wilson hop": (lambda U, links, storage: WilsonDirac(links, 0.1), "hop"),
    "Wilson": (lambda U, links, storage: WilsonDirac(links, 0.1), "inverse_of_hop"),
    "clover": (
        lambda U, links, storage: CloverDirac(links, 0.1, csw=1.2, storage=storage),
        "inverse_of_hop",
    ),
    "twisted mass": (lambda U, links, storage: TwistedMassDirac(links, 0.1, mu=0.2), "inverse_of_hop"),
    "twisted clover": (
        lambda U, links, storage: TwistedCloverDirac(links, 0.1, mu=0.2, csw=1.2, storage=storage),
        "inverse_of_hop",
    ),
    "staggered": (lambda U, links, storage: Staggered(links, 0.1), "hop"),
    "HISQ": (hisq, "hop"),
    "domain wall": (domain_wall, "hop"),
}


def compulsory_bytes(kernel: Any) -> int:
    """Of a site of the kernel's colour: what is written and read there, and what is read at both colours once for each."""
    sizes = [f.storage.site_bytes for f in kernel.fields]
    total = sum(sizes[slot] for slot in kernel.text.analysis.writes)
    for slot, offsets in kernel.text.analysis.reads.items():
        total += sizes[slot] * len({sum(offset) % 2 for offset in offsets})
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--extents", default="8")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--operators", default=",".join(OPERATORS))
    parser.add_argument("--batches", default="0,8", help="members; 0: a field without a batch")
    parser.add_argument("--rounds", type=int, default=24)
    options = parser.parse_args()
    if options.device == "cpu":
        pin()
    rate = copy_rate(options.device, options.rounds // 2)
    print(f"copy: {rate / 1e12:.3f} TB/s on {options.device}", flush=True)
    for extent in map(int, options.extents.split(",")):
        lattice = Lattice(*[extent] * 4, device=options.device)
        for name in options.formats.split(","):
            precision, storage, of_links = FORMATS[name]
            U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)
            links = [u.like(storage=of_links).assign(u) for u in U.fields]
            for operator in options.operators.split(","):
                make, form = OPERATORS[operator]
                D = make(U, links, storage)
                single = 0.0
                for batch in [LS] if D.joins_members else [int(b) for b in options.batches.split(",")]:
                    kind = {"precision": precision, "storage": storage, "batch": batch or None}
                    even, odd = (Field(lattice, D.element, over=over, **kind) for over in (EVEN, ODD))
                    even[...] = 1.0
                    kernel = D.kernel(form)

                    def turns(calls, kernel=kernel, even=even, odd=odd, D=D):
                        for _ in range(calls // 2):
                            kernel(odd, even, False, *D.data)
                            kernel(even, odd, False, *D.data)

                    turns(2)
                    calls = REPEATED if lattice.gpu is not None else REPEATED // 10
                    repeat = functools.partial(turns, calls)
                    call = jali.graph(repeat, lattice).run if lattice.gpu is not None else repeat
                    time_of_call = seconds(call, lattice, options.rounds) / calls
                    (bound,) = kernel.kernels(odd, even, False, *D.data)
                    least = lattice.volume // 2 * compulsory_bytes(bound)
                    each = time_of_call / (batch or 1)
                    single = single or each
                    remark = (
                        f"{single / each:.2f} times the throughput of one"
                        if batch and not D.joins_members
                        else ""
                    )
                    what = f"Ls = {batch}" if D.joins_members else f"batch of {batch}" if batch else "one"
                    print(
                        f"{extent}^4 {name:8s} {operator:15s} {what:11s} {1e6 * time_of_call:9.2f} us  "
                        f"{least / time_of_call / rate:6.1%} of copy  {bound.cost.flops * lattice.volume / 2 / time_of_call / 1e9:8.1f} Gflop/s  {remark}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
