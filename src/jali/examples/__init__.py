"""Applications that come with jali: inverse problems and spectra, on as many ranks as there are. `jali example` lists and runs them.

An example is a module with

- a docstring: what it does, and by which formulas;
- `SIZES`: by name, parameters (a frozen dataclass, one of `Sizes`): "laptop", which is the default, "small" for tests, "gpu" for much more;
- `solve(parameters, options)`, which returns what was `Found`;
- `expected(parameters, found)`, called on rank 0: what the numbers should be, from exact results or from an independent computation;
- `draw(found, path)`: its picture.

A new one is a module and an entry of `EXAMPLES`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jali.array_namespaces import ArrayNamespace, namespace_by_name, namespace_of
from jali.examples.checks import AtLeast, AtMost, Expected, Near, Of, Sizes, Verdict, furthest, verdicts
from jali.examples.timing import Timing, timing

__all__ = [
    "EXAMPLES",
    "AtLeast",
    "AtMost",
    "Example",
    "Expected",
    "Found",
    "Near",
    "Of",
    "Options",
    "Sizes",
    "Timing",
    "Verdict",
    "furthest",
    "on_host",
    "timing",
    "verdicts",
]


@dataclass(frozen=True)
class Example:
    """An entry of the table: its module, its topic, the packages that it needs, and those that its check needs beside them."""

    module: str
    summary: str
    needs: tuple[str, ...] = ()
    check_needs: tuple[str, ...] = ()

    def missing(self, check: bool = False) -> list[str]:
        """Those of the packages that are not installed."""
        packages = self.needs + self.check_needs if check else self.needs
        return [name for name in packages if importlib.util.find_spec(name) is None]

    def load(self) -> Any:
        """Its module."""
        return importlib.import_module(self.module)


EXAMPLES: dict[str, Example] = {
    "lsm": Example(
        "jali.examples.lsm",
        "least-squares migration: reflectors from seismic data, sources over ranks",
        check_needs=("pylops",),
    ),
    "poststack": Example(
        "jali.examples.poststack",
        "post-stack inversion: acoustic impedance of a volume from its seismic section, crosslines over ranks",
        needs=("pylops",),
    ),
    "mdd": Example(
        "jali.examples.mdd",
        "multi-dimensional deconvolution: reflections without what is above the receivers, frequencies over ranks",
        check_needs=("pylops",),
    ),
    "denoising": Example(
        "jali.examples.denoising",
        "total-variation denoising of a volume, planes over ranks",
        check_needs=("pylops", "pyproximal"),
    ),
    "radio": Example(
        "jali.examples.radio",
        "images of the sky from a radio interferometer, visibilities over ranks",
        needs=("ducc0",),
    ),
    "turbulence": Example(
        "jali.examples.turbulence",
        "spectra of a turbulent velocity field, made or read, by distributed Fourier transforms",
    ),
}


@dataclass(frozen=True)
class Options:
    """How an example is run.

    - `engine`: the library of local parts ("numpy", "cupy", "torch");
    - `device`: where they are ("cpu", "cuda", "cuda:1");
    - `progress`: is called on rank 0 with sentences;
    - `advance`: is called on rank 0 with how many steps of how many are done.
    """

    engine: str = "numpy"
    device: str = "cpu"
    progress: Callable[[str], object] = lambda text: None
    advance: Callable[[int, int], object] = lambda done, steps: None

    @property
    def namespace(self) -> ArrayNamespace:
        """That of local parts."""
        return namespace_by_name(self.engine)

    def array(self, x: Any) -> Any:
        """The values of a NumPy array in this library, on this rank's device."""
        return x if self.engine == "numpy" else self.namespace.xp.asarray(x)

    def array_of_operators(self, x: np.ndarray) -> Any:
        """The values of a NumPy array for operators of pylops, which compute with NumPy or CuPy; tensors are passed as such."""
        return x if self.device == "cpu" else namespace_by_name("cupy").xp.asarray(x)

    def counted(self, steps: int) -> Callable[..., None]:
        """A callback of solvers after each step (`callback=`), which reports progress."""
        done = 0

        def step(*_: Any) -> None:
            nonlocal done
            done += 1
            self.advance(done, steps)

        return step


@dataclass
class Found:
    """What an example gives: numbers by name, and series of them, equal on all ranks; arrays of NumPy for pictures and checks, on
    rank 0 at least; times, which differ from run to run."""

    numbers: dict[str, float]
    series: dict[str, list[float]] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    times: dict[str, Timing] = field(default_factory=dict)


def on_host(x: Any) -> np.ndarray:
    """The values of an array of any library."""
    return namespace_of(x).to_host(x)
