"""The Python face of a group of ranks.

A `Communicator` is what the file layer, the lattice and users see: rank, size, and the few collectives of
the control plane, on byte strings and integers. Fields do not travel this way; the halo exchange uses the
same object's `core` from C++. Every call that waits releases the interpreter lock, and raises `RankError`
with the first cause when another rank has failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jali import _core
from jali.errors import RankError


class Communicator:
    """A group of ranks, seen from one of them. Made by `jali.comm.current` and friends, not by hand.

    Collective calls (`barrier`, `all_gather`, `broadcast`, `all_reduce_sum`) are made by all ranks in the
    same order.
    """

    def __init__(self, core: _core.Communicator, threads: int) -> None:
        self.core = core
        self.rank: int = core.rank
        self.size: int = core.size
        self.transport: str = core.transport
        self.largest_tag: int = core.largest_tag
        self.threads = threads
        self._sharing_memory: Communicator | None = None

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}, transport {self.transport}>"

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """The communicator of the ranks that give the same `color`, ordered by `key`, then by rank.

        Collective. Ranks with color None (or below 0) get None. Messages and collectives of the parts do not
        meet those of this communicator; failures and departures are shared with it, and are told in its
        numbering (in that of the outermost one, if this was split from another).
        """
        core = self.core.split(-1 if color is None else color, key)
        return None if core is None else Communicator(core, self.threads)

    def duplicate(self) -> Communicator:
        """A communicator of the same ranks whose messages and collectives meet nobody else's. Collective."""
        return Communicator(self.core.duplicate(), self.threads)

    def sharing_memory(self) -> Communicator:
        """A communicator of the same ranks, with messages of its own, for which ranks of one host share memory.

        Transport "shm"; messages between hosts go as before. The first call is collective, later ones give
        the same object. A duplicate where no two ranks share memory: virtual ranks, one rank per host, or
        JALI_SHM=0. JALI_SHM_COPY chooses how messages above 8 KiB are copied: `cma` (once, by the kernel) or
        `slots` (twice, in pieces through the shared memory); unset, slots unless ranks outnumber cores.
        Raises `RankError` on all ranks if the chosen way is not open.
        """
        if self._sharing_memory is None:
            self._sharing_memory = Communicator(_core.make_host_communicator(self.core), self.threads)
        return self._sharing_memory

    def barrier(self) -> None:
        """Return when every rank has called."""
        self.core.barrier()

    def all_gather(self, data: bytes) -> list[bytes]:
        """The byte strings of all ranks, in rank order; lengths may differ."""
        return self.core.all_gather(data)

    def broadcast(self, data: bytes, root: int) -> bytes:
        """The byte string that rank `root` passed; what the others pass is ignored."""
        return self.core.broadcast(data, root)

    def all_reduce_sum(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Sum of an integer array over all ranks: a new array of the same shape, exact modulo 2^64.

        Raises `TypeError` for anything but integers: sums of floating-point numbers would depend on their
        order (`Lattice.sum` has sums that do not).
        """
        array = np.asarray(values)
        if array.dtype.kind not in "iub":
            raise TypeError(f"all_reduce_sum takes integers, not {array.dtype}; use Lattice.sum for fields")
        total = np.array(array, dtype=np.int64, order="C", copy=True)
        self.core.all_reduce_sum(total.reshape(-1))
        return total

    def send(self, data: npt.NDArray[Any], to: int, tag: int = 0) -> _core.PendingMessage:
        """Start sending a contiguous array to rank `to`; returns a pending message for `wait`.

        The array must not change until then. Tags are 0 to `largest_tag`, which is 32767 or more.
        """
        return self.core.send(data, to, tag)

    def receive(self, data: npt.NDArray[Any], source: int, tag: int = 0) -> _core.PendingMessage:
        """Start receiving into a contiguous array of exactly the sent size; returns a pending message.

        Messages from one rank with one tag arrive in the order sent.
        """
        return self.core.receive(data, source, tag)

    def test(self, message: _core.PendingMessage) -> bool:
        """Whether a pending message is complete; makes progress on it."""
        return self.core.test(message)

    def wait(self, messages: Sequence[_core.PendingMessage], what: str = "messages") -> None:
        """Wait for all of these messages; `what` names them in errors.

        Raises `RankError` when a rank has failed, has ended its program, or nothing moved for JALI_WATCHDOG
        seconds.
        """
        self.core.wait(list(messages), what)

    def fail(self, cause: str) -> None:
        """Tell all other ranks that this one cannot go on; they raise `RankError` with this cause.

        Only the first failure in the group counts. This rank's own later calls raise as well.
        """
        self.core.fail(cause)

    def check(self) -> None:
        """Raise `RankError` if a rank has failed; for long work without communication."""
        self.core.check()


def came_from_elsewhere(error: BaseException, rank: int) -> bool:
    """Whether this error only reports the failure of another rank than `rank`."""
    return isinstance(error, RankError) and getattr(error, "rank", rank) != rank


def as_cause(error: BaseException) -> str:
    """One line about an error, as the other ranks will read it."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text}" if text else name
