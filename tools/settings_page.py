"""Write docs/reference/environment.md, the reference of environment variables, from the table that reads them.

The page is kept in the repository, so that it can be read in a clone; a test compares it with the table.
"""

from __future__ import annotations

from pathlib import Path

from reference_pages import with_names

from jali import settings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "environment.md"
EXPERIMENTS = "Experiments"  # a group that no variable sets
END = """
## In Python

From the docstrings of [`jali.settings`](../../src/jali/settings.py).

::: jali.settings
"""

INTRODUCTION = """\
# Environment variables

Every variable that jali reads. All are read once, when jali is imported; a wrong value is a `ParameterError` then, which names all that
is wrong, and changing `os.environ` later does nothing. A variable that is empty is as if it were not there. A name that begins with
`JALI_` and is not in these tables is warned about. What several ranks do together is the same on all of them only if they see the same
values; launchers pass the environment on (jali's own `-n` does so for Open MPI, too, whose launcher would not).

`jali info` shows what differs from the defaults. In a program, arguments come first: `Lattice(..., device=...)`, `algorithm=...`,
`checked=True`. For a part of a program, such as a test,

```python
import jali

with jali.settings.using(halo_policy="messages-wait", watchdog=60):
    pass  # lattices and communicators that are made here, launches that are bound here
print(jali.settings.current().halo_policy)
```

runs it with other settings: names are those of the variables, in small letters and without `JALI_`. This is for the whole process, not for
a thread of it. Choices that only experiments make have no variable: [`jali.tune.experiment`](../tuning.md#experiments).
"""


def title_of(page: str) -> str:
    return (PAGE.parents[1] / page).read_text().partition("\n")[0].removeprefix("# ")


def text() -> str:
    """The page as the table is now."""
    page, group = INTRODUCTION, ""
    for spec in settings.specs():
        if spec.group == EXPERIMENTS:
            continue
        if spec.group != group:
            group = spec.group
            page += f"\n## {group}\n\n| variable | meaning | may be | default |\n|---|---|---|---|\n"
        more = f" ([{title_of(spec.page)}](../{spec.page}))" if spec.page else ""
        page += f"| `{spec.variable}` | {spec.meaning}{more} | {spec.values} | {spec.otherwise} |\n"
    return with_names(page + END)


if __name__ == "__main__":
    PAGE.write_text(text())
