"""`jali example`: lists the applications that come with jali, and runs one by its name: how far it is, its numbers, a check of them
and its picture."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from jali import comm, examples
from jali.arrays.engine_choice import choose_engine, on_device
from jali.cli.options import device_argument, make_folder
from jali.cli.progress import StepProgress
from jali.errors import ParameterError
from jali.files import value_shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali example`."""
    parser.description = (
        "List the applications that come with jali, or run one: least-squares migration, inversions, images and spectra on "
        "distributed arrays. The same script runs on any number of ranks (-n), and on GPUs."
    )
    parser.add_argument("name", nargs="?", help="of the example; without one they are listed")
    parser.add_argument("--check", action="store_true", help="compare its numbers with what they should be")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw what was found (.png, .svg, .pdf)")
    parser.add_argument(
        "--device",
        type=device_argument,
        default="cpu",
        metavar="NAME",
        help="cpu (default), cuda, or one such as cuda:1",
    )
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help="the library of arrays: numpy, cupy or torch (default: numpy, on GPUs the first of the others that is installed)",
    )
    parser.add_argument("--size", metavar="NAME", help="one of the example's sizes (default: the first)")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another value of a parameter, for example --set iterations=50; the list of examples has their names",
    )


def execute(arguments: argparse.Namespace) -> int:
    """List, or run and draw. Rank 0 prints."""
    ranks = comm.current()
    if arguments.name is None:
        _check_alone(arguments)
        if ranks.rank == 0:
            _list(arguments.json)
        return 0
    name, module = _module(arguments.name, arguments.check)
    parameters = parameters_of(name, module.SIZES, arguments.size, arguments.overrides)
    engine = choose_engine(arguments.device, arguments.engine)
    if arguments.picture is not None:
        _check_picture(arguments.picture)
        if ranks.rank == 0:
            make_folder("--picture", arguments.picture.parent)
    steps = StepProgress(sys.stdout)
    callbacks = (steps.say, steps.advance) if ranks.rank == 0 and not arguments.json else ()
    options = examples.Options(engine, arguments.device, *callbacks)
    start = time.perf_counter()
    with on_device(arguments.device, engine):
        found = module.solve(parameters, options)
    seconds = time.perf_counter() - start
    entries = []
    if ranks.rank == 0:
        if arguments.check:
            entries = examples.verdicts(found.numbers, module.expected(parameters, found))
        if arguments.picture is not None:
            module.draw(found, arguments.picture)
        report = _as_json if arguments.json else _as_text
        report(name, parameters, found, entries, seconds, ranks.size)
    return 0 if all(entry.holds for entry in entries) else 1  # the others do not wait for checks and pictures


def _as_text(name: str, parameters: Any, found: Any, entries: Any, seconds: float, ranks: int) -> None:
    for number, value in found.numbers.items():
        print(f"{number}: {value:.6g}")
    for what, values in found.series.items():
        print(f"{what}: {' '.join(f'{value:.4g}' for value in values)}")
    for what, times in found.times.items():
        print(f"{what}: {times}")
    for entry in entries:
        print(
            f"{'pass' if entry.holds else 'FAIL'}: {entry.name}: {entry.found:.6g}, expected {entry.wanted}"
        )
    print(f"{name}: {seconds:.2f} s on {ranks} rank{'' if ranks == 1 else 's'}")


def _as_json(name: str, parameters: Any, found: Any, entries: Any, seconds: float, ranks: int) -> None:
    document = {
        "name": name,
        "ranks": ranks,
        "parameters": vars(parameters),
        "seconds": seconds,
        "numbers": found.numbers,
        "series": found.series,
        "times": {
            what: {"steps": times.steps, "seconds": times.seconds, "communication": times.communication}
            for what, times in found.times.items()
        },
        "checks": [vars(entry) for entry in entries],
    }
    print(json.dumps(document, indent=1))


