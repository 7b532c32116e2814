"""Steps of calls: the tensors that a call reads and writes, and its calls of a communicator."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from jali.comm.communicator import Communicator
from jali.errors import ParameterError
from jali.torch import tensors as of


class Step:
    """Part of a call: `start` returns a request. Before it `begin` gathers the input, after it `end` copies the received data to its tensors.

    On devices these two are work of PyTorch on its current stream, and are left out where nothing `copies`.
    """

    __slots__ = ("copies", "index")

    copies: bool
    index: int  # number of the device, -1 for the host, as `Tensor.get_device` has it

    @abstractmethod
    def start(self, world: Communicator, how: dict[str, Any]) -> Any:
        """With `stream` and `blocking` of jali's collectives."""

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass


class Reduction(Step):
    """On rank `root` alone, or on all where it is None; `receives`: this rank gets the result."""

    __slots__ = ("factor", "receives", "root", "row", "rows", "word")

    def __init__(self, tensor: Any, op: Any, root: int | None, receives: bool) -> None:
        self.rows = of.Rows([tensor])
        self.row = self.rows.row
        self.index = self.row.get_device()
        self.word, self.factor = of.operation(op, self.row.dtype)
        self.copies = self.rows.copies or self.factor is not None
        self.root, self.receives = root, receives

    def begin(self) -> None:
        self.row = self.rows.begin()
        if self.factor is not None:
            self.row = self.row.mul_(self.factor) if self.receives else self.row * self.factor

    def start(self, world: Communicator, how: dict[str, Any]) -> Any:
        x = of.as_numbers(self.row, how.get("stream"))
        if self.root is None:
            return world.all_reduce(x, x, self.word, **how)
        return world.reduce(x, x if self.receives else None, self.word, self.root, **how)

    def end(self) -> None:
        if self.receives:
            self.rows.end()


class _ReadAndWritten(Step):
    """From some tensors, which may be none, to others, which may be none."""

    __slots__ = ("into", "row", "rows")

    def __init__(self, read: Sequence[Any] | None, written: Sequence[Any] | None) -> None:
        self.rows: Any = of.Rows(read) if read else None
        self.into: Any = of.Rows(written) if written is not None else None
        self.row: Any = self.rows.row if self.rows else None
        rows = [one for one in (self.rows, self.into) if one is not None]
        self.copies = any([one.copies for one in rows])
        self.index = rows[0].row.get_device()
        if rows[-1].row.get_device() != self.index:
            raise ParameterError(
                f"one tensor is on {rows[0].row.device} and one on {rows[-1].row.device}; give both on the same"
            )

    def begin(self) -> None:
        if self.rows is not None:
            self.row = self.rows.begin()

    def end(self) -> None:
        if self.into is not None:
            self.into.end()


class ScatteredReduction(_ReadAndWritten):
    __slots__ = ("counts", "factor", "word")

    def __init__(self, output: Any, inputs: Sequence[Any], op: Any, counts: list[int] | None) -> None:
        super().__init__(inputs, [output])
        self.word, self.factor = of.operation(op, output.dtype)
        self.copies = self.copies or self.factor is not None
        self.counts = counts

    def begin(self) -> None:
        super().begin()
        if self.factor is not None:
            self.row = self.row * self.factor

    def start(self, world: Communicator, how: dict[str, Any]) -> Any:
        stream = how.get("stream")
        x, out = of.as_numbers(self.row, stream), of.as_numbers(self.into.row, stream)
        return world.reduce_scatter(x, out, self.word, counts=self.counts, **how)


class Broadcast(Step):
    __slots__ = ("root", "rows")

    def __init__(self, tensor: Any, root: int) -> None:
        self.rows, self.root = of.Rows([tensor]), root
        self.copies, self.index = self.rows.copies, self.rows.row.get_device()

    def begin(self) -> None:
        self.rows.begin()

    def end(self) -> None:
        self.rows.end()

    def start(self, world: Communicator, how: dict[str, Any]) -> Any:
        return world.broadcast(of.as_bytes(self.rows.row, how.get("stream")), self.root, **how)


class Gathering(_ReadAndWritten):
    """`outputs`: None on ranks that do not receive. On rank `root` alone, or on all where it is None."""

    __slots__ = ("counts", "rank", "root")

    def __init__(
        self, one: Any, outputs: Sequence[Any] | None, root: int | None, counts: list[int] | None, rank: int
    ) -> None:
        super().__init__([one], outputs)
        self.root, self.counts, self.rank = root, counts, rank

    def start(self, world: Communicator, how: dict[str, Any]) -> Any:
        stream, into = how.get("stream"), self.into
        x = of.as_bytes(self.row, stream)
        out = of.as_bytes(into.row, stream) if into is not None else None
        if self.root is not None:
            return world.gather(x, out, self.root, **how)
        # A part of the output that is the input already is in place.
        if (
            into is not None
            and not into.copies
            and self.counts is None
            and self.row.data_ptr() == into.row.data_ptr() + self.rank * self.row.nbytes
        ):
            x = out
        return world.all_gather(x, out, counts=self.counts, **how)


class Scattering(_ReadAndWritten):
    """`parts`: None but on rank `root`."""

    __slots__ = ("root",)

    def __init__(self, parts: Sequence[Any] | None, output: Any, root: int) -> None:
        super().__init__(parts, [output])
        self.root = root

    def start(self, world: Communicator, how: dict[str, Any]) -> Any:
        stream = how.get("stream")
        x = of.as_bytes(self.row, stream) if self.row is not None else None
        return world.scatter(x, of.as_bytes(self.into.row, stream), self.root, **how)


class AllToAll(_ReadAndWritten):
    """`sent` and `received` are the bytes to and from each rank; None where all are equal."""

    __slots__ = ("received", "sent")

    def __init__(
        self,
        outputs: Sequence[Any],
        inputs: Sequence[Any],
        sent: Sequence[int] | None,
        received: Sequence[int] | None,
    ) -> None:
        same_type([*outputs, *inputs])
        super().__init__(inputs, outputs)
        self.sent, self.received = sent, received

    def start(self, world: Communicator, how: dict[str, Any]) -> Any:
        stream = how.get("stream")
        x, out = of.as_bytes(self.row, stream), of.as_bytes(self.into.row, stream)
        counts = None
        if self.sent is not None:  # every rank knows its row and its column
            rows = world.gather_bytes(_numbers(self.sent), what="sizes of an all-to-all")
            counts = [_read_numbers(one) for one in rows]
            came = [one[world.rank] for one in counts]
            if list(self.received or ()) != came:
                raise ParameterError(
                    f"rank {world.rank} has room for {list(self.received or ())} bytes of the ranks, which send it {came}"
                )
        return world.all_to_all(x, out, counts=counts, **how)


class Barrier(Step):
    """Of the control plane, which has no request: it was waited for when `start` returns."""

    __slots__ = ()

    def __init__(self) -> None:
        self.copies, self.index = False, -1

    def start(self, world: Communicator, how: dict[str, Any]) -> Any:
        world.barrier()
        return self

    def wait(self) -> None:
        pass


def same_type(tensors: Sequence[Any]) -> None:
    for tensor in tensors:
        of.check(tensor)
    types = {tensor.dtype for tensor in tensors}
    if len(types) > 1:
        raise ParameterError(f"tensors of one call have one type, not {', '.join(sorted(map(str, types)))}")


def _numbers(values: Sequence[int]) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def _read_numbers(data: bytes) -> list[int]:
    return [int.from_bytes(data[k : k + 8], "little") for k in range(0, len(data), 8)]
