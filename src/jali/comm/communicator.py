"""The Python face of a group of ranks.

A `Communicator` is what the file layer, the lattice and users see: rank, size, the standard collectives on
arrays, messages between two ranks, and a control plane of byte strings and integers. Collectives are plans
(`jali.comm.collectives`) that run on the arrays as they are; fields do not travel this way, the halo exchange
uses the same object's `core` from C++. Every call that waits releases the interpreter lock, and raises
`RankError` with the first cause when another rank has failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from jali import _core, recording
from jali.amounts import counted
from jali.comm import checking, given
from jali.comm.calls import EXCHANGE, compare_collective, on_device
from jali.comm.device_arrays import DeviceArray, DeviceView
from jali.comm.elements import Array, as_array
from jali.comm.whereabouts import data_on_device, gpu_of, is_on_device, lend
from jali.errors import ParameterError, RankError
from jali.files import value_shown

if TYPE_CHECKING:
    from jali.comm.collectives import Collectives
    from jali.comm.device_messages import DeviceMessages, PersistentMessage

Operation = str | Callable[[Array, Array], Array]
Counts = Sequence[int] | str | None


class Communicator:
    """A group of ranks, seen from one of them. Made by `jali.comm.current` and friends, not by hand.

    Collectives are called by all ranks in the same order. They take C-contiguous arrays in host memory (NumPy, or
    anything with `__array_interface__`, the buffer protocol or DLPack), copy nothing, and return `out`, which they
    make if it is not given. Where ranks contribute or receive parts, these are stacked along the first axis.
    Common arguments:

    - `op`: sum, prod, min, max, avg, logical_and, logical_or, logical_xor, bit_and, bit_or, bit_xor, or an
      associative and commutative function of two arrays that returns one (with `reproducible=True` it need not
      commute).
    - `counts`: rows (along the first axis) of each rank, where ranks differ: the same list on all ranks.
    - `reproducible`: combine in the order of ranks, so that any algorithm gives the same bits.
    - `algorithm`: the name of a row of `jali.comm.algorithms`; by default chosen by size and hosts.
    - `checked`: compare the calls of all ranks first, and raise `ParameterError` on every rank if they differ;
      by default whether JALI_CHECKED is set, which goes for every other call of all ranks as well. On devices, what
      runs is also proved to do what the call means before its first run (`RuntimeError` on every rank if not).
    - `blocking=False`: return a request at once, with `wait()` (which returns the result) and `test()`.

    In place means `out=x` on all ranks, where `x` is the larger of the two buffers. `ParameterError` is raised for
    arrays of the wrong size or type, not contiguous, read-only or overlapping; `RankError` if a rank fails. In a
    function that `jali.graph` records, calls on arrays of its device, runs of plans and starts of messages are recorded,
    where nothing of them takes the host; whatever else concerns other ranks raises `RecordingError`.
    """

    def __init__(self, core: _core.Communicator, threads: int) -> None:
        self.core = core
        self.rank: int = core.rank
        self.size: int = core.size
        self.transport: str = core.transport
        self.largest_tag: int = core.largest_tag
        self.threads = threads
        self.checked = checking.is_on()
        self._collectives: Collectives | None = None
        self.planned_calls = _core.PlannedCalls(lend)  # of collectives on devices
        self._sharing_memory: Communicator | None = None
        self._device_messages: dict[_core.Gpu, DeviceMessages] = {}

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}, transport {self.transport}>"

    @property
    def collectives(self) -> Collectives:
        """What the collectives of this communicator keep; the first use is collective."""
        if self._collectives is None:
            recording.refuse_call("the first collective of a communicator")
            self._compare("collectives")
            self._collectives = self._make_collectives("setting up collectives")
        return self._collectives

    def _make_collectives(self, what: str) -> Collectives:
        from jali.comm.collectives import Collectives

        return Collectives(
            self.core, lambda: self.sharing_memory().core, self.planned_calls, self.checked, what
        )

    def _first(self, call: tuple[Any, ...], arrays: tuple[Any, ...], checked: bool | None) -> Collectives:
        """The same, made by this call on arrays."""
        if not on_device(arrays):
            recording.refuse_call(call[0])
        if checked or (checked is None and self.checked):
            compare_collective(self.core, call, arrays)
        with recording.suspended():  # it is there before what is recorded
            self._collectives = self._make_collectives(f"the first {call[0]}")
        return self._collectives

    def _compare(self, call: str, **details: Any) -> None:
        """In checked mode, that all ranks make this call."""
        if self.checked:
            checking.compare(self.core, {"call": call, **details})

    @property
    def libraries(self) -> tuple[str, ...]:
        """Who can carry messages of plans here; the first does where a plan names none. The first use is collective."""
        return tuple(name for name, _ in self.collectives.carriers)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """The communicator of the ranks that give the same `color`, ordered by `key`, then by rank.

        Collective. Ranks with color None (or below 0) get None. Messages and collectives of the parts do not
        meet those of this communicator; failures and departures are shared with it, and are told in its
        numbering (in that of the outermost one, if this was split from another).
        """
        recording.refuse_call("split")
        self._compare("split")
        color = -1 if color is None else given.whole("color", color, error=ParameterError)
        core = self.core.split(color, given.whole("key", key, error=ParameterError))
        return None if core is None else Communicator(core, self.threads)

    def duplicate(self) -> Communicator:
        """A communicator of the same ranks whose messages and collectives meet nobody else's. Collective."""
        recording.refuse_call("duplicate")
        self._compare("duplicate")
        return Communicator(self.core.duplicate(), self.threads)

    def sharing_memory(self) -> Communicator:
        """A communicator of the same ranks, with messages of its own, for which ranks of one host share memory.

        Transport "shm"; messages between hosts go as before. The first call is collective, later ones give the same
        object. A duplicate where no two ranks share memory: virtual ranks, one rank per host, or JALI_SHM=0.
        JALI_SHM_COPY chooses how messages above 8 KiB are copied: `cma` (once, by the kernel, at the request of both
        ends) or `slots` (twice, in pieces through the shared memory); unset, `cma` where the kernel permits it.
        Raises `RankError` on all ranks if the chosen way is not open.
        """
        if self._sharing_memory is None:
            recording.refuse_call("sharing_memory")
            self._compare("sharing_memory")
            self._sharing_memory = Communicator(_core.make_host_communicator(self.core), self.threads)
        return self._sharing_memory

    def barrier(self, *, checked: bool | None = None) -> None:
        """Return when every rank has called."""
        recording.refuse_call("barrier")
        if checked or (checked is None and self.checked):
            checking.compare(self.core, {"call": "barrier"})
        self.core.barrier()

    # --- collectives on arrays -------------------------------------------------------------------------------

    @_core.planned
    def all_reduce(
        self,
        x: Any,
        out: Any = None,
        op: Operation = "sum",
        *,
        reproducible: bool = False,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
    ) -> Any:
        """Combine the arrays of all ranks element by element; every rank gets the result, of the shape of `x`."""
        data = x if type(x) is np.ndarray else _data(x)
        if out is None:
            out = _empty(data, data.shape)
        call = (
            "all_reduce",
            data.dtype if type(data) is np.ndarray else _kind(data),
            data.size,
            0,
            op,
            out is x,
            algorithm,
            reproducible,
        )
        arrays = (data,) if out is x else (data, _target(out, data))
        there = self._collectives or self._first(call, arrays, checked)
        return there.start(call, arrays, out, blocking, checked)

    @_core.planned
    def reduce(
        self,
        x: Any,
        out: Any = None,
        op: Operation = "sum",
        root: int = 0,
        *,
        reproducible: bool = False,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
    ) -> Any:
        """Combine the arrays of all ranks on rank `root`, which gets the result; the others get None."""
        data = x if type(x) is np.ndarray else _data(x)
        if type(root) is not int or not 0 <= root < self.size:
            root = self._root(root)
        in_place = out is x
        if self.rank != root:
            out = None
        elif out is None:
            out = _empty(data, data.shape)
        call = (
            "reduce",
            data.dtype if type(data) is np.ndarray else _kind(data),
            data.size,
            root,
            op,
            in_place,
            algorithm,
            reproducible,
        )
        arrays = (data,) if in_place else (data, None if out is None else _target(out, data))
        there = self._collectives or self._first(call, arrays, checked)
        return there.start(call, arrays, out, blocking, checked)

    @_core.planned
    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
    ) -> Any:
        """Copy the array of rank `root` into those of all others (same size and type); returns `x`."""
        data = x if type(x) is np.ndarray else _data(x)
        if type(root) is not int or not 0 <= root < self.size:
            root = self._root(root)
        call = (
            "broadcast",
            data.dtype if type(data) is np.ndarray else _kind(data),
            data.size,
            root,
            "sum",
            True,
            algorithm,
            False,
        )
        there = self._collectives or self._first(call, (data,), checked)
        return there.start(call, (data,), x, blocking, checked)

    @_core.planned
    def all_gather(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Counts = None,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
    ) -> Any:
        """Stack the arrays of all ranks, in rank order, on every rank.

        Sizes may differ if `counts` says how; `counts="exchange"` lets the ranks tell each other first. In place
        (`out=x`), `x` is the whole and this rank's rows are in it already.
        """
        data = x if type(x) is np.ndarray else _data(x)
        in_place = out is x
        rows = self._rows(data, counts, "all_gather", checked, whole=in_place)
        count = _elements(data, rows, self.size, self.rank, whole=in_place)
        if out is None:
            out = _empty(data, _stacked(data, rows, self.size))
        call = (
            "all_gather",
            data.dtype if type(data) is np.ndarray else _kind(data),
            count,
            0,
            "sum",
            in_place,
            algorithm,
            False,
        )
        arrays = (data,) if in_place else (data, _target(out, data))
        there = self._collectives or self._first(call, arrays, checked)
        return there.start(call, arrays, out, blocking, checked)

    @_core.planned
    def gather(
        self,
        x: Any,
        out: Any = None,
        root: int = 0,
        *,
        counts: Counts = None,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
    ) -> Any:
        """Stack the arrays of all ranks on rank `root`, which gets the result; the others get None.

        `counts` as in `all_gather`.
        """
        data = x if type(x) is np.ndarray else _data(x)
        if type(root) is not int or not 0 <= root < self.size:
            root = self._root(root)
        rows = self._rows(data, counts, "gather", checked)
        count = _elements(data, rows, self.size, self.rank)
        if self.rank != root:
            out = None
        elif out is None:
            out = _empty(data, _stacked(data, rows, self.size))
        call = (
            "gather",
            data.dtype if type(data) is np.ndarray else _kind(data),
            count,
            root,
            "sum",
            False,
            algorithm,
            False,
        )
        arrays = (data, None if out is None else _target(out, data))
        there = self._collectives or self._first(call, arrays, checked)
        return there.start(call, arrays, out, blocking, checked)

    @_core.planned
    def scatter(
        self,
        x: Any,
        out: Any = None,
        root: int = 0,
        *,
        counts: Counts = None,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
    ) -> Any:
        """Hand the parts of rank `root`'s array to all ranks. The others pass None (or an empty array) and `out`.

        Parts are equal unless `counts` says otherwise (on all ranks).
        """
        if type(root) is not int or not 0 <= root < self.size:
            root = self._root(root)
        at_root = self.rank == root
        if not at_root and out is None:
            raise ParameterError(f"rank {self.rank} receives from rank {root} in a scatter and needs `out`")
        target = None if out is None else _data(out, writable=True)
        data = _data(x) if at_root else None
        if data is not None and target is None:
            rows = self._rows(data, counts, "scatter", checked, whole=True)
            mine = rows[self.rank] if rows is not None else _equal_part(data, self.size)
            target = out = _empty(data, (mine, *data.shape[1:]))
        assert target is not None
        if data is not None:
            _target(target, data)
        if counts is None:
            count: int | tuple[int, ...] = target.size
        else:
            rows = self._rows(target, counts, "scatter", checked)
            count = _elements(target, rows, self.size, self.rank)
        call = ("scatter", _kind(target), count, root, "sum", False, algorithm, False)
        there = self._collectives or self._first(call, (data, target), checked)
        return there.start(call, (data, target), out, blocking, checked)

    @_core.planned
    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        op: Operation = "sum",
        *,
        counts: Counts = None,
        reproducible: bool = False,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
    ) -> Any:
        """Combine the arrays of all ranks; each rank gets its part of the result.

        Parts are equal unless `counts` says otherwise (on all ranks). In place (`out=x`), the result is where this
        rank's part is; the other parts are undefined.
        """
        data = x if type(x) is np.ndarray else _data(x)
        in_place = out is x
        rows = self._rows(data, counts, "reduce_scatter", checked, whole=True)
        count = _elements(data, rows, self.size, self.rank, whole=True)
        if out is None:
            mine = _equal_part(data, self.size) if rows is None else rows[self.rank]
            out = _empty(data, (mine, *data.shape[1:]))
        call = (
            "reduce_scatter",
            data.dtype if type(data) is np.ndarray else _kind(data),
            count,
            0,
            op,
            in_place,
            algorithm,
            reproducible,
        )
        arrays = (data,) if in_place else (data, _target(out, data))
        there = self._collectives or self._first(call, arrays, checked)
        return there.start(call, arrays, out, blocking, checked)

    @_core.planned
    def all_to_all(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Sequence[int] | Sequence[Sequence[int]] | npt.NDArray[Any] | None = None,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
    ) -> Any:
        """Send part j of every rank's array to rank j; the result stacks what came, in rank order.

        Parts are equal unless `counts` says otherwise: `counts[i][j]` rows go from rank i to rank j. A rank that
        knows only its own row passes that; then the ranks tell each other first.
        """
        data = x if type(x) is np.ndarray else _data(x)
        if counts is None:
            count: int | tuple[int, ...] = _equal_part(data, self.size) * _row(data)
            if out is None:
                out = _empty(data, data.shape)
        else:
            matrix = _matrix(counts)
            if matrix.ndim == 1:
                self._check_counts(matrix, "counts")
                matrix = np.array(self._agreed_counts("all_to_all", matrix, checked), dtype=np.int64)
            if matrix.shape != (self.size, self.size) or matrix.min(initial=0) < 0:
                raise ParameterError(
                    f"counts of shape {matrix.shape} for {counted(self.size, 'rank')}; give one row of {self.size} numbers from 0, "
                    "or one row for each rank"
                )
            sent = int(matrix[self.rank].sum())
            if data.shape[:1] != (sent,):
                raise ParameterError(
                    f"rank {self.rank} sends {sent} rows by its counts, but has shape {data.shape}"
                )
            count = tuple(int(n) * _row(data) for n in matrix.reshape(-1))
            if out is None:
                out = _empty(data, (int(matrix[:, self.rank].sum()), *data.shape[1:]))
        if out is x:
            raise ParameterError("an all_to_all cannot work in place; give another `out`, or none")
        call = (
            "all_to_all",
            data.dtype if type(data) is np.ndarray else _kind(data),
            count,
            0,
            "sum",
            False,
            algorithm,
            False,
        )
        arrays = (data, _target(out, data))
        there = self._collectives or self._first(call, arrays, checked)
        return there.start(call, arrays, out, blocking, checked)

    def _root(self, root: Any) -> int:
        number = given.whole("root", root, error=ParameterError)
        if not 0 <= number < self.size:
            raise ParameterError(f"root {number} does not exist among {counted(self.size, 'rank')}")
        return number

    def _check_counts(self, counts: Any, name: str) -> None:
        if not given.several(counts) or any(given.integer(n) is None for n in counts):
            raise ParameterError(f"{name} are whole numbers, one for each rank, not {value_shown(counts)}")
        if len(counts) != self.size or any(n < 0 for n in counts):
            raise ParameterError(
                f"{name} {list(counts)} for {counted(self.size, 'rank')}; give a number from 0 for each"
            )

    def _agreed_counts(
        self, collective: str, mine: Iterable[int], checked: bool | None
    ) -> list[tuple[int, ...]]:
        """What every rank says to `collective`, which compares the rest of its call when it knows the counts."""
        recording.refuse_call(collective)
        if checked or (checked is None and self.checked):
            checking.compare(self.core, {"call": f"{collective} that exchanges counts"})
        return self.collectives.agree_on_counts(mine)

    def _rows(
        self, data: Array, counts: Counts, collective: str, checked: bool | None, whole: bool = False
    ) -> tuple[int, ...] | None:
        """Rows of all ranks, checked against this rank's array; None if they are equal by contract."""
        if counts is None:
            return None
        if isinstance(counts, str):
            if counts != EXCHANGE or whole:
                raise ParameterError(
                    f"counts={counts!r}: give rows per rank" + ("" if whole else f", or {EXCHANGE!r}")
                )
            mine = data.shape[0] if data.ndim else 1
            return tuple(n for (n,) in self._agreed_counts(collective, [mine], checked))
        self._check_counts(counts, "counts")
        rows = tuple(int(n) for n in counts)
        have, wanted = data.shape[0] if data.ndim else 1, sum(rows) if whole else rows[self.rank]
        if have != wanted:
            raise ParameterError(
                f"counts {list(rows)} mean {wanted} rows {'in all' if whole else f'on rank {self.rank}'}, "
                f"the array has shape {data.shape}"
            )
        return rows

    # --- messages between two ranks ---------------------------------------------------------------------------

    def send(self, data: npt.NDArray[Any], to: int, tag: int = 0) -> _core.PendingMessage:
        """Start sending a contiguous array to rank `to`; returns a pending message for `wait`.

        The array must not change until then. Tags are 0 to `largest_tag`, which is 32767 or more. Arrays are in host
        memory; ParameterError for those of devices, which have `persistent_send`.
        """
        recording.refuse_call("send")
        if type(data) is not np.ndarray:
            _check_on_host(data, "persistent_send")
        try:
            return self.core.send(data, to, tag)
        except TypeError:
            _check_ranks(to=to, tag=tag)
            raise

    def receive(self, data: npt.NDArray[Any], source: int, tag: int = 0) -> _core.PendingMessage:
        """Start receiving into a contiguous array of exactly the sent size; returns a pending message.

        Messages from one rank with one tag arrive in the order sent. Arrays are in host memory, as in `send`.
        """
        recording.refuse_call("receive")
        if type(data) is not np.ndarray:
            _check_on_host(data, "persistent_receive")
        try:
            return self.core.receive(data, source, tag)
        except TypeError:
            _check_ranks(source=source, tag=tag)
            raise

    def test(self, message: _core.PendingMessage) -> bool:
        """Whether a pending message is complete; makes progress on it."""
        recording.refuse_call("test")
        try:
            return self.core.test(message)
        except TypeError:  # looked at afterwards, since tests are often
            _check_pending([message])
            raise

    def wait(self, messages: Sequence[_core.PendingMessage], what: str = "messages") -> None:
        """Wait for all of these messages; `what` names them in errors.

        Raises `RankError` when a rank has failed, has ended its program, or nothing moved for JALI_WATCHDOG
        seconds.
        """
        recording.refuse_call("wait")
        try:
            self.core.wait(list(messages), what)
        except TypeError:
            _check_pending(messages)
            raise

    # --- messages between devices ------------------------------------------------------------------------------

    def persistent_send(self, x: Any, to: int, tag: int = 0, *, way: str | None = None) -> PersistentMessage:
        """The sending end of a message between devices, to be started again and again: C-contiguous `x` goes to rank `to`.

        Rank `to` makes the other end with `persistent_receive`, the same tag (any number from 0) and an array of the same
        bytes and type; ends of the same ranks and tag meet in the order in which they are made. Make all before the first
        is started: a driver may want an idle device to map memory. The first message of a communicator and device is
        collective (or `device_messages`), later ones concern the two ranks alone, and making one waits for nobody.

        `way`: "remote-write" (a kernel stores into the receiver's array; by default up to 4 MiB) or "copy-engine" where
        devices reach each other's memory; where they do not, the first that there is of "nccl" ("rccl" on AMD's),
        "gpu-aware-mpi" (an MPI library that takes addresses of devices) and "host-staged" (through the host).
        `jali.tune.experiment(message_way="nccl")` names one for all messages that do not; where devices reach each other's
        memory the library is made only inside it. Raises `DeviceError` if what was named cannot be, on both
        ranks. Raises `ParameterError`, on both ranks at the first start, for arrays that differ in bytes or type.
        """
        recording.refuse_call("persistent_send")
        return self.device_messages(gpu_of(x)).make(x, to, tag, True, way)

    def persistent_receive(
        self, x: Any, source: int, tag: int = 0, *, way: str | None = None
    ) -> PersistentMessage:
        """The receiving end of a message between devices, into `x`; see `persistent_send`, whose way counts."""
        recording.refuse_call("persistent_receive")
        return self.device_messages(gpu_of(x)).make(x, source, tag, False, way)

    def start(self, messages: Sequence[PersistentMessage], stream: Any = None) -> None:
        """Put a start of each of these messages on jali's stream, or on `stream` (a handle, or one of CuPy or PyTorch).

        Nobody waits on the host, but at a message's first start for its other end to be made, and by "gpu-aware-mpi" (until all
        has been sent and has arrived) and "host-staged" (until all has arrived). What is on the stream already comes before:
        sent is what it leaves in the arrays, overwritten is what it no longer needs. What follows comes after the arrays were
        sent and have arrived. So messages that go both ways are started together, on both ranks,
        and not one after the other: both ranks' streams would wait for what is behind. Starts on one stream come in the same
        order on both ranks. Starts on jali's stream are in order with the streams of the arrays' owners.

        In checked mode the first start of these messages together is proved to be in order, as `check_messages` does: it waits for
        the ranks that they connect, which start the same messages with each other at once and in the same order.

        May be captured in a graph of the driver's (not where the host waits); the messages must outlive it, and on another
        stream what they have begun. A `jali.graph` records starts on jali's stream, and keeps the messages.
        """
        try:
            if messages:
                messages[0].owner.start(messages, stream)
        # looked at afterwards, since starts are often
        except (TypeError, ValueError, AttributeError, LookupError):
            _check_ends(messages)
            raise

    def check_messages(self, messages: Sequence[PersistentMessage]) -> None:
        """Prove that starts of these messages are in order: nobody waits for what never comes, bytes are neither read before they
        have arrived nor overwritten while they are sent, and every array gets those that it shall have.

        A few starts are made, and what each rank gives to its driver meanwhile is looked at for all ranks together that these
        messages connect. So all of those call this, each with the messages that it would start at once, and arrays that receive are
        filled. Raises `RuntimeError` on all of them, with what is not in order, and `ParameterError` where two ranks do not start
        the same messages with each other, and for messages that go by "host-staged".
        """
        _check_ends(messages)
        if messages:
            messages[0].owner.check(messages)

    def explain_messages(self, messages: Sequence[PersistentMessage]) -> str:
        """What a start of these messages puts on streams, a line for each step: launches, copies, groups of a library, and what
        the host does.

        It is the program that starts of these together, in this order, run, in graphs too. Waits until the other ends have been made.
        """
        _check_ends(messages)
        return messages[0].owner.core.describe(messages) if messages else ""

    def device_messages(self, gpu: _core.Gpu) -> DeviceMessages:
        """What persistent messages on this device share. The first use is collective: for ranks that have none."""
        if not isinstance(gpu, _core.Gpu):
            raise ParameterError(
                f"messages between devices are on a device, such as lattice.gpu, not {value_shown(gpu)}"
            )
        if gpu not in self._device_messages:
            from jali.comm.device_messages import DeviceMessages

            recording.refuse_call("device_messages")
            self._compare("device_messages")
            self._device_messages[gpu] = DeviceMessages(self.core, gpu)
        return self._device_messages[gpu]

    # --- control plane ----------------------------------------------------------------------------------------

    def gather_bytes(self, data: bytes, *, what: str = "") -> list[bytes]:
        """The byte strings of all ranks, in rank order; lengths may differ.

        `what`, the same on all ranks, says in errors what it is for.
        """
        recording.refuse_call("gather_bytes")
        _check_bytes("gather_bytes", data)
        self._compare(what or "gather_bytes")
        return self.core.gather_bytes(data, what)

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        """The byte string that rank `root` passed; what the others pass is ignored."""
        recording.refuse_call("broadcast_bytes")
        if type(root) is not int or not 0 <= root < self.size:
            root = self._root(root)
        if root == self.rank:
            _check_bytes("broadcast_bytes", data)
        self._compare("broadcast_bytes", root=root)
        return self.core.broadcast_bytes(data, root)

    def all_reduce_sum(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Sum of an integer array over all ranks: a new array of the same shape, exact modulo 2^64.

        Raises `TypeError` for anything but integers: sums of floating-point numbers would depend on their
        order (`Lattice.sum` has sums that do not).
        """
        recording.refuse_call("all_reduce_sum")
        array = np.asarray(values)
        if array.dtype.kind not in "iub":
            raise TypeError(f"all_reduce_sum takes integers, not {array.dtype}; use Lattice.sum for fields")
        total = np.array(array, dtype=np.int64, order="C", copy=True)
        self._compare("all_reduce_sum", count=total.size)
        self.core.all_reduce_sum(total.reshape(-1))
        return total

    def fail(self, cause: str) -> None:
        """Tell all other ranks that this one cannot go on; they raise `RankError` with this cause.

        Only the first failure in the group counts. This rank's own later calls raise as well.
        """
        self.core.fail(cause)

    def check(self) -> None:
        """Raise `RankError` if a rank has failed; for long work without communication."""
        self.core.check()


def _data(x: Any, writable: bool = False) -> Any:
    """The memory of an array, of the host or of a device, as collectives see it."""
    if type(x) is DeviceArray or type(x) is DeviceView:
        return x
    if is_on_device(x):
        return data_on_device(x, writable)
    return as_array(x)


def _check_on_host(x: Any, instead: str) -> None:
    if is_on_device(x):
        raise ParameterError(
            f"a {type(x).__name__} is in device memory; messages between devices are made once, by {instead}, "
            "and started"
        )


def _check_ranks(**numbers: Any) -> None:
    for name, value in numbers.items():
        given.whole(name, value, error=ParameterError)


def _check_pending(messages: Any) -> None:
    if not given.several(messages) or not all(isinstance(one, _core.PendingMessage) for one in messages):
        raise ParameterError(f"messages are what send and receive returned, not {value_shown(messages)}")


def _check_ends(messages: Any) -> None:
    from jali.comm.device_messages import check_are_messages

    check_are_messages(messages)


def _check_bytes(call: str, data: Any) -> None:
    if not isinstance(data, bytes):
        raise ParameterError(f"{call} takes bytes, not {value_shown(data)}")


def _kind(data: Any) -> Any:
    """The element type of an array: NumPy's, or the core's name of it on devices (where there is a bf16)."""
    return data.dtype if isinstance(data, np.ndarray) else data.element


def _empty(like: Any, shape: tuple[int, ...]) -> Any:
    """A new array in the same kind of memory, of the same type."""
    if not isinstance(like, np.ndarray):
        return DeviceArray.empty(like.gpu, shape, like.element, "collective")
    return np.empty(shape, like.dtype)


def _target(out: Any, data: Array) -> Array:
    """The memory of `out`, which must be of the type of `data`."""
    target = out if type(out) is np.ndarray else _data(out, writable=True)
    if isinstance(target, np.ndarray) != isinstance(data, np.ndarray):
        raise ParameterError("one array is in device memory and one in host memory; give both in the same")
    if _kind(target) != _kind(data):
        raise ParameterError(
            f"the result is to be {_kind(target)}, but {_kind(data)} is sent; make them alike"
        )
    return target


def _matrix(counts: Any) -> npt.NDArray[Any]:
    """Whole numbers as an array of any shape. Raises ParameterError."""
    try:
        matrix = np.asarray(counts)
    except ValueError:  # rows of unequal lengths
        matrix = np.empty(0, object)
    if matrix.dtype.kind not in "iu":
        raise ParameterError(
            f"counts of an all_to_all are whole numbers, a row for each rank, not {value_shown(counts)}"
        )
    return matrix


def _row(data: Array) -> int:
    """Elements of a row."""
    return math.prod(data.shape[1:])


def _equal_part(data: Array, parts: int) -> int:
    rows = data.shape[0] if data.ndim else 1
    if rows % parts:
        raise ParameterError(f"{rows} rows (shape {data.shape}) are no {parts} equal parts; give `counts`")
    return rows // parts


def _elements(
    data: Array, rows: tuple[int, ...] | None, size: int, rank: int, whole: bool = False
) -> int | tuple[int, ...]:
    """Elements per rank: one number if all are alike by contract."""
    if rows is not None:
        row = _row(data)
        return tuple(n * row for n in rows)
    return _equal_part(data, size) * _row(data) if whole else data.size


def _stacked(data: Array, rows: tuple[int, ...] | None, size: int) -> tuple[int, ...]:
    total = sum(rows) if rows is not None else size * (data.shape[0] if data.ndim else 1)
    return (total, *data.shape[1:])


def came_from_elsewhere(error: BaseException, rank: int) -> bool:
    """Whether this error only reports the failure of another rank than `rank`."""
    return isinstance(error, RankError) and getattr(error, "rank", rank) != rank


def as_cause(error: BaseException) -> str:
    """One line about an error, as the other ranks will read it."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text}" if text else name
