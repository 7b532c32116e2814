"""Several members of a batch in a thread of a device: what they share is loaded and decoded once, into registers.

The emitter writes each value of a member once more for each further member, right behind itself, with names of its own: the lines of two members
alternate value by value, so what they share lives no longer than between the first and the last of them. No operation is done otherwise than for
one member per thread, so no bit changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_DECLARED = re.compile(r"\s*(?:const )?[a-z]\w*\*?(?: const)? (\w+(?:\[\d+\])?(?:, \w+)*)(?: = |;)")
_WORD = re.compile(r"[A-Za-z_]\w*")


def declared_names(lines: Sequence[str]) -> set[str]:
    """Names of the variables that lines declare."""
    found: set[str] = set()
    for line in lines:
        if match := _DECLARED.match(line):
            found.update(name.partition("[")[0] for name in match.group(1).split(", "))
    return found


def of_another(lines: Sequence[str], names: set[str], member: int) -> list[str]:
    """The lines once more, for another member of the thread: these names are its own."""
    return [
        _WORD.sub(lambda word: f"{word[0]}_of{member}" if word[0] in names else word[0], line)
        for line in lines
    ]
