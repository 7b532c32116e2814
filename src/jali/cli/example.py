"""`jali example`: lists the applications that come with jali, and runs one by its name, with its picture and a check of its numbers."""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path

from jali import comm, examples
from jali.errors import ParameterError
from jali.files import value_shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali example`."""
    parser.description = (
        "List the applications that come with jali, or run one: least-squares migration, inversions, images and spectra on "
        "distributed arrays. The same script runs on any number of ranks (-n)."
    )
    parser.add_argument("name", nargs="?", help="of the example; without one they are listed")
    parser.add_argument("--check", action="store_true", help="compare its numbers with what they should be")
    parser.add_argument("--engine", default="numpy", metavar="NAME", help="numpy (default), cupy or torch")
    parser.add_argument("--output", type=Path, metavar="PATH", help="where its picture goes")


def execute(arguments: argparse.Namespace) -> int:
    """List, or run and draw. Rank 0 speaks."""
    ranks = comm.current()
    if arguments.name is None:
        if ranks.rank == 0:
            _list(arguments.json)
        return 0
    name = arguments.name.replace("-", "_")
    if name not in examples.EXAMPLES:
        raise ParameterError(
            f"there is no example {value_shown(arguments.name)}; there are {', '.join(examples.EXAMPLES)}"
        )
    example = examples.EXAMPLES[name]
    if missing := example.missing():
        raise ParameterError(
            f"example {name} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            f"pip install {' '.join(missing)}"
        )
    module = importlib.import_module(example.module)

    def progress(text: str) -> None:
        if ranks.rank == 0 and not arguments.json:
            print(text, flush=True)

    start = time.perf_counter()
    found = module.solve(examples.Options(arguments.engine, progress))
    seconds = time.perf_counter() - start
    rows = examples.verdicts(found, module.EXPECTED) if arguments.check else []
    if ranks.rank == 0:
        if arguments.output is not None:
            arguments.output.mkdir(parents=True, exist_ok=True)
            module.draw(found, arguments.output / f"{name}.png")
        if arguments.json:
            checked = [dict(zip(("name", "found", "expected", "holds"), row, strict=True)) for row in rows]
            document = {"name": name, "seconds": seconds, "numbers": found.numbers, "checks": checked}
            print(json.dumps(document, indent=1))
        else:
            for number, value in found.numbers.items():
                print(f"{number}: {value:.6g}")
            for number, value, wanted, holds in rows:
                print(f"{'pass' if holds else 'FAIL'}: {number}: {value:.6g}, expected {wanted:.6g}")
            print(f"{seconds:.2f} s on {ranks.size} rank{'' if ranks.size == 1 else 's'}")
    return 0 if all(holds for *_, holds in rows) else 1


def _list(as_json: bool) -> None:
    rows = [
        {"name": name, "summary": example.summary, "needs": list(example.needs), "missing": example.missing()}
        for name, example in examples.EXAMPLES.items()
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for name, example in examples.EXAMPLES.items():
        needs = f" (needs {', '.join(example.needs)}" if example.needs else ""
        missing = example.missing()
        needs += f"; {', '.join(missing)} not installed)" if missing else ")" if example.needs else ""
        print(f"{name:14s}{example.summary}{needs}")
