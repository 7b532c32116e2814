"""Claims on one GPU: field copy, axpy and norm at 92 % of a device copy; plaquette at 60 % of it; staple sum and SU(3) update at 70 %
of the lowest roof.

Compulsory bytes: every number that a kernel needs is counted once, however often it is read. The denominator is a copy by the
driver of two arrays of 1 GiB, measured before and after all rows. Times are medians over batches between two events. Kernels are
tuned by their first run; `--tune off` shows what that is worth, `--launch` forces one way.
"""

from __future__ import annotations

import argparse
import gc

import numpy as np

import jali
from jali.bench.compare.rows import axpy, copy, norm2, plaquette
from jali.codegen.types import Element
from jali.gauge import SU, GaugeField, heat_bath_sweep, overrelaxation_sweep
from jali.gauge.staples import staple_sum
from jali.lattice.binding import BoundKernel
from jali.profile.device_roofs import copy_rate, seconds_on


def rows_of_small(lattice: jali.Lattice, element: Element, precision: str) -> list[tuple]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", default="16,32")
    parser.add_argument("--rows", default="", help="only rows whose name contains one of these words")
    parser.add_argument("--precisions", default="float64,float32")
    parser.add_argument(
        "--small", action="store_true", help="also copy, axpy and norm of real and complex fields"
    )
    parser.add_argument("--tune", default="now", help="as JALI_TUNE")
    parser.add_argument("--launch", help="as of jali.tune.experiment")
    arguments = parser.parse_args()
    jali.settings.use(tune=arguments.tune, launch=arguments.launch)
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
            x.assign(U.fields[0])
            y.assign(U.fields[1])
            rng = jali.Random(3)
            matrix = 18 * real * volume
            mu = lattice.directions[0]
            rows = [
                ("copy", lambda: copy(y, x), 2 * matrix),
                ("axpy", lambda: axpy(y, x, 0.5), 3 * matrix),
                ("norm", lambda: lattice.sum(norm2, x), matrix),
                ("plaquette", lambda: lattice.sum(plaquette, U), 4 * matrix),
                ("staple sum", lambda: staple_sum(U, y, mu), 5 * matrix),
                ("overrelaxation", lambda: overrelaxation_sweep(U), 8 * 5 * matrix / 2),
                ("heat bath", lambda: heat_bath_sweep(U, 5.7, rng), 8 * 5 * matrix / 2),
            ]
            for element in (jali.Real(), jali.Complex()) if arguments.small else ():
                rows += rows_of_small(lattice, element, precision)
            for name, work, moved in rows:
                if arguments.rows and not any(word in name for word in arguments.rows.split(",")):
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
    for (name, precision, extents), (function, choice) in sorted(seen.items(), key=lambda row: row[0]):
        print(
            f"{precision} {name}: {function.registers} registers, {function.local_bytes} bytes of local memory; "
            f"{'x'.join(map(str, extents))}: {choice}"
        )
    print(f"device copy again {copy_rate(gpu) / 1e12:.3f} TB/s")


if __name__ == "__main__":
    main()
