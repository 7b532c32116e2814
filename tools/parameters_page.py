"""Write docs/parameters.md, the reference of parameter files, from the schema that checks them.

The page is kept in the repository, so that it can be read in a clone; a test compares it with the schema.
"""

from __future__ import annotations

from pathlib import Path

from jali.cli.schema import schema_markdown

PAGE = Path(__file__).resolve().parent.parent / "docs" / "parameters.md"

INTRODUCTION = """\
# Parameters

A parameter file of `jali run` is TOML with the sections and keys below, and no others: an unknown key is an
error that names the nearest right one. On the command line `--set key=value` overrides a key, with the
section in front where the key alone is not unique (`--set gauge.beta=5.7`). A run writes the parameters as
understood, defaults included, to `parameters.toml` in its output folder; that file can be run again.

"""


def text() -> str:
    """The page as the schema is now."""
    return INTRODUCTION + schema_markdown().rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(text())
