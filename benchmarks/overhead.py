"""Claims: Python overhead under 5 us per call; `import jali` under 0.25 s; a warm kernel load under 50 ms; cold compile of the
plaquette under 3 s and of the largest update kernel under 10 s."""

from jali.bench.compare.cases import importing, loading, small_call
from jali.bench.timing import Result, arguments, pin, show, time_call


def main() -> None:
    options = arguments(__doc__)
    pin()
    cases = []
    for name, bound in (("Python and launch, axpy on 4x4", False), ("the same, bound", True)):
        cases.append(Result(name, *time_call(small_call(bound, options.precision).call, 1, scale=1e6), "us"))
    works = {"import jali": (importing(options.precision), 9, "ms", 1e3)}
    for what in ("plaquette", "heat bath"):
        works[f"cold compile, SU(3) {what}"] = loading(what, False, options.precision), 3, "s", 1.0
        works[f"warm load, SU(3) {what}"] = loading(what, True, options.precision), 9, "ms", 1e3
    for name, (work, times, unit, scale) in works.items():
        work.call()  # the first one fills caches
        values = sorted(work.call() * scale for _ in range(times))
        cases.append(Result(name, values[times // 2], values[0], values[-1], unit))
    show(cases, options)


if __name__ == "__main__":
    main()
