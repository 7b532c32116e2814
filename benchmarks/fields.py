"""Claims: field copy, axpy and fast norm at 90 % of a plain triad; the reproducible norm at 75 %, from memory.

Fields of 3x3 matrices on 24^4 (48 MB each in float64), one core, pinned. Bytes are those read and written once. The triad is
measured before and after each row, on arrays of the same size in the same kind of memory.
"""

from site_functions import axpy, copy, norm2
from timing import Result, arguments, pin, show, time_call

import jali
from jali.profile.host_roofs import copy_rate


def main() -> None:
    options = arguments(__doc__, sizes="24")
    pin()
    size = int(options.sizes.split(",")[0])
    lattice = jali.Lattice(size, size, size, size)
    x, y = (jali.Field(lattice, jali.Matrix(3), precision=options.precision) for _ in range(2))
    x.set_local(1e-3 * (1 + x.local().real))
    volume = lattice.volume
    bytes_ = 18 * (8 if options.precision == "float64" else 4)
    megabytes = 3 * bytes_ * volume // 2**20
    calls = [
        ("copy", lambda: copy(y, x), 2),
        ("axpy", lambda: axpy(y, x, 0.5), 3),
        ("fast norm", lambda: lattice.sum(norm2, x, fast=True), 1),
        ("reproducible norm", lambda: lattice.sum(norm2, x), 1),
    ]
    rows = []
    for name, call, streams in calls:
        before = copy_rate(options.precision, megabytes, repeats=5, name="triad")
        time = time_call(call, volume, seconds=0.1, repeats=9)
        after = copy_rate(options.precision, megabytes, repeats=5, name="triad")
        triad = (before + after) / 2 / 1e9
        rate = streams * bytes_ / time[0]
        rows.append(
            Result(
                f"{name} {size}^4", *time, "ns/site", {"GB/s": rate, "triad": triad, "of triad": rate / triad}
            )
        )
    show(rows, options)


if __name__ == "__main__":
    main()
