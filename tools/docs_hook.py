"""MkDocs hook: pages that are written elsewhere, so that they cannot disagree with it.

The parameter reference comes from the schema that checks parameter files; the architecture and the
changelog are the files at the root of the repository.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from jali.cli.schema import schema_markdown

ROOT = Path(__file__).resolve().parent.parent

PARAMETERS_INTRODUCTION = """\
# Parameters

A parameter file of `jali run` is TOML with the sections and keys below, and no others: an unknown key is an
error that names the nearest right one. On the command line `--set key=value` overrides a key, with the
section in front where the key alone is not unique (`--set gauge.beta=5.7`). A run writes the parameters as
understood, defaults included, to `parameters.toml` in its output folder; that file can be run again.

"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site."""
    pages = {
        "parameters.md": PARAMETERS_INTRODUCTION + schema_markdown(),
        "architecture.md": (ROOT / "ARCHITECTURE.md").read_text(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files
