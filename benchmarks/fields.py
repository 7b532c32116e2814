"""Claims: field copy, axpy and fast norm at 90 % of a plain triad; the reproducible norm at 75 %, from memory.

Fields of 3x3 matrices on 24^4 (48 MB each in float64), one core, pinned. Bytes are those read and written once. The triad is
measured before and after each case, on arrays of the same size in the same kind of memory.
"""

from jali.bench.compare.cases import plain
from jali.bench.timing import Result, arguments, pin, show, time_call
from jali.profile.host_roofs import copy_rate


def main() -> None:
    options = arguments(__doc__, sizes="24")
    pin()
    size = int(options.sizes.split(",")[0])
    bytes_ = 18 * (8 if options.precision == "float64" else 4)
    megabytes = 3 * bytes_ * size**4 // 2**20
    cases = []
    for name, streams in (("copy", 2), ("axpy", 3), ("fast norm", 1), ("norm", 1)):
        work = plain(name, size, options.precision)
        before = copy_rate(options.precision, megabytes, repeats=5, name="triad")
        time = time_call(work.call, work.per, seconds=0.1, repeats=9)
        after = copy_rate(options.precision, megabytes, repeats=5, name="triad")
        triad = (before + after) / 2 / 1e9
        rate = streams * bytes_ / time[0]
        cases.append(
            Result(
                f"{name} {size}^4", *time, work.unit, {"GB/s": rate, "triad": triad, "of triad": rate / triad}
            )
        )
    show(cases, options)


if __name__ == "__main__":
    main()
