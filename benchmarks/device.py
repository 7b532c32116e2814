"""Claims on one GPU: field copy, axpy and norm at 92 % of a device copy, at 85 % in 16 bits; plaquette at 60 % of it; staple sum and
SU(3) update at 70 % of the lowest roof.

Compulsory bytes: every number that a kernel needs is counted once, however often it is read. The denominator is a copy by the
driver of two arrays of 1 GiB, measured before and after all cases. Times are medians over batches between two events. Kernels are
tuned by their first run; `--tune off` shows what that is worth, `--launch` forces one way.
"""

from __future__ import annotations

import argparse
import gc

import numpy as np

import jali
from jali.bench.compare.cases import axpy, copy, laplacian, norm2, plaquette
from jali.codegen.types import Element
from jali.fermions import WilsonDirac
from jali.gauge import SU, GaugeField, heat_bath_sweep, overrelaxation_sweep
from jali.gauge.staples import staple_sum
from jali.lattice.binding import BoundKernel
from jali.profile.device_roofs import copy_rate, seconds_on


@jali.site_function
def block_sum(X, coarse, fine):
    coarse[X] = sum((fine[Y] for Y in X.block(fine)), 0.0 * fine[X.on(fine)])


@jali.site_function
def injection(X, fine, coarse):
    fine[X] = coarse[X.on(coarse)]


def cases_of_small(lattice: jali.Lattice, element: Element, precision: str) -> list[tuple]:
    """Fields whose neighbouring sites share 16 bytes."""
    x, y = (jali.Field(lattice, element, precision=precision) for _ in range(2))
    for field in (x, y):
        here = field.local()
        field.set_local(np.random.default_rng(1).random(here.shape).astype(here.dtype))
    size = (8 if precision == "float64" else 4) * element.stored_reals * lattice.volume
    kind = element.type.kind
    return [
        (f"copy {kind}", lambda: copy(y, x), 2 * size),
        (f"axpy {kind}", lambda: axpy(y, x, 0.5), 3 * size),
        (f"norm {kind}", lambda: lattice.sum(norm2, x), size),
    ]


def cases_of_storage(lattice: jali.Lattice, storage: str, precision: str) -> list[tuple]:
    """Spinors that are kept so, and the Wilson operator on them with links of 12 reals that are."""
    x, y = (jali.Field(lattice, jali.Spinor(3), precision=precision, storage=storage) for _ in range(2))
    x[...] = np.random.default_rng(1).normal(size=(*lattice.extents, 4, 3))
    links = GaugeField(lattice, SU(3), precision=precision, storage=f"{storage}-12").hot_start(seed=1)
    wilson = WilsonDirac(links, 0.1)
    size = x.stored.site_bytes * lattice.volume
    moved = 2 * size + 4 * links.fields[0].stored.site_bytes * lattice.volume
    return [
        (f"copy {storage}", lambda: copy(y, x), 2 * size),
        (f"axpy {storage}", lambda: axpy(y, x, 0.5), 3 * size),
        (f"norm {storage}", lambda: lattice.sum(norm2, x), size),
        (f"wilson {storage}", lambda: wilson.apply(x, y), moved),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", default="16,32")
    parser.add_argument("--cases", default="", help="only cases whose name contains one of these words")
    parser.add_argument("--precisions", default="float64,float32")
    parser.add_argument(
        "--small", action="store_true", help="also copy, axpy and norm of real and complex fields"
    )
    parser.add_argument(
        "--storages",
        default="",
        help="also spinors and the Wilson operator in these, such as fixed16,float16",
    )
    parser.add_argument("--tune", default="now", help="as JALI_TUNE")
    parser.add_argument("--launch", help="as of jali.tune.experiment")
    parser.add_argument("--tables", help="as device_tables of jali.tune.experiment")
    arguments = parser.parse_args()
    jali.settings.use(tune=arguments.tune, launch=arguments.launch, device_tables=arguments.tables)
    jali.use_device(arguments.device)
    gpu = jali.Lattice(2, 2).gpu
    roof = copy_rate(gpu)
    print(f"{gpu.name}, {gpu.multiprocessors} multiprocessors, device copy {roof / 1e12:.3f} TB/s")
    for precision in arguments.precisions.split(","):
        real = 8 if precision == "float64" else 4
        for size in map(int, arguments.sizes.split(",")):
            lattice = jali.Lattice(size, size, size, size)
            volume = lattice.volume
            U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)
            x, y = (jali.Field(lattice, jali.Matrix(3), precision=precision) for _ in range(2))
            p, q = (jali.Field(lattice, jali.Real(), precision=precision) for _ in range(2))
            c = jali.Field(jali.Lattice(*[size // 2] * 4), jali.Matrix(3), precision=precision)
            x.assign(U.fields[0])
            y.assign(U.fields[1])
            rng = jali.Random(3)
            matrix = 18 * real * volume
            mu = lattice.directions[0]
            cases = [
                ("copy", lambda: copy(y, x), 2 * matrix),
                ("axpy", lambda: axpy(y, x, 0.5), 3 * matrix),
                ("norm", lambda: lattice.sum(norm2, x), matrix),
                ("plaquette", lambda: lattice.sum(plaquette, U), 4 * matrix),
                ("staple sum", lambda: staple_sum(U, y, mu), 5 * matrix),
                ("laplacian", lambda: laplacian(q, p), 2 * real * volume),
                ("block sum", lambda: block_sum(c, x), matrix * 17 // 16),
                ("injection", lambda: injection(x, c), matrix * 17 // 16),
                ("overrelaxation", lambda: overrelaxation_sweep(U), 8 * 5 * matrix / 2),
                ("heat bath", lambda: heat_bath_sweep(U, 5.7, rng), 8 * 5 * matrix / 2),
            ]
            for element in (jali.Real(), jali.Complex()) if arguments.small else ():
                cases += cases_of_small(lattice, element, precision)
            for storage in filter(None, arguments.storages.split(",")):
                cases += cases_of_storage(lattice, storage, precision)
            for name, work, moved in cases:
                if arguments.cases and not any(word in name for word in arguments.cases.split(",")):
                    continue
                time, spread = seconds_on(gpu, work)
                print(
                    f"{precision} {size}^4 {name:16s} {time * 1e6:10.2f} us  {moved / time / 1e9:8.0f} GB/s  "
                    f"{moved / time / roof:6.1%} of copy  (spread {spread:.1%})",
                    flush=True,
                )
    seen = {}
    for bound in gc.get_objects():
        if isinstance(bound, BoundKernel):
            key = bound.program.name, bound.program.precision, bound.lattice.extents
            seen[key] = bound.function, bound.chosen.launch
    for (name, precision, extents), (function, choice) in sorted(seen.items(), key=lambda case: case[0]):
        print(
            f"{precision} {name}: {function.registers} registers, {function.local_bytes} bytes of local memory; "
            f"{'x'.join(map(str, extents))}: {choice}"
        )
    print(f"device copy again {copy_rate(gpu) / 1e12:.3f} TB/s")


if __name__ == "__main__":
    main()
