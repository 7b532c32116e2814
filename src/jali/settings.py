"""Settings by environment variables: read once, when jali is imported, into one object that never changes.

Every variable is an entry of one table (`core/settings/specs.cpp`), from which docs/reference/environment.md is made. A wrong
value is a `ParameterError` that names all that is wrong, when jali is imported. Changing `os.environ` afterwards does nothing.
Programs give arguments (`Lattice(..., device=...)`, `algorithm=...`); where there is none, and in tests and benchmarks, `using`
runs a part of a program with other settings. Nothing else in jali reads the environment, except the variables of launchers
(`jali.comm.launcher_environment`).
"""

from __future__ import annotations

import contextlib
import numbers
import os
from collections.abc import Iterator
from typing import Any

from jali import _core
from jali.errors import ParameterError
from jali.files import name_shown, value_shown

Value = str | int | float | bool | None

current = _core.settings
"""The settings now: `current().halo_policy`. An attribute for each entry of the table, of type str, int, float or bool."""

specs = _core.setting_specs
"""The table: for each setting its name, its variable, what it may be, its default and its meaning."""


@contextlib.contextmanager
def using(**changes: Value) -> Iterator[_core.Settings]:
    """Run a block with other settings: `with jali.settings.using(halo_policy="messages-wait", watchdog=5):`.

    `None` is the default. For the whole process, all its threads: enter it outside of `virtual_ranks`, and on all ranks alike.
    Earlier decisions are unchanged: communicators keep their watchdog, bound launches their policy. Raises ParameterError.
    """
    before = _core.settings()
    use(**changes)
    try:
        yield _core.settings()
    finally:
        _core.replace_settings(before)


def use(**changes: Value) -> None:
    """The same for the rest of the program. Raises ParameterError."""
    _core.replace_settings(changed(**changes))


def changed(**changes: Value) -> _core.Settings:
    """The current settings with other values. Raises ParameterError."""
    texts = {name_shown(name): _text(name, value) for name, value in changes.items()}
    return _core.settings().changed(texts)


def environment(**changes: Value) -> dict[str, str]:
    """The environment for a program that is started: that of this process, with the current settings and these changes."""
    chosen = dict(changed(**changes).differing())
    environment = {
        name: value for name, value in os.environ.items() if name not in {spec.variable for spec in specs()}
    }
    return environment | {spec.variable: chosen[spec.variable] for spec in specs() if spec.variable in chosen}


def of_others(*beginnings: str) -> dict[str, str]:
    """Variables of other programs that begin so, for reports of benchmarks."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(beginnings)}


def _text(name: str, value: Any) -> str:
    if getattr(value, "shape", None) == ():
        value = value.item()  # a number of NumPy's
    if isinstance(value, bool):
        return str(int(value))
    if not (value is None or isinstance(value, str | os.PathLike | numbers.Real)):
        raise ParameterError(
            f"{name_shown(name)} should be a text, a number, True, False or None, not {value_shown(value)}"
        )
    text = "" if value is None else str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ParameterError(f"{name}={text!a} should be text that UTF-8 can hold") from None
    return text
