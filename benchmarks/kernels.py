"""Claims: staple sum at 50 % of the FMA peak or more; plaquette at 50 % of peak or 85 % of copy bandwidth, whichever binds.

A third roof stands beside: reading a working set of the gauge field's size, which every matrix that is not in L1 has to pass (a staple
sum reads 18 matrices per link and writes one, a plaquette 16 per site).
"""

import jali
from jali.bench.compare.cases import links, plaquette, plaquette_sum, staple_sum
from jali.bench.timing import Result, arguments, pin, roofs_of_one_core, show, time_call
from jali.profile.host_roofs import cache_rate

STAPLE_FLOPS = 12 * 198 + 5 * 18  # products and sums per link


def main() -> None:
    options = arguments(__doc__)
    pin()
    roofs = roofs_of_one_core(options.precision)
    size_of = 8 if options.precision == "float64" else 4
    cases = []
    for size in map(int, options.sizes.split(",")):
        volume = size**4
        work = staple_sum(size, options.precision)
        time = time_call(work.call, work.per)
        rate = STAPLE_FLOPS / time[0]
        read = cache_rate(72 * size_of * volume, options.precision) / 1e9
        through = 19 * 18 * size_of / time[0]
        remarks = {
            "GFLOP/s": rate,
            "of peak": rate / roofs.arithmetic[options.precision],
            "GB/s into L1": through,
            "of read": through / read,
        }
        cases.append(Result(f"staple sum {size}^4", *time, work.unit, remarks))
        lattice, U = links(size, options.precision)
        flops = jali.inspect(plaquette, U, lattice=lattice).flops
        work = plaquette_sum(size, options.precision)
        time = time_call(work.call, work.per)
        rate, moved = flops / time[0], 72 * size_of / time[0]
        cases.append(
            Result(
                f"plaquette {size}^4",
                *time,
                work.unit,
                {
                    "GFLOP/s": rate,
                    "of peak": rate / roofs.arithmetic[options.precision],
                    "GB/s": moved,
                    "of copy": moved / roofs.memory,
                    "of read": 4 * moved / read,
                },
            )
        )
    show(cases, options, roofs)


if __name__ == "__main__":
    main()
