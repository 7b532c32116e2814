"""Claim: a Laplacian on a user's C-ordered array runs at 70 % of its speed on a field or more, where rows are several vectors long.

One core, pinned; field and array take turns, and the ratio is that of a turn. Rows are the last direction.
"""

import itertools
import math
import statistics

import numpy as np

from jali import Complex, Field, Lattice, Real
from jali.bench.compare.rows import laplacian
from jali.bench.timing import Result, arguments, pin, show, time_call


def main() -> None:
    options = arguments(
        __doc__, sizes="16x16x16x16,32x32x32x32,64x64x64,100x100x100,101x99x103,160x160x160,1000x1000"
    )
    pin()
    rows = []
    boxes = [tuple(map(int, box.split("x"))) for box in options.sizes.split(",")]
    for element, box in itertools.product((Real(), Complex()), boxes):
        lattice = Lattice(*box)
        field, out = Field(lattice, element, options.precision), Field(lattice, element, options.precision)
        array = np.random.default_rng(1).normal(size=box).astype(element.numpy_dtype(options.precision))
        field[...] = array
        inner, outer = lattice.wrap(array), lattice.wrap(np.zeros_like(array))
        turns = []
        for _ in range(7):
            on_field = time_call(
                lambda f=field, o=out: laplacian(o, f), math.prod(box), seconds=0.02, repeats=3
            )
            on_array = time_call(
                lambda f=inner, o=outer: laplacian(o, f), math.prod(box), seconds=0.02, repeats=3
            )
            turns.append((on_field[0] / on_array[0], on_array))
        ratio = statistics.median(turn[0] for turn in turns)
        time = sorted(turns, key=lambda turn: turn[1][0])[len(turns) // 2][1]
        name = f"{element} {options.precision} {'x'.join(map(str, box))}"
        rows.append(Result(name, *time, "ns/site", {"of field": ratio}))
    show(rows, options)


if __name__ == "__main__":
    main()