def _module(given: str, check: bool) -> tuple[str, Any]:
    """The example of this name. Raises ParameterError for another name, and where packages are missing."""
    name = given.replace("-", "_")
    if name not in examples.EXAMPLES:
        near = difflib.get_close_matches(name.lower(), examples.EXAMPLES, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(examples.EXAMPLES)}"
        raise ParameterError(f"there is no example {value_shown(given)}; {hint}")
    example = examples.EXAMPLES[name]
    _need(f"{'the check of ' if not example.missing() else ''}example {name}", example.missing(check))
    return name, example.load()


def _need(what: str, missing: list[str]) -> None:
    """Raises ParameterError where packages are missing."""
    if missing:
        raise ParameterError(
            f"{what} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            f"pip install {' '.join(missing)}"
        )


def _check_alone(arguments: argparse.Namespace) -> None:
    """Raises ParameterError for options beyond the list without an example's name."""
    given = {
        "--check": arguments.check,
        "--picture": arguments.picture,
        "--device": arguments.device != "cpu",
        "--engine": arguments.engine,
        "--size": arguments.size,
        "--set": arguments.overrides,
    }
    if requested := [option for option, value in given.items() if value]:
        raise ParameterError(
            f"{' and '.join(requested)} {'is' if len(requested) == 1 else 'are'} for an example: give its name, one of {', '.join(examples.EXAMPLES)}"
        )


def parameters_of(name: str, sizes: dict[str, Any], size: str | None, overrides: list[str]) -> Any:
    """Those of a size, with others' values. Raises ParameterError for unknown sizes and names, and for values that
    are not numbers."""
    if size is not None and size not in sizes:
        raise ParameterError(f"example {name} has no size {value_shown(size)}; there are {', '.join(sizes)}")
    parameters = sizes[size or next(iter(sizes))]
    kinds = {field.name: type(getattr(parameters, field.name)) for field in fields(parameters)}
    given: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals:
            raise ParameterError(f"--set takes KEY=VALUE, not {value_shown(text)}")
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(kinds)}"
            raise ParameterError(f"example {name} has no parameter {value_shown(key)}; {hint}")
        try:
            given[key] = kinds[key](value)
        except ValueError:
            kind = "whole number" if kinds[key] is int else "number"
            raise ParameterError(f"{key} of example {name} is a {kind}, not {value_shown(value)}") from None
    return replace(parameters, **given)


def _check_picture(path: Path) -> None:
    """Before an hour of computing: is it a kind of picture that can be drawn?"""
    _need("a picture", [] if importlib.util.find_spec("matplotlib") else ["matplotlib"])
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise ParameterError(
            f"{value_shown(str(path))} is no picture: its name should end with one of {', '.join('.' + kind for kind in kinds)}"
        )


def _list(as_json: bool) -> None:
    entries: list[dict[str, Any]] = []
    for name, example in examples.EXAMPLES.items():
        entry: dict[str, Any] = {
            "name": name,
            "summary": example.summary,
            "needs": list(example.needs),
            "check_needs": list(example.check_needs),
            "missing": example.missing(check=True),
        }
        if not example.missing():
            entry["sizes"] = {size: vars(parameters) for size, parameters in example.load().SIZES.items()}
        entries.append(entry)
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    for entry in entries:
        print(f"{entry['name']:14s}{entry['summary']}")
        needs = [", ".join(entry["needs"])] if entry["needs"] else []
        needs += [f"{', '.join(entry['check_needs'])} for --check"] if entry["check_needs"] else []
        if needs:
            missing = f"; not installed: {', '.join(entry['missing'])}" if entry["missing"] else ""
            print(f"{'':14s}  needs {', '.join(needs)}{missing}")
        shown: dict[str, Any] = {}
        for size, parameters in entry.get("sizes", {}).items():  # of others than the first what differs
            values = ", ".join(
                f"{key}={value}" for key, value in parameters.items() if shown.get(key) != value
            )
            shown = shown or parameters
            print(f"{'':14s}  size {size}: {values}")
