"""Options of a command with several modes: an option without effect in the chosen mode is refused, not ignored.

A command lists, for each mode, the names of its options (`Options`); options of all modes are in no list.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from jali.devices import parse_device
from jali.errors import DeviceError, ParameterError
from jali.files import shown, value_shown

Options = Mapping[str, Sequence[str]]  # names of attributes, by what they are for
WORDS = {"go_on": "--continue"}  # of attributes that are called otherwise


def device_argument(text: str) -> str:
    """The name of a device, checked as far as that is possible without opening it."""
    try:
        parse_device(text)
    except DeviceError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def numbers_argument(text: str) -> dict[str, float]:
    """NAME=NUMBER,... of an operator."""
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{value_shown(part)} is not NAME=NUMBER, such as csw=1.2"
            ) from None
    return found


def make_folder(option: str, path: Path) -> None:
    """The folder that an option names, or that what it names goes into, made if it is missing. Raises ParameterError where none can be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ParameterError(
            f"{option}: {shown(str(path))} is no folder, and none can be made of this name; name another one"
        ) from None


def word_of(name: str) -> str:
    """The option that sets this attribute."""
    return WORDS.get(name, "--" + name.replace("_", "-"))


def keep_defaults(parser: argparse.ArgumentParser, options: Options) -> None:
    """Store the defaults of the options."""
    names = {name for own in options.values() for name in own}
    parser.set_defaults(untouched={name: parser.get_default(name) for name in names})


def refuse_others(
    arguments: argparse.Namespace, options: Options, chosen: str, command: str, also: Sequence[str]
) -> None:
    """ParameterError for an option that is not for the mode `chosen`; it lists the options of `command`, `also` those
    of all modes."""
    for name, untouched in sorted(arguments.untouched.items()):
        if name in options[chosen] or getattr(arguments, name) == untouched:
            continue
        whose = _enumerated([other for other, own in options.items() if name in own])
        words = _enumerated([*map(word_of, options[chosen]), *also])
        raise ParameterError(f"{word_of(name)} is for {whose}; {command} takes {words}")


def _enumerated(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
