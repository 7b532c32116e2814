"""Claim: a full SU(3) link update, staples included, averaged over 4 overrelaxation and 1 heat-bath sweeps, in ns per link.

Bars: 361 ns (8^4) and 372 ns (12^4) by the best plain C++ known to us; ours 75 (AVX-512) or 140 (AVX2), 120 at 16^4 (AVX-512).
One core, pinned; beta 5.7; thermalised by 10 sweeps first, since acceptance depends on it.
"""

from jali.bench.compare.cases import full_update, heat_bath, overrelaxation
from jali.bench.timing import Result, arguments, pin, roofs_of_one_core, show, time_call


def main() -> None:
    options = arguments(__doc__)
    pin()
    roofs = roofs_of_one_core(options.precision)
    cases = []
    for size in map(int, options.sizes.split(",")):
        for name, make in (("overrelaxation", overrelaxation), ("heat bath", heat_bath)):
            work = make(size, options.precision)
            cases.append(Result(f"{name} {size}^4", *time_call(work.call, work.per), work.unit))
        work = full_update(size, options.precision)
        full = time_call(work.call, work.per, seconds=0.1)
        bar = {"times faster than 361 ns": 361 / full[0]}
        cases.append(Result(f"full update (4 OR + 1 HB) {size}^4", *full, work.unit, bar))
    show(cases, options, roofs)


if __name__ == "__main__":
    main()
