"""Claim: a Laplacian on a user's C-ordered array runs at 70 % of its speed on a field or more, where rows are several vectors long.

One core, pinned, or with `--device cuda` one GPU; field and array take turns, and the ratio is that of a turn. Rows are the last
direction. Then, on boxes of even extents, the sum of the neighbours' values from fields and arrays over EVEN to such over ODD, per
site that is written.
"""

import itertools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from jali import ALL, EVEN, ODD, Complex, Field, Lattice, Real, Vector, site_function
from jali.bench.compare.cases import laplacian
from jali.bench.timing import Result, arguments, pin, show, time_call
from jali.codegen.types import Element
from jali.comm import DeviceArray
from jali.profile.device_roofs import seconds_on

TURNS = 7
BOXES = "16x16x16x16,32x32x32x32,64x64x64,100x100x100,101x99x103,160x160x160,1000x1000"


def time_per_site(lattice: Lattice, call: Callable[[], object]) -> tuple[float, float, float]:
    """Median, lowest and highest, in nanoseconds, on a GPU in picoseconds."""
    if lattice.gpu is None:
        return time_call(call, lattice.volume, seconds=0.02, repeats=3)
    median, spread = seconds_on(lattice.gpu, call, batches=3)
    scale = 1e12 / lattice.volume
    return median * scale, median * (1 - spread / 2) * scale, median * (1 + spread / 2) * scale


@site_function
def neighbours(X: Any, out: Any, f: Any) -> None:
    out[X] = sum(f[X + mu] + f[X - mu] for mu in X.directions())


def case(element: Element, box: tuple[int, ...], precision: str, device: str, halves: bool = False) -> Result:
    lattice = Lattice(*box, device=device)
    field = Field(lattice, element, precision, over=EVEN if halves else ALL)
    out = field.like(over=ODD if halves else ALL)
    of_array = (*box[:-1], box[-1] // 2) if halves else box
    numbers = np.random.default_rng(1).normal(size=of_array + element.numpy_shape)
    numbers = np.ascontiguousarray(numbers.astype(element.numpy_dtype(precision)))
    zeros = np.zeros_like(numbers)
    if lattice.gpu is not None:
        numbers, zeros = (DeviceArray.from_host(each, lattice.gpu) for each in (numbers, zeros))
    inner, outer = lattice.wrap(numbers, over=field.over), lattice.wrap(zeros, over=out.over)
    field.assign(inner)
    stencil = neighbours if halves else laplacian
    turns = []
    for _ in range(TURNS):
        on_field = time_per_site(lattice, lambda: stencil(out, field))
        on_array = time_per_site(lattice, lambda: stencil(outer, inner))
        turns.append((on_field[0] / on_array[0], on_array))
    ratio = statistics.median(turn[0] for turn in turns)
    time = sorted(turns, key=lambda turn: turn[1][0])[TURNS // 2][1]
    if halves:
        time = 2 * time[0], 2 * time[1], 2 * time[2]
    name = f"{element} {precision} {'x'.join(map(str, box))}{' from EVEN to ODD' if halves else ''}"
    return Result(name, *time, "ns/site" if lattice.gpu is None else "ps/site", {"of field": ratio})


def main() -> None:
    options = arguments(__doc__, sizes=BOXES, device="cpu")
    boxes = [tuple(map(int, box.split("x"))) for box in options.sizes.split(",")]
    elements: list[Element] = [Real(), Complex()]
    if options.device == "cpu":
        pin()
    else:
        elements.append(Vector(3))
    cases = [
        case(element, box, options.precision, options.device)
        for element, box in itertools.product(elements, boxes)
    ]
    cases += [
        case(element, box, options.precision, options.device, True)
        for element, box in itertools.product([Real(), Complex(), Vector(3)], boxes)
        if not any(n % 2 for n in box)
    ]
    show(cases, options)


if __name__ == "__main__":
    main()
