"""The Python face of a group of ranks.

A `Communicator` is what the file layer, the lattice and users see: rank, size, the standard collectives on
arrays, messages between two ranks, and a control plane of byte strings and integers. Collectives are plans
(core/running/collectives.hpp) that run on the arrays as they are; fields do not travel this way, the halo exchange
uses the same object's `core` from C++. Every call that waits releases the interpreter lock, and raises
`RankError` with the first cause when another rank has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from jali import _core, graph_recorder
from jali.amounts import counted
from jali.comm import checking, validation
from jali.comm.device_arrays import view_of
from jali.comm.device_of_array import gpu_of, is_on_device
from jali.comm.elements import Array
from jali.errors import ParameterError, RankError
from jali.files import value_shown

if TYPE_CHECKING:
    from jali.comm.device_messages import PersistentMessage

Operation = str | Callable[[Array, Array], Array]
Counts = Sequence[int] | str | None


class Communicator:
    """A group of ranks, seen from one of them. Made by `jali.comm.current` and similar functions, not directly.

    Collectives are called by all ranks in the same order. They take C-contiguous arrays in host memory (NumPy, or
    anything with `__array_interface__`, the buffer protocol or DLPack), copy nothing, and return `out`, which they
    make if it is not given. Where ranks contribute or receive parts, these are stacked along the first axis.
    Common arguments:

    - `op`: sum, prod, min, max, avg, logical_and, logical_or, logical_xor, bit_and, bit_or, bit_xor, or an
      associative function `f(a, b)` of two arrays that returns one, `a` being of earlier ranks than `b`.
    - `commutative`: whether f(a, b) is f(b, a). Pass False for a function that is not: arrays are then combined in the order of
      ranks, as with `reproducible`; else in any order.
    - `counts`: rows (along the first axis) of each rank, where ranks differ: the same list on all ranks.
    - `reproducible`: combine in the order of ranks, so that any algorithm gives the same bits.
    - `algorithm`: as rules write it: the name of an entry of `jali.comm.algorithms`, with the transport of its messages if need be
      ("ring by nccl"), or one inside hosts and one between them ("two_level by shm and mpi"); by default rules choose.
    - `checked`: compare the calls of all ranks first, and raise `ParameterError` on every rank if they differ; by
      default whether JALI_CHECKED is set, which applies to every other call of all ranks as well. On devices, what
      runs is also proved to do what the call means before its first run (`RuntimeError` on every rank if not).
    - `blocking=False`: return a request at once, with `wait()` (which returns the result) and `test()`.
    - `stream`, for arrays on devices: the work is issued on this stream (a handle, or a stream of CuPy or PyTorch) instead of
      jali's. It first waits for the streams of the arrays' owners, and for jali's where an array is jali's, which then waits
      for it; what others do with their arrays afterwards is put in order by them. `out` must be given where there is a result.

    In place means `out=x` on all ranks, where `x` is the larger of the two buffers. `ParameterError` is raised for
    arrays of the wrong size or type, not contiguous, read-only or overlapping; `RankError` if a rank fails. In a
    function that `jali.graph` records, calls on arrays of its device, runs of plans and starts of messages are recorded
    unless they need the host; all other communication raises `RecordingError`.
    """

    def __init__(self, core: _core.Communicator, threads: int, rank_on_host: int | None = None) -> None:
        if not isinstance(core, _core.Communicator):
            raise ParameterError(
                f"a Communicator is one of the core's, as jali.comm.current() has it, not {value_shown(core)}"
            )
        self.core = core
        self.rank: int = core.rank
        self.size: int = core.size
        self.transport: str = core.transport
        self.largest_tag: int = core.largest_tag
        self.threads = threads
        self.collective_calls = _core.CollectiveCalls(core, checking.is_on())
        self.kept: dict[str, Any] = {}  # objects that others keep for it, until its deletion
        self.known_rank_on_host = rank_on_host  # None: not requested yet
        self._sharing_memory: Communicator | None = None
        self._device_messages: dict[_core.Gpu, _core.DeviceMessages] = {}

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}, transport {self.transport}>"

    @property
    def checked(self) -> bool:
        """Default of `checked`: whether calls are compared. Its initial value is whether JALI_CHECKED is set."""
        return self.collective_calls.checked

    @checked.setter
    def checked(self, on: bool) -> None:
        self.collective_calls.checked = on

    @property
    def rank_on_host(self) -> int:
        """This rank's place among the ranks on its host, by which it has its device.

        It is the same in every part of the ranks: the launcher's number of this process where it gives one, else that
        among the ranks of the communicator from which others were split. Virtual ranks are numbered on from those of
        the process, and those inside of another one are where that one is. Collective at first over ranks of one's own
        transports, then remembered.
        """
        return self._local_rank("hosts of ranks")

    def _local_rank(self, what: str) -> int:
        if self.known_rank_on_host is None:
            hosts = self.gather_bytes(_core.host_identity().encode(), what=what)
            self.known_rank_on_host = hosts[: self.rank].count(hosts[self.rank])
        return self.known_rank_on_host

    @property
    def collectives(self) -> _core.Collectives:
        """What this communicator keeps for its collectives; the first use is collective."""
        calls = self.collective_calls
        if calls.there is None:
            from jali.comm.calls import make_collectives

            graph_recorder.refuse_call("the first collective of a communicator")
            self._compare("collectives")
            calls.there = make_collectives(self.core, self.sharing_memory, "setting up collectives")
        return calls.there

    def _compare(self, call: str, **details: Any) -> None:
        """In checked mode, that all ranks make this call."""
        if self.checked:
            checking.compare(self.core, {"call": call, **details})

    @property
    def libraries(self) -> tuple[str, ...]:
        """The libraries that can carry messages of plans here; the first is the default. The first use is
        collective."""
        return tuple(name for name, _ in self.collectives.transports)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """The communicator of the ranks that give the same `color`, ordered by `key`, then by rank.

        Collective. Ranks with color None (or below 0) get None. Messages and collectives of the parts do not
        match those of this communicator; failures and departures are shared with it, and are reported in its
        numbering (in that of the outermost one, if this was split from another).
        """
        graph_recorder.refuse_call("split")
        self._compare("split")
        color = -1 if color is None else validation.whole("color", color, error=ParameterError)
        key = validation.whole("key", key, error=ParameterError)
        local_rank = self._local_rank("splitting a communicator")
        core = self.core.split(color, key)
        return None if core is None else Communicator(core, self.threads, local_rank)

    def duplicate(self) -> Communicator:
        """A communicator of the same ranks whose messages and collectives match no others. Collective."""
        graph_recorder.refuse_call("duplicate")
        self._compare("duplicate")
        local_rank = self._local_rank("duplicating a communicator")
        return Communicator(self.core.duplicate(), self.threads, local_rank)

    def sharing_memory(self) -> Communicator:
        """A communicator of the same ranks, with messages of its own, for which ranks of one host share memory.

        Transport "shm"; messages between hosts are unchanged. The first call is collective, later ones give the same
        object. A duplicate where no two ranks share memory: virtual ranks, one rank per host, or JALI_SHM=0.
        JALI_SHM_COPY chooses how messages above 8 KiB are copied: `cma` (once, by the kernel, at the request of both
        ends) or `slots` (twice, in pieces through the shared memory); unset, `cma` where the kernel permits it.
        Raises `RankError` on all ranks if the choice is not possible.
        """
        if self._sharing_memory is None:
            graph_recorder.refuse_call("sharing_memory")
            self._compare("sharing_memory")
            local_rank = self._local_rank("sharing memory")
            self._sharing_memory = Communicator(
                _core.make_host_communicator(self.core), self.threads, local_rank
            )
        return self._sharing_memory

    def barrier(self, *, checked: bool | None = None) -> None:
        """Return when every rank has called."""
        graph_recorder.refuse_call("barrier")
        if self.checked if checked is None else validation.flag("checked", checked, ParameterError):
            checking.compare(self.core, {"call": "barrier"})
        self.core.barrier()

    # --- collectives on arrays: here is what they take; what they do is in core/bind/collective_methods.cpp ---

    @_core.collective_method
    def all_reduce(
        self,
        x: Any,
        out: Any = None,
        op: Operation = "sum",
        *,
        commutative: bool = True,
        reproducible: bool = False,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
        stream: Any = None,
    ) -> Any:
        """Combine the arrays of all ranks element by element; every rank gets the result, of the shape of `x`."""

    @_core.collective_method
    def reduce(
        self,
        x: Any,
        out: Any = None,
        op: Operation = "sum",
        root: int = 0,
        *,
        commutative: bool = True,
        reproducible: bool = False,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
        stream: Any = None,
    ) -> Any:
        """Combine the arrays of all ranks on rank `root`, which gets the result; the others get None."""

    @_core.collective_method
    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
        stream: Any = None,
    ) -> Any:
        """Copy the array of rank `root` into those of all others (same size and type); returns `x`."""

    @_core.collective_method
    def all_gather(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Counts = None,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
        stream: Any = None,
    ) -> Any:
        """Stack the arrays of all ranks, in rank order, on every rank.

        Sizes may differ if `counts` gives them; `counts="exchange"` makes the ranks exchange them first. In
        place (`out=x`), `x` is the whole and this rank's rows are in it already.
        """

    @_core.collective_method
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
        stream: Any = None,
    ) -> Any:
        """Stack the arrays of all ranks on rank `root`, which gets the result; the others get None.

        `counts` as in `all_gather`.
        """

    @_core.collective_method
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
        stream: Any = None,
    ) -> Any:
        """Scatter the parts of rank `root`'s array to all ranks. The others pass None (or an empty array) and `out`.

        Parts are equal unless `counts` gives their sizes (on all ranks).
        """

    @_core.collective_method
    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        op: Operation = "sum",
        *,
        counts: Counts = None,
        commutative: bool = True,
        reproducible: bool = False,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
        stream: Any = None,
    ) -> Any:
        """Combine the arrays of all ranks; each rank gets its part of the result.

        Parts are equal unless `counts` gives their sizes (on all ranks). In place (`out=x`), the result is where
        this rank's part is; the other parts are undefined.
        """

    @_core.collective_method
    def all_to_all(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Sequence[int] | Sequence[Sequence[int]] | npt.NDArray[Any] | None = None,
        algorithm: str | None = None,
        checked: bool | None = None,
        blocking: bool = True,
        stream: Any = None,
    ) -> Any:
        """Send part j of every rank's array to rank j; the result stacks the received parts in rank order.

        Parts are equal unless `counts` is given: `counts[i][j]` rows go from rank i to rank j. A rank that has
        only its own row passes that; then the ranks exchange the counts first.
        """

    def explain(self, collective: str, *arguments: Any, **named: Any) -> str:
        """Which algorithm the call `self.<collective>(*arguments, **named)` takes, and why; on devices also what it runs on this rank.

        `world.explain("all_reduce", x, op="max")` names the algorithm or the library, the line of the rules that chose it, and
        each skipped algorithm with the reason. The arrays are neither sent nor written. Collective, like the call. Raises
        `ParameterError` where the call would, and for a name that is no collective.
        """
        from jali.comm.algorithms import COLLECTIVES

        graph_recorder.refuse_call("explain")
        if not isinstance(collective, str) or collective not in COLLECTIVES:
            raise ParameterError(
                f"there is no collective {value_shown(collective)}; there are {', '.join(COLLECTIVES)}"
            )
        return str(_core.explain_collective(self, vars(Communicator)[collective], *arguments, **named))

    def _root(self, root: Any) -> int:
        number = validation.whole("root", root, error=ParameterError)
        if not 0 <= number < self.size:
            raise ParameterError(f"root {number} does not exist among {counted(self.size, 'rank')}")
        return number

    # --- messages between two ranks ---------------------------------------------------------------------------

    def send(self, data: npt.NDArray[Any], to: int, tag: int = 0) -> _core.PendingMessage:
        """Start sending a contiguous array to rank `to`; returns a pending message for `wait`.

        The array must not change until then. Tags are 0 to `largest_tag`, which is 32767 or more. Arrays are in host
        memory; ParameterError for those of devices, which have `persistent_send`.
        """
        graph_recorder.refuse_call("send")
        if type(data) is not np.ndarray:
            _check_on_host(data, "persistent_send")
        if to is True or to is False:  # which the core would take for 1 and 0
            _check_ranks(to=to)
        try:
            return self.core.send(data, to, tag)
        except TypeError:
            _check_ranks(to=to, tag=tag)
            raise

    def receive(self, data: npt.NDArray[Any], source: int, tag: int = 0) -> _core.PendingMessage:
        """Start receiving into a contiguous array of exactly the sent size; returns a pending message.

        Messages from one rank with one tag arrive in the order sent. Arrays are in host memory, as in `send`.
        """
        graph_recorder.refuse_call("receive")
        if type(data) is not np.ndarray:
            _check_on_host(data, "persistent_receive")
        if source is True or source is False:
            _check_ranks(source=source)
        try:
            return self.core.receive(data, source, tag)
        except TypeError:
            _check_ranks(source=source, tag=tag)
            raise

    def test(self, message: _core.PendingMessage) -> bool:
        """Whether a pending message is complete; makes progress on it."""
        graph_recorder.refuse_call("test")
        try:
            return self.core.test(message)
        except TypeError:  # checked afterwards, since tests are often
            _check_pending([message])
            raise

    def wait(self, messages: Sequence[_core.PendingMessage], what: str = "messages") -> None:
        """Wait for all of these messages; `what` names them in errors.

        Raises `RankError` when a rank has failed, has ended its program, or nothing moved for JALI_WATCHDOG
        seconds.
        """
        graph_recorder.refuse_call("wait")
        pending = messages
        if type(messages) is not list:
            pending = list(messages) if validation.several(messages) else messages
        try:
            self.core.wait(pending, what)
        except TypeError:
            _check_pending(pending)
            _check_text("what", what)
            raise

    # --- messages between devices ------------------------------------------------------------------------------

    def persistent_send(
        self, x: Any, to: int, tag: int = 0, *, transport: str | None = None
    ) -> PersistentMessage:
        """The sending end of a message between devices, to be started again and again: C-contiguous `x` goes to rank `to`.

        Rank `to` makes the other end with `persistent_receive`, the same tag (any number from 0) and an array of the same
        bytes and type; ends of the same ranks and tag are matched in the order of their creation. Make all before the
        first is started: a driver may want an idle device to map memory. The first message of a communicator and device
        is collective (or `device_messages`), later ones involve only the two ranks, and making one does not wait.

        `transport`: "remote-write" (a kernel stores into the receiver's array; by default up to 4 MiB) or "copy-engine" where
        devices access each other's memory; elsewhere the first available of "nccl" ("rccl" on AMD's), "gpu-aware-mpi" (an MPI
        library that takes addresses of devices) and "host-staged" (through the host).
        `jali.tune.experiment(message_transport="nccl")` names one for all messages that do not; where devices access each
        other's memory the library is initialised only inside it. Raises `DeviceError`, on both ranks, if the named one is not
        available. Raises `ParameterError`, on both ranks at the first start, for arrays that differ in bytes or type.
        """
        graph_recorder.refuse_call("persistent_send")
        return self._end(x, to, tag, True, transport)

    def persistent_receive(
        self, x: Any, source: int, tag: int = 0, *, transport: str | None = None
    ) -> PersistentMessage:
        """The receiving end of a message between devices, into `x`; see `persistent_send`, whose transport counts."""
        graph_recorder.refuse_call("persistent_receive")
        return self._end(x, source, tag, False, transport)

    def _end(self, x: Any, peer: int, tag: int, sends: bool, transport: str | None) -> PersistentMessage:
        messages = self.device_messages(gpu_of(x))
        return messages.make(view_of(x, messages.gpu, writable=not sends), peer, tag, sends, transport)

    def start(self, messages: Sequence[PersistentMessage], stream: Any = None) -> None:
        """Put a start of each of these messages on jali's stream, or on `stream` (a handle, or one of CuPy or PyTorch).

        The host waits only at a message's first start, until its other end exists, and for "gpu-aware-mpi" (until all has been
        sent and has arrived) and "host-staged" (until all has arrived). Earlier work of the stream completes first: the
        messages send the values that it leaves, and overwrite arrays only after it. Later work of the stream begins after the
        arrays have been sent and received. So messages in both directions are started together, on both ranks, and not one
        after the other: both streams would wait for later work. Starts on one stream have the same order on both ranks. Starts
        on jali's stream are in order with the streams of the arrays' owners.

        In checked mode the first start of these messages together is proved to be in order, as `check_messages` does: it waits for
        the ranks that they connect, which start the same messages with each other at once and in the same order.

        May be captured in a graph of the driver's (not where the host waits); the messages must outlive it, and on another
        stream what they have begun. A `jali.graph` records starts on jali's stream, and keeps the messages.
        """
        try:
            _core.start_messages(messages, stream)
        except ParameterError:
            _check_ends(messages)
            raise

    def check_messages(self, messages: Sequence[PersistentMessage]) -> None:
        """Prove that starts of these messages are correct: there is no deadlock, bytes are neither read before they have
        arrived nor overwritten while they are sent, and every array receives the right ones.

        Makes a few starts and checks the driver calls of all ranks that these messages connect, together. So all of those ranks
        call this, each with the messages that it would start at once, and receiving arrays are filled. Raises `RuntimeError` on
        all of them, with the violation, and `ParameterError` where two ranks do not start the same messages with each other,
        and for messages by "host-staged".
        """
        _check_ends(messages)
        _core.check_messages(messages)

    def explain_messages(self, messages: Sequence[PersistentMessage]) -> str:
        """What a start of these messages puts on streams, a line for each step: launches, copies, groups of a library, and what
        the host does.

        It is the program that starts of these together, in this order, run, in graphs too. Waits until the other ends have been made.
        """
        _check_ends(messages)
        return _core.explain_messages(messages)

    def device_messages(self, gpu: _core.Gpu) -> _core.DeviceMessages:
        """What persistent messages on this device share. The first use is collective: for ranks that have none."""
        if not isinstance(gpu, _core.Gpu):
            raise ParameterError(
                f"messages between devices are on a device, such as lattice.gpu, not {value_shown(gpu)}"
            )
        if gpu not in self._device_messages:
            graph_recorder.refuse_call("device_messages")
            self._compare("device_messages")
            self._device_messages[gpu] = _core.DeviceMessages(gpu, self.core)
        return self._device_messages[gpu]

    # --- control plane ----------------------------------------------------------------------------------------

    def gather_bytes(self, data: bytes, *, what: str = "") -> list[bytes]:
        """The byte strings of all ranks, in rank order; lengths may differ.

        `what`, the same on all ranks, names the purpose in errors.
        """
        graph_recorder.refuse_call("gather_bytes")
        _check_bytes("gather_bytes", data)
        what = _check_text("what", what)
        self._compare(what or "gather_bytes")
        return self.core.gather_bytes(data, what)

    def broadcast_bytes(self, data: bytes, root: int) -> bytes:
        """The byte string that rank `root` passed; what the others pass is ignored."""
        graph_recorder.refuse_call("broadcast_bytes")
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
        graph_recorder.refuse_call("all_reduce_sum")
        array = np.asarray(values)
        if array.dtype.kind not in "iub":
            raise TypeError(f"all_reduce_sum takes integers, not {array.dtype}; use Lattice.sum for fields")
        total = np.array(array, dtype=np.int64, order="C", copy=True)
        self._compare("all_reduce_sum", count=total.size)
        self.core.all_reduce_sum(total.reshape(-1))
        return total

    def fail(self, cause: str) -> None:
        """Notify all other ranks that this one cannot continue; they raise `RankError` with this cause.

        Only the first failure in the group counts. This rank's own later calls raise as well.
        """
        self.core.fail(_check_text("cause", cause))

    def check(self) -> None:
        """Raise `RankError` if a rank has failed; for long work without communication."""
        self.core.check()


def _check_on_host(x: Any, instead: str) -> None:
    if is_on_device(x):
        raise ParameterError(
            f"a {type(x).__name__} is in device memory; messages between devices are made once, by {instead}, "
            "and started"
        )


def _check_ranks(**numbers: Any) -> None:
    for name, value in numbers.items():
        validation.whole(name, value, error=ParameterError)


def _check_pending(messages: Any) -> None:
    if not validation.several(messages) or not all(isinstance(one, _core.PendingMessage) for one in messages):
        raise ParameterError(f"messages are what send and receive returned, not {value_shown(messages)}")


def _check_ends(messages: Any) -> None:
    if not isinstance(messages, Sequence) or not all(
        isinstance(m, _core.PersistentMessage) for m in messages
    ):
        raise ParameterError(
            "messages are a list of ends that persistent_send and persistent_receive made, not "
            f"{value_shown(messages)}"
        )


def _check_text(name: str, value: Any) -> str:
    """The text, in characters that the core can hold. Raises ParameterError."""
    if not isinstance(value, str):
        raise ParameterError(f"{name} is a text, not {value_shown(value)}")
    return value.encode(errors="backslashreplace").decode()


def _check_bytes(call: str, data: Any) -> None:
    if not isinstance(data, bytes):
        raise ParameterError(f"{call} takes bytes, not {value_shown(data)}")


def came_from_elsewhere(error: BaseException, rank: int) -> bool:
    """Whether this error only reports the failure of another rank than `rank`."""
    return isinstance(error, RankError) and getattr(error, "rank", rank) != rank


def as_cause(error: BaseException) -> str:
    """One line about an error, as the other ranks will read it."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text}" if text else name
