"""Random numbers that belong to sites, not to ranks.

A draw is a function of (purpose, seed, stream, global site, call, draw): Philox4x32-10 (Salmon et al., SC'11) in counter
mode. The only state is how many kernels have drawn so far, so a run is the same on any number of ranks and continues from a
few numbers.

The counter separates draws by purpose, without collisions: its 48 bits for the call hold the purpose (3), whether the
stream is another than 0 (1) and the call (44). The key of stream 0 is a one-to-one function of the seed. The key of any
other stream is 64 bits of the SHA-256 of seed and stream: a pair of them is alike with probability 2^-64.
"""

from __future__ import annotations

import operator
from typing import Any

from jali.codegen.lines import trace_error
from jali.errors import ParameterError
from jali.files import value_shown

_MASK = (1 << 64) - 1
_CALL_BITS = 44
MOST_CALLS = 1 << _CALL_BITS
"""How often a source can be drawn from; at one microsecond each, half a year."""

CALLER, HOT_START, GAUGE_TRANSFORM, CHAIN = "caller", "hot start", "gauge transformation", "chain"
MOMENTA = "momenta"
_PURPOSES = (CALLER, HOT_START, GAUGE_TRANSFORM, CHAIN, MOMENTA)
"""What sources are for, in the order of their numbers; at most eight, and an order that must not change."""


class Random:
    """A source of random numbers, passed to site functions as an argument: `rng.uniform(X)`.

    `seed` (0 to 2**63 - 1) names the run, `stream` (same range) an independent sequence within it. Every kernel that draws from it
    advances `call` by one. What jali draws by itself from a seed (`hot_start(seed=...)`, `jali run`) has a `purpose` of its own,
    so that it never meets the numbers of a `Random` with the same seed. Raises ParameterError for anything that is not a whole
    number in range.
    """

    def __init__(self, seed: int, stream: int = 0):
        self.seed = _whole("seed", seed, 1 << 63, "2**63")
        self.stream = _whole("stream", stream, 1 << 63, "2**63")
        self.purpose = CALLER
        self.call = 0
        self.key = _key(self.seed, self.stream)

    @classmethod
    def reserved(cls, purpose: str, seed: int, stream: int = 0) -> Random:
        """A source for one of jali's own purposes."""
        rng = cls(seed, stream)
        rng.purpose = purpose
        return rng

    def __repr__(self) -> str:
        purpose = "" if self.purpose == CALLER else f", purpose={self.purpose!r}"
        return f"Random(seed={self.seed}, stream={self.stream}, call={self.call}{purpose})"

    def next_call(self) -> int:
        """The word of the counter that the next kernel draws with; advances `call`. Raises ParameterError after 2**44 calls."""
        if self.call == MOST_CALLS:
            raise ParameterError(
                f"{self!r} has been drawn from 2**44 times, after which its numbers would repeat; take another stream"
            )
        call = _whole("call", self.call, MOST_CALLS, "2**44")
        self.call = call + 1
        return (_PURPOSES.index(self.purpose) << 1 | (self.stream > 0)) << _CALL_BITS | call

    def uniform(self, *_: Any) -> Any:
        """Numbers are drawn at a site, by the argument of a site function that this becomes. Raises TraceError."""
        raise trace_error(
            "a jali.Random draws inside a site function that has it as an argument: def f(X, ..., rng), called as f(..., rng)"
        )

    gaussian = integers = uniform

    @property
    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint has to keep."""
        return {"seed": self.seed, "stream": self.stream, "call": self.call, "purpose": self.purpose}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Random:
        """Continues where `state` was taken.

        A state without a purpose is of a version of jali that had none: it is continued exactly if its stream is 0, and refused
        otherwise, since other streams have other keys now.
        """
        try:
            seed, stream, call = state["seed"], state["stream"], state["call"]
            purpose = state.get("purpose")
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ParameterError(
                f"not the state of a random number source: {value_shown(state)} ({error!r})"
            ) from None
        if purpose not in (None, *_PURPOSES):
            raise ParameterError(
                f"a random number source for {purpose!r} is not known here; purposes are {', '.join(_PURPOSES)}"
            )
        rng = cls.reserved(purpose or CALLER, seed, stream)
        rng.call = _whole("call", call, MOST_CALLS, "2**44")
        if purpose is None and rng.stream:
            raise ParameterError(
                f"the state of stream {rng.stream} is of an earlier version of jali, whose streams other than 0 held other numbers; "
                "it cannot be continued exactly, so take a new Random"
            )
        return rng


def _whole(name: str, value: Any, end: int, limit: str) -> int:
    """`value` as an int from 0 to end - 1, `limit` being the name of the end in errors."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < end:
        raise ParameterError(f"{name} is a whole number from 0 to {limit} - 1, not {value_shown(value)}")
    return number


def _key(seed: int, stream: int) -> int:
    if stream == 0:
        return _mix(_mix(seed) ^ _mix(0x9E3779B97F4A7C15))
    import hashlib  # takes longer to import than this module

    digest = hashlib.sha256(b"jali.Random" + seed.to_bytes(8, "little") + stream.to_bytes(8, "little"))
    return int.from_bytes(digest.digest()[:8], "little")


def _mix(x: int) -> int:
    """A one-to-one mixing of 64-bit numbers (the SplitMix64 finaliser, Steele et al., OOPSLA'14)."""
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
