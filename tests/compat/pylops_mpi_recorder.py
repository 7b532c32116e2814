"""One rank of tools/pylops_mpi_scripts.py: runs a script of pylops-mpi unchanged and writes down what it computed and printed.

    python pylops_mpi_recorder.py library|jali|changed SCRIPT FOLDER

Into FOLDER go RANK.json, a line for each number, array, operator and slice that a global variable of the script had, RANK.npz, their
values, and RANK.out, what was printed. A value is taken when its variable gets another one, or when the script ends: `y` is the first
one that y had, `y#2` the second. Of long arrays every so many elements are kept. Nothing here communicates: ranks on which a script
takes other ways are recorded as they are. `changed` is the library with other last bits of dot products and norms, and
other random starts of power iterations.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

KEPT = 1 << 18  # elements of an array
NESTED = 32  # elements of a tuple or list
PAUSE = 0.01  # seconds that a script may sleep; its pauses order what ranks print


def entries(name: str, value: Any) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Name, description and numbers of what is recorded of a value: itself, or what is in it."""
    if isinstance(value, type):
        return
    if hasattr(value, "distarrays"):
        for k, part in enumerate(value.distarrays):
            yield from entries(f"{name}[{k}]", part)
    elif hasattr(value, "local_array") and hasattr(value, "global_shape"):
        mask = None if value.mask is None else [int(k) for k in value.mask]
        yield (
            name,
            {
                "kind": "distributed array",
                "global shape": list(map(int, value.global_shape)),
                "partition": value.partition.name,
                "axis": int(value.axis),
                "mask": mask,
            },
            np.asarray(value.local_array),
        )
    elif isinstance(value, (np.ndarray, np.generic, bool, int, float, complex)):
        if np.asarray(value).dtype.kind in "biufc":
            yield name, {"kind": "array"}, np.asarray(value)
    elif isinstance(value, slice):
        yield name, {"kind": "slice", "slice": repr(value)}, None
    elif isinstance(value, (tuple, list)) and len(value) <= NESTED:
        for k, part in enumerate(value):
            yield from entries(f"{name}[{k}]", part)
    elif hasattr(value, "matvec") and isinstance(getattr(value, "shape", None), tuple):
        yield name, {"kind": "operator", "operator shape": list(map(int, value.shape))}, None


class Record:
    """What this rank has computed."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.numbers: dict[str, np.ndarray] = {}
        self.times: Counter[str] = Counter()

    def add(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            return
        found = list(entries(name, value))
        if not found:
            return
        self.times[name] += 1
        occurrence = f"#{self.times[name]}" if self.times[name] > 1 else ""
        for path, line, numbers in found:
            line = {"what": "value", "name": name + occurrence + path[len(name) :]} | line
            if numbers is not None:
                line |= {"local shape": list(numbers.shape), "type": numbers.dtype.name}
                self.numbers[str(len(self.lines))] = np.ravel(numbers)[:: 1 + numbers.size // KEPT].copy()
            self.lines.append(line | {"at": str(len(self.lines))})


class Variables(dict[str, Any]):
    """Global variables of the script, whose former values are recorded."""

    def __init__(self, record: Record, **first: Any) -> None:
        super().__init__(first)
        self.record = record

    def __setitem__(self, name: str, value: Any) -> None:
        before = self.get(name)
        if before is not None and before is not value:
            self.record.add(name, before)
        super().__setitem__(name, value)


def run(script: Path, record: Record) -> str:
    """Run it; what it said if it failed."""
    variables = Variables(record, __name__="__main__", __file__=str(script), __builtins__=__builtins__)
    first = set(variables)
    failed = ""
    try:
        exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), variables, variables)
    except SystemExit as end:
        if end.code not in (None, 0):
            failed = f"SystemExit: {end.code}"
    except BaseException:
        failed = traceback.format_exc()
    for name, value in list(variables.items()):
        if name not in first:
            record.add(name, value)
    return failed


def change_last_bits(kind: type) -> None:
    """Of what `dot` and `norm` of these arrays give, by up to two, the same on all ranks; of no more than double precision."""
    random = np.random.default_rng(1)

    def changed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            found = np.asarray(method(*arguments, **named))
            if found.dtype.kind not in "fc":
                return found[()]
            last = max(np.finfo(found.dtype).eps, np.finfo(np.float64).eps)
            return (found * (1 + random.integers(-2, 3) * last)).astype(found.dtype)[()]

        return call

    for name in ("dot", "norm"):
        setattr(kind, name, changed(getattr(kind, name)))


def change_starts(*modules: Any) -> None:
    """Power iterations of these modules begin with other random numbers; those that the script draws stay."""

    def changed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            state = np.random.get_state()
            np.random.seed(state[1][0] ^ 0x5BD1E995)  # type: ignore[index]
            try:
                return function(*arguments, **named)
            finally:
                np.random.set_state(state)

        return call

    for module in modules:
        module.power_iteration = changed(module.power_iteration)


def main(library: str, script: Path, folder: Path) -> None:
    if library == "jali":
        from jali.compat import stand_in

        stand_in("pylops_mpi")
    import matplotlib.pyplot as plt
    import pylops_mpi
    from mpi4py import MPI

    if library == "changed":
        change_last_bits(pylops_mpi.DistributedArray)
        if hasattr(pylops_mpi, "optimization"):
            change_starts(pylops_mpi.optimization.eigs, pylops_mpi.optimization.cls_sparsity)
    rank = MPI.COMM_WORLD.Get_rank()
    plt.show = lambda *arguments, **named: None
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, PAUSE))
    np.random.seed(rank)
    sys.argv, sys.path[0] = [script.name], str(script.parent)
    with (
        open(folder / f"{rank}.json", "w", encoding="utf-8") as file,
        open(folder / f"{rank}.out", "w", encoding="utf-8", buffering=1) as printed,
    ):

        def say(**what: Any) -> None:
            file.write(json.dumps(what) + "\n")
            file.flush()

        say(
            what="begin",
            library=os.path.dirname(str(sys.modules[pylops_mpi.DistributedArray.__module__].__file__)),
        )
        record = Record()
        with contextlib.redirect_stdout(printed):
            failed = run(script, record)
        np.savez(folder / f"{rank}.npz", **record.numbers)  # type: ignore[arg-type]
        for line in record.lines:
            say(**line)
        say(what="end", failed=failed)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3]))
