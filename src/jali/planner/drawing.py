"""Pictures of plans: the bytes between each pair of ranks in each stage, the overlap of chunks, the load of links.

One figure, three rows. The pipeline is drawn over time if the plan was simulated, else over the columns of the
skewed table. matplotlib is imported at the first picture.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.amounts import counted, size_text
from jali.errors import ParameterError
from jali.files import shown
from jali.planner.simulation import Result

if TYPE_CHECKING:
    from jali.planner.plan import Plan

FORMATS = (".png", ".svg", ".pdf")
SHOWN_LINKS = 12
SHOWN_CHUNKS = 32
PANELS = 6  # stages beside each other


def draw_plan(plan: Plan, result: Result | None, path: Path) -> Path:
    """Write the picture; `result` is a simulation of the plan, or None. Returns the path."""
    if path.suffix.lower() not in FORMATS:
        raise ParameterError(
            f"cannot draw into {shown(str(path))}; the name must end in {', '.join(FORMATS)}"
        )
    import matplotlib as mpl
    from matplotlib.figure import Figure

    stages = [k for k, stage in enumerate(plan.stages) if stage.messages]
    columns = max(1, min(PANELS, len(stages)))
    rows = max(1, -(-len(stages) // columns))
    below = 2 if result is not None else 1
    with mpl.rc_context(
        {"font.size": 8, "svg.hashsalt": "jali", "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = Figure(figsize=(max(7.0, 2.1 * columns), 2.2 * rows + 2.4 * below), layout="constrained")
        parts: Any = figure.subfigures(2, 1, height_ratios=[2.2 * rows, 2.4 * below])
        _matrices(parts[0], plan, stages, rows, columns)
        axes = parts[1].subplots(below, 1, squeeze=False)[:, 0]
        _pipeline(axes[0], plan, stages, result)
        if result is not None:
            _links(axes[1], result)
        name = (plan.collective or "composition").replace("_", "-")
        where = "" if result is None else f" on {result.machine.name}"
        figure.suptitle(
            f"{name} of {size_text(plan.size)} over {counted(plan.ranks, 'rank')}{where}\n{plan.describe()}",
            fontsize=9,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return path


def _matrices(figure: Any, plan: Plan, stages: list[int], rows: int, columns: int) -> None:
    from matplotlib.colors import LogNorm

    volume = {stage: np.zeros((plan.ranks, plan.ranks)) for stage in stages}
    for source, to, size, stage, _, _ in plan.messages:
        volume[stage][source, to] += size
    axes = figure.subplots(rows, columns, squeeze=False)
    largest = max((m.max() for m in volume.values()), default=1.0) or 1.0
    smallest = min((m[m > 0].min() for m in volume.values() if (m > 0).any()), default=1.0)
    norm = LogNorm(max(1.0, smallest * 0.5), max(largest, 2.0))
    image = None
    for axis, stage in zip(axes.flat, stages, strict=False):
        image = axis.imshow(
            np.ma.masked_equal(volume[stage], 0), norm=norm, cmap="viridis", interpolation="nearest"
        )
        axis.set_title(f"{stage + 1}: {plan.stages[stage].name}", fontsize=8)
        axis.set_xticks([0, plan.ranks - 1])
        axis.set_yticks([0, plan.ranks - 1])
        axis.spines[["top", "right"]].set_visible(True)
    for axis in axes.flat[len(stages) :]:
        axis.axis("off")
    axes[-1, 0].set_xlabel("to rank")
    axes[-1, 0].set_ylabel("from rank")
    if image is not None:
        figure.colorbar(image, ax=axes, label="bytes", shrink=0.8)


def _pipeline(axis: Any, plan: Plan, stages: list[int], result: Result | None) -> None:
    from matplotlib import colormaps

    colours = colormaps["tab20"]
    if result is not None:
        for row, window in enumerate(result.stages):
            axis.barh(
                row,
                (window.end - window.begin) * 1e3,
                left=window.begin * 1e3,
                color=colours(row % 20),
                height=0.7,
            )
        for step in result.critical_path:
            for row, window in enumerate(result.stages):
                if window.stage == step.stage:
                    axis.plot([step.begin * 1e3, step.end * 1e3], [row, row], color="black", lw=1)
        names = [plan.stages[w.stage].name if w.stage >= 0 else w.name for w in result.stages]
        axis.set_yticks(range(len(result.stages)), names)
        axis.set_xlabel("ms; black: the chain that decides the time")
        axis.invert_yaxis()
        return
    depth = min(plan.parameters.depth, SHOWN_CHUNKS)
    sizes: dict[tuple[int, int], int] = defaultdict(int)
    for _, _, size, stage, chunk, _ in plan.messages:
        sizes[stage, chunk] += size
    for position, stage in enumerate(stages):
        for chunk in range(depth):
            if sizes[stage, chunk]:
                axis.barh(chunk, 0.95, left=chunk + position, color=colours(position % 20), height=0.8)
    for position, stage in enumerate(stages):
        axis.barh(0, 0, color=colours(position % 20), label=plan.stages[stage].name)
    axis.set_xlabel("column of the pipeline")
    axis.set_ylabel("chunk")
    axis.invert_yaxis()
    if stages:
        axis.legend(fontsize=6, ncols=min(4, len(stages)), frameon=False)


def _links(axis: Any, result: Result) -> None:
    links = result.links[:SHOWN_LINKS]
    axis.barh(range(len(links)), [100 * link.load for link in links], color="#1f5c99", height=0.7)
    axis.set_yticks(range(len(links)), [link.name for link in links])
    axis.set_xlim(0, 100)
    axis.set_xlabel("% of the link's capacity used over the whole time (most loaded links)")
    axis.invert_yaxis()
