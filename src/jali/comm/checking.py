"""Checked mode: ranks compare what they call before anything moves.

Every rank describes its call; if the descriptions differ, all ranks raise the same error, which says who called what and from which
line of the program, and the group goes on. JALI_CHECKED switches it on for all calls of all communicators, also where ranks would
otherwise exchange no word about what they do: halos and collectives whose plans exist.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from jali import _core, settings
from jali.errors import ParameterError

WHAT = "a comparison of calls"  # in errors of ranks that are not in checked mode


def is_on() -> bool:
    """Whether JALI_CHECKED is set."""
    return settings.current().checked


def compare(core: _core.Communicator, description: dict[str, Any], called: str = "") -> None:
    """Raise ParameterError on every rank unless all ranks describe the same call. Collective. `called` is the function of jali that the
    program called, where Python's frames do not say so."""
    import json  # in checked mode only

    mine = json.dumps([description, _place(called)]).encode()
    told = [json.loads(text) for text in core.gather_bytes(mine, WHAT)]
    differences = []
    for key in dict.fromkeys(key for one, _ in told for key in one):
        said = _who([str(one.get(key, "not given")) for one, _ in told])
        if said:
            differences.append(f"{key}: {said}")
        if key == "call" and said:
            break  # what else differs would confuse
    if not differences:
        return
    places = _who([place for _, place in told])
    raise on_every_rank(
        f"ranks do not make the same call; {'; '.join(differences)}" + (f" (at {places})" if places else "")
    )


def on_every_rank(text: str) -> ParameterError:
    """An error that all ranks raise, so that one of them may report it."""
    error = ParameterError(text)
    error.on_every_rank = True  # type: ignore[attr-defined]
    return error


def _who(said: Sequence[str]) -> str:
    """Who said what; empty if all said the same."""
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(said):
        by_value.setdefault(value, []).append(rank)
    if len(by_value) == 1:
        return ""
    return ", ".join(f"{value} on {_ranks(ranks)}" for value, ranks in by_value.items())


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _place(called: str) -> str:
    """The line of the program that called jali, and the function of jali that it called."""
    frame = sys._getframe(1)
    name = ""
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "jali":
        name = frame.f_code.co_qualname
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}, {called or name}"
