"""The interface of ranks that share a file, and their agreement on errors.

Readers and writers do not depend on MPI: they take any object with a rank number, a size, `barrier`, `gather_bytes`
and `broadcast_bytes` of short byte strings. Only headers, checksums and error texts travel through it, never links.

Work is done in phases. A phase touches the file but never communicates (`together` wraps it); between phases
all ranks learn whether one of them failed, and then all of them raise the same error. So no rank waits for
one that has failed. The communicator detects a rank that dies silently.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from jali.errors import (
    FileFormatError,
    JaliError,
    LayoutError,
    ParameterError,
    RankError,
    ShapeError,
    SingularError,
    StorageError,
    UnsetError,
)


@runtime_checkable
class RankGroup(Protocol):
    """The part of a communicator that file input and output need. Every call is made by all ranks."""

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""

    @property
    def size(self) -> int:
        """How many ranks share the file."""

    def barrier(self) -> None:
        """Return when every rank has called."""

    def gather_bytes(self, data: bytes) -> Sequence[bytes]:
        """The byte strings of all ranks, in rank order; lengths may differ."""

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        """The byte string that `root` passed; what the others pass is ignored."""


class SingleRank:
    """The rank group of a program without a launcher."""

    rank = 0
    size = 1

    def barrier(self) -> None:
        """No other rank to wait for."""

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The one contribution there is."""
        return [data]

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        """The data itself."""
        return data


_KINDS: dict[str, type[JaliError]] = {
    kind.__name__: kind
    for kind in (
        FileFormatError, LayoutError, ShapeError, ParameterError, RankError, SingularError, StorageError, UnsetError, JaliError,
    )
}  # fmt: skip


@contextmanager
def together(ranks: RankGroup) -> Iterator[None]:
    """Run a block that must not communicate; afterwards every rank continues or every rank raises the same
    error.

    The error is that of the lowest failing rank. jali's own errors and `OSError` keep their type; anything
    else (a defect or exhausted memory) becomes a `RankError` on all ranks, with the original attached where
    it happened. The error has the attribute `on_every_rank`, so that a program can let one rank report it.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        if ranks.size == 1:
            raise
        error = caught
    if ranks.size == 1:
        return
    texts = ranks.gather_bytes(b"" if error is None else _encode(error, ranks.rank))
    first = next((text for text in texts if text), None)
    if first is not None:
        agreed = _decode(first)
        agreed.on_every_rank = True  # type: ignore[attr-defined]
        raise agreed from error


@contextmanager
def raised_alike() -> Iterator[None]:
    """Around calls that promise to raise the same error on all ranks, such as those of `jali.io`: marks it as `together` does.

    The block may communicate. A `RankError`, which one rank may see and another not, is left as it is.
    """
    try:
        yield
    except RankError:
        raise
    except (JaliError, OSError) as error:
        error.on_every_rank = True  # type: ignore[union-attr]
        raise


def sum_over_ranks(ranks: RankGroup, values: Sequence[int], modulus: int) -> tuple[int, ...]:
    """Sum of each non-negative integer over all ranks, modulo `modulus`."""
    return tuple(sum(column) % modulus for column in zip(*_gather_integers(ranks, values), strict=True))


def xor_over_ranks(ranks: RankGroup, values: Sequence[int]) -> tuple[int, ...]:
    """Exclusive or of each non-negative integer over all ranks."""
    result = []
    for column in zip(*_gather_integers(ranks, values), strict=True):
        bits = 0
        for value in column:
            bits ^= value
        result.append(bits)
    return tuple(result)


def _gather_integers(ranks: RankGroup, values: Sequence[int]) -> list[list[int]]:
    return [json.loads(text) for text in ranks.gather_bytes(json.dumps(list(values)).encode())]


def _encode(error: Exception, rank: int) -> bytes:
    kind = type(error).__name__
    if isinstance(error, OSError) and error.errno is not None:
        return json.dumps(
            {"kind": "OSError", "errno": error.errno, "text": error.strerror, "path": error.filename},
            default=os.fsdecode,
        ).encode()
    if kind in _KINDS:
        return json.dumps({"kind": kind, "text": str(error)}).encode()
    return json.dumps({"kind": "RankError", "text": f"rank {rank} failed: {kind}: {error}"}).encode()


def _decode(text: bytes) -> Exception:
    reported = json.loads(text)
    if reported["kind"] == "OSError":
        return OSError(reported["errno"], reported["text"], reported["path"])
    return _KINDS[reported["kind"]](reported["text"])
