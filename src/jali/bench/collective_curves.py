"""A picture of what was measured for rules of collectives: a panel per kind of call, a curve per algorithm, and which algorithm has which sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jali.bench.collective_rules import DEFAULT, Stretch, Variant
from jali.bench.reports import picture

COLOURS = ("#1f5c99", "#c8553d", "#5b8c5a", "#8e6c8a", "#c49a3a", "#3b9c9c", "#8a5a3b", "#5a5a9c")


def write_curves(
    path: Path, cells: Mapping[Variant, Sequence[Any]], found: Mapping[Variant, Sequence[Stretch]], title: str
) -> None:
    """Median times over bytes of `cells` (`Measured`), by variant; sizes that take an algorithm, as `found`, are marked on its curve."""
    columns = min(4, len(cells))
    rows = -(-len(cells) // columns)
    specs = sorted(
        {spec for of in cells.values() for cell in of for spec in (*cell.times, *cell.far)} - {DEFAULT}
    )
    colour = {spec: COLOURS[number % len(COLOURS)] for number, spec in enumerate(specs)} | {
        DEFAULT: "#222222"
    }
    dashes = {spec: ("-", "--", ":", "-.")[number // len(COLOURS) % 4] for number, spec in enumerate(specs)}
    with picture(path, 2.9 * columns + 1.8, 2.4 * rows + 0.6) as figure:
        for number, (variant, of) in enumerate(cells.items()):
            axes = figure.add_subplot(rows, columns, number + 1)
            for spec in (*specs, DEFAULT):
                points = [(c.payload, _median(c, spec)) for c in of if spec in c.times or spec in c.far]
                if not points:
                    continue
                x, y = zip(*points, strict=True)
                wide = 2.0 if spec == DEFAULT else 0.9
                axes.plot(x, y, dashes.get(spec, "-"), color=colour[spec], lw=wide, label=spec)
                chosen = {size for s in found.get(variant, ()) if s.spec == spec for size in s.sizes}
                marked = [point for point in points if point[0] in chosen]
                axes.plot(*zip(*marked, strict=True) if marked else ([], []), "o", color=colour[spec], ms=5)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title(f"{variant} ({variant.type})".replace("_", "-"), loc="left")
            axes.grid(color="#e4e9ee", lw=0.6)
            if number % columns == 0:
                axes.set_ylabel("time [s]")
            if number // columns == rows - 1:
                axes.set_xlabel("largest buffer [bytes]")
        handles = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
        named = [name for name in (DEFAULT, *specs) if name in handles]
        figure.legend([handles[name] for name in named], named, loc="outside right upper", frameon=False)
        figure.suptitle(title, x=0.01, ha="left")


def _median(cell: Any, spec: str) -> float:
    return float(np.median(cell.times[spec])) if spec in cell.times else float(cell.far[spec])
