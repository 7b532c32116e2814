"""Claims: on one H200 a Wilson hop between half fields of 32^4 takes 89 % of a copy's bandwidth over compulsory bytes in float64, 85 % in float32,
69 % in 16-bit floats, 50 % in fixed16; per member of a batch of 8 the throughput is 1.4, 1.7, 1.3 and 1.3 times that; on one core at 8^4 1.5 times.

A hop reads a spinor field on one colour and writes one on the other, with links of 12 reals. Compulsory bytes count each spinor and each
link once. The bandwidth is that of a copy of a large field in the same run. Hops are recorded in a graph.
`--device cpu` runs on one core; `JALI_TUNE=now` finds the fastest launches first.
"""

import argparse
import functools
import time
from collections.abc import Sequence

import numpy as np

import jali
from jali import EVEN, ODD, SU, Field, Lattice, Spinor, Vector
from jali.bench.operators import FORMATS
from jali.bench.timing import pin
from jali.fermions import wilson_hop_at
from jali.gauge import GaugeField
from jali.lattice.algebra import copy

REPEATED = 100  # hops of a graph; a tenth of a round on a host


@jali.site_function
def hop(X, out, psi, U):
    """out = H psi."""
    out[X] = wilson_hop_at(X, psi, U)


def seconds(call, lattice, rounds: int) -> float:
    """Median wall time of a call that ends with its device."""
    times = []
    for _ in range(rounds):
        if lattice.gpu is not None:
            lattice.gpu.synchronize()
        start = time.perf_counter()
        call()
        if lattice.gpu is not None:
            lattice.gpu.synchronize()
        times.append(time.perf_counter() - start)
    return float(np.median(times[rounds // 4 :]))


def copy_rate(device: str, rounds: int, extents: Sequence[int] | None = None) -> float:
    """Bytes per second, read and written, of a copy that no cache holds; or of one of fields with these extents."""
    usual = [64, 64, 64, 64] if device == "cpu" else [256, 128, 64, 64]
    lattice = Lattice(*(extents or usual), device=device)
    x, y = (Field(lattice, Vector(2)) for _ in range(2))
    return 64 * lattice.volume * 4 / seconds(lambda: [copy(x, y) for _ in range(4)], lattice, rounds)


def cache_rate(device: str, rounds: int) -> float:
    """The same of copies in a graph that a device's second-level cache holds: 32 MB are read and written."""
    lattice = Lattice(32, 32, 32, 16, device=device)
    x, y = (Field(lattice, Vector(2)) for _ in range(2))
    graph = jali.graph(lambda: [copy(x, y) for _ in range(REPEATED)], lattice)
    return 64 * lattice.volume * REPEATED / seconds(graph.run, lattice, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--extents", default="8")
    parser.add_argument("--batches", default="0,8", help="members; 0: a field without a batch")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--full", action="store_true", help="also hop[EVEN] between fields on all sites")
    options = parser.parse_args()
    if options.device == "cpu":
        pin()
    rate = copy_rate(options.device, options.rounds // 2)
    print(f"copy: {rate / 1e12:.3f} TB/s on {options.device}")
    if options.device != "cpu":
        print(f"copy in the second-level cache: {cache_rate(options.device, options.rounds) / 1e12:.3f} TB/s")
    for extent in map(int, options.extents.split(",")):
        lattice = Lattice(*[extent] * 4, device=options.device)
        for name in options.formats.split(","):
            precision, storage, of_links = FORMATS[name]
            U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)
            links = [u.like(storage=of_links).assign(u) for u in U.fields]
            single = 0.0
            kinds = [(int(b) or None, True) for b in options.batches.split(",")]
            kinds += [(None, False)] if options.full else []
            for batch, halves in kinds:
                kind = {"precision": precision, "storage": storage, "batch": batch}
                even, odd = (
                    Field(lattice, Spinor(3), over=over if halves else jali.ALL, **kind)
                    for over in (EVEN, ODD)
                )
                even[...] = np.ones(even.shape)

                def turns(hops, even=even, odd=odd, links=links, halves=halves):
                    for _ in range(hops):  # of the same numbers: those of hops of hops would overflow
                        (hop if halves else hop[ODD])(odd, even, links)

                turns(1)
                hops = REPEATED if lattice.gpu is not None else REPEATED // 10
                repeat = functools.partial(turns, hops)
                call = jali.graph(repeat, lattice).run if lattice.gpu is not None else repeat
                time_of_hop = seconds(call, lattice, options.rounds) / hops
                members = batch or 1
                spinor, link = even.stored.site_bytes, links[0].stored.site_bytes
                least = lattice.volume // 2 * (2 * spinor * members + 8 * link)
                each = time_of_hop / members
                single = single or each
                remark = f"{single / each:.2f} times the throughput of one" if batch else ""
                what = f"batch of {batch}" if batch else "one" if halves else "one, full fields"
                print(
                    f"{extent}^4 {name:8s} {what:18s} {1e6 * time_of_hop:9.2f} us  {least / time_of_hop / rate:6.1%} of copy  {remark}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
