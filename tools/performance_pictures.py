"""Draw the pictures of docs/performance.md from the tables of docs/notes: `python tools/performance_pictures.py`, a second.

A picture shows the first table of a page that follows a heading or a sentence: a line for each collective, a column for each size. A new
picture is an entry of `PICTURES`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
NOTES, IMAGES = ROOT / "docs" / "notes", ROOT / "docs" / "images" / "performance"
# picture -> (page of docs/notes, words in front of the table, label of the vertical axis)
PICTURES = {
    "device-collectives": ("device-collectives.md", "In graphs:", "NCCL's time / jali's"),
    "host-collectives": ("host-collectives.md", "above 1 jali is faster.", "MPICH's time / jali's"),
}


def table_after(text: str, words: str) -> tuple[list[str], dict[str, list[float]]]:
    """The sizes of the first table after these words, and the first number of each cell by the name of its line."""
    part = next(part for part in text.split(words, 1)[1].split("\n\n") if part.startswith("|"))
    header, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]
    sizes = [column for column in header[1:] if column != "mean"]
    numbers = {name: [float(re.split(r"[ (]", cell)[0]) for cell in cells] for name, *cells in lines}
    return sizes, {name: values[: len(sizes)] for name, values in numbers.items()}


def picture(name: str) -> Figure:
    """One line for each collective over the sizes of its table."""
    page, words, label = PICTURES[name]
    sizes, lines = table_after((NOTES / page).read_text(), words)
    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    axis = figure.subplots()
    for line, values in lines.items():
        axis.plot(range(len(sizes)), values, "o-", markersize=3, linewidth=1.2, label=line.replace("_", "-"))
    axis.axhline(1, color="grey", linewidth=1, linestyle="dotted")
    axis.set_xticks(range(len(sizes)), sizes)
    axis.set(ylabel=label, ylim=(0, None))
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def main() -> int:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or PICTURES:
        picture(name).savefig(IMAGES / f"{name}.png", dpi=72, metadata={"Software": None})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
