"""Random numbers that belong to sites, not to ranks.

A draw is a function of (seed, stream, global site, call, draw): Philox4x32-10 (Salmon et al., SC'11) in counter mode. The
only state is how many kernels have drawn so far, so a run is the same on any number of ranks and continues from three numbers.
"""

from __future__ import annotations

from typing import Any

from jali.codegen.ir import trace_error
from jali.errors import ParameterError

_MASK = (1 << 64) - 1


class Random:
    """A source of random numbers, passed to site functions as an argument: `rng.uniform(X)`.

    `seed` (0 to 2**63 - 1) names the run, `stream` (same range) an independent sequence within it. Every kernel that draws from it
    advances `call` by one. Raises ParameterError for anything that is not a whole number in range.
    """

    def __init__(self, seed: int, stream: int = 0):
        for name, value in (("seed", seed), ("stream", stream)):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
                raise ParameterError(f"{name} is a whole number from 0 to 2**63 - 1, not {value!r}")
        self.seed = seed
        self.stream = stream
        self.call = 0
        self.key = _mix(_mix(seed) ^ _mix(stream + 0x9E3779B97F4A7C15))

    def __repr__(self) -> str:
        return f"Random(seed={self.seed}, stream={self.stream}, call={self.call})"

    def uniform(self, *_: Any) -> Any:
        """Numbers are drawn at a site, by the argument of a site function that this becomes. Raises TraceError."""
        raise trace_error(
            "a jali.Random draws inside a site function that has it as an argument: def f(X, ..., rng), called as f(..., rng)"
        )

    gaussian = uniform

    @property
    def state(self) -> dict[str, int]:
        """Everything that a checkpoint has to keep."""
        return {"seed": self.seed, "stream": self.stream, "call": self.call}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Random:
        """Continues where `state` was taken."""
        try:
            rng = cls(int(state["seed"]), int(state["stream"]))
            rng.call = int(state["call"])
        except (KeyError, TypeError, ValueError) as error:
            raise ParameterError(f"not the state of a random number source: {state!r} ({error})") from None
        return rng


def _mix(x: int) -> int:
    """Spreads the bits of a 64-bit number (the SplitMix64 finaliser, Steele et al., OOPSLA'14)."""
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
