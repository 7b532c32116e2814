"""Collectives on arrays in device memory, done by NCCL (CUDA) or RCCL (HIP).

The same verbs as `Communicator`, for one GPU per rank. A call returns when the work is on a stream; the host waits
with `synchronize`, which also hears of other ranks' failures and ends after JALI_WATCHDOG seconds. The library is
found at run time: JALI_NCCL or JALI_RCCL, the nvidia-nccl package, or where the machine has it.

RCCL has never run on hardware.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from jali import _core, recording
from jali.amounts import counted
from jali.comm.ccl_library import library_communicator
from jali.comm.communicator import Communicator
from jali.comm.device_arrays import DeviceArray, DeviceView, stream_handle, view_of
from jali.comm.elements import SIZES, element_name
from jali.errors import ParameterError
from jali.vendors import vendor


class CclCommunicator:
    """The GPUs of the ranks of a `Communicator`, one each. Collective, like all of its methods but `check` and waits.

    The library's communicator is made once for these ranks and the device, and shared with halos, messages and other
    collectives that go by the library: all ranks issue all of these in the same order. It ends with `communicator`; one of its
    own belongs to `communicator.duplicate()`.

    Arrays are `DeviceArray`s, or arrays of CuPy, PyTorch and the like on this rank's device; C-contiguous, not copied.
    Results are `out`, or a new `DeviceArray`. Where ranks contribute or receive parts, these
    are stacked along the first axis; `counts` are rows of each rank where these differ, the same on all ranks.
    In place means `out=x`, where `x` is the larger of the two.

    Work goes on jali's stream, which first waits for the streams of the arrays; these (or the default stream, where
    an array does not say) wait for the result. With `stream` (a handle, or a stream of CuPy or PyTorch) it goes there
    instead, and `out` must be given.

    All element types move. What is combined must be integers of 8, 32 or 64 bits or floating-point numbers, with
    `op` sum, prod, min, max or avg (no integers); complex numbers have sum and avg. `DeviceError` says what the library or
    the device cannot do, and is raised when they report an error; this communicator is then of no more use, and the
    other ranks get `RankError`. `ParameterError`: arrays or arguments that do not fit.
    """

    def __init__(self, communicator: Communicator, gpu: _core.Gpu) -> None:
        """Raises `DeviceError` on all ranks: no library, different versions, two ranks on one GPU."""
        recording.refuse_call("CclCommunicator")
        self.communicator = communicator
        self.gpu = gpu
        self.rank, self.size = communicator.rank, communicator.size
        self.core = library_communicator(communicator.core, gpu)
        self._groups = 0  # that are open
        self._calls: list[_Arrays] = []  # in them

    def __repr__(self) -> str:
        name, version, _ = self.core.library
        return f"<rank {self.rank} of {self.size} on {self.gpu.name}, {name} {version}>"

    @contextmanager
    def group(self) -> Iterator[None]:
        """What is called inside becomes one operation at the end: for ranks that send and receive in turn."""
        self.core.group_start()
        self._groups += 1
        try:
            yield
        except BaseException:
            self.core.group_drop()
            self._groups = 0
            self._calls.clear()
            raise
        self._groups -= 1
        self.core.group_end()
        if self._groups == 0:
            for call in self._calls:
                call.order()
            self._calls.clear()

    # --- operations ------------------------------------------------------------------------------------------

    def send(self, x: Any, to: int, *, stream: Any = None) -> None:
        """Send an array to rank `to`, whose `receive` waits for the same bytes."""
        self._check_rank(to)
        with _Arrays(self, stream) as on:
            view = on.source(x)
            self.core.send(view.address, view.size, view.element, to, on.stream)

    def receive(self, out: Any, source: int, *, stream: Any = None) -> Any:
        """Receive into an array what rank `source` sends; returns `out`."""
        self._check_rank(source)
        with _Arrays(self, stream) as on:
            view = on.target(out)
            self.core.receive(view.address, view.size, view.element, source, on.stream)
        return out

    def all_reduce(self, x: Any, out: Any = None, op: str = "sum", *, stream: Any = None) -> Any:
        """Combine the arrays of all ranks element by element; every rank gets the result, of the shape of `x`."""
        with _Arrays(self, stream) as on:
            view = on.source(x)
            self._check_combines(view, op)
            out, target = on.result(x, out, view, view.shape)
            self.core.all_reduce(view.address, target.address, view.size, view.element, op, on.stream)
        return out

    def reduce(self, x: Any, out: Any = None, op: str = "sum", root: int = 0, *, stream: Any = None) -> Any:
        """Combine the arrays of all ranks on rank `root`, which gets the result; the others get None."""
        self._check_rank(root)
        with _Arrays(self, stream) as on:
            view = on.source(x)
            self._check_combines(view, op)
            address = 0
            if self.rank == root:
                out, target = on.result(x, out, view, view.shape)
                address = target.address
            self.core.reduce(view.address, address, view.size, view.element, op, root, on.stream)
        return out if self.rank == root else None

    def broadcast(self, x: Any, root: int = 0, *, stream: Any = None) -> Any:
        """Copy the array of rank `root` into those of all others (same size and type); returns `x`."""
        self._check_rank(root)
        with _Arrays(self, stream) as on:
            view = on.source(x) if self.rank == root else on.target(x)
            self.core.broadcast(view.address, view.size, view.element, root, on.stream)
        return x

    def reduce_scatter(self, x: Any, out: Any = None, op: str = "sum", *, stream: Any = None) -> Any:
        """Combine the arrays of all ranks; each rank gets its part of the result. Parts are equal."""
        with _Arrays(self, stream) as on:
            view = on.source(x)
            self._check_combines(view, op)
            part = (self._equal_part(view), *view.shape[1:])
            if out is x:  # the result is where this rank's part is
                address = on.target(x).address + self.rank * math.prod(part) * SIZES[view.element]
            else:
                out, target = on.result(x, out, view, part)
                address = target.address
            self.core.reduce_scatter(view.address, address, math.prod(part), view.element, op, on.stream)
        return out

    def all_gather(
        self, x: Any, out: Any = None, *, counts: Sequence[int] | None = None, stream: Any = None
    ) -> Any:
        """Stack the arrays of all ranks, in rank order, on every rank."""
        with _Arrays(self, stream) as on:
            view = on.source(x)
            if out is x:  # this rank's rows are in it
                rows = self._parts(view, counts)
                address, target = view.address, on.target(x)
                address += sum(rows[: self.rank]) * _row(view.shape) * SIZES[view.element]
            else:
                rows, address = self._rows(view, counts), view.address
                out, target = on.result(x, out, view, (sum(rows), *view.shape[1:]))
            self.core.all_gather(address, target.address, self._elements(view, rows), view.element, on.stream)
        return out

    def gather(
        self,
        x: Any,
        out: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        stream: Any = None,
    ) -> Any:
        """Stack the arrays of all ranks on rank `root`, which gets the result; the others get None."""
        self._check_rank(root)
        with _Arrays(self, stream) as on:
            view = on.source(x)
            rows = self._rows(view, counts)
            address = 0
            if self.rank == root:
                out, target = on.result(x, out, view, (sum(rows), *view.shape[1:]))
                address = target.address
            self.core.gather(view.address, address, self._elements(view, rows), view.element, root, on.stream)
        return out if self.rank == root else None

    def scatter(
        self,
        x: Any,
        out: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        stream: Any = None,
    ) -> Any:
        """Hand the parts of rank `root`'s array to all ranks. The others pass None and `out`."""
        self._check_rank(root)
        with _Arrays(self, stream) as on:
            if self.rank == root:
                view = on.source(x)
                rows = self._parts(view, counts)
                out, target = on.result(x, out, view, (rows[self.rank], *view.shape[1:]))
                address, like = view.address, view
            else:
                if out is None:
                    raise ParameterError(
                        f"rank {self.rank} receives from rank {root} in a scatter and needs `out`"
                    )
                like = target = on.target(out)
                rows = self._rows(target, counts)
                address = 0
            self.core.scatter(
                address, target.address, self._elements(like, rows), like.element, root, on.stream
            )
        return out

    def all_to_all(
        self, x: Any, out: Any = None, *, counts: Sequence[Sequence[int]] | None = None, stream: Any = None
    ) -> Any:
        """Send part j of every rank's array to rank j; the result stacks what came, in rank order.

        Parts are equal unless `counts` says otherwise: `counts[i][j]` rows go from rank i to rank j.
        """
        if out is x:
            raise ParameterError("an all_to_all cannot work in place; give another `out`, or none")
        with _Arrays(self, stream) as on:
            view = on.source(x)
            row = _row(view.shape)
            if counts is None:
                count = self._equal_part(view) * row
                out, target = on.result(x, out, view, view.shape)
                self.core.all_to_all(view.address, target.address, count, view.element, on.stream)
                return out
            matrix = np.asarray(counts)
            if matrix.shape != (self.size, self.size) or matrix.min(initial=0) < 0:
                raise ParameterError(
                    f"counts of shape {matrix.shape} for {counted(self.size, 'rank')}; give a row of numbers from 0 for each"
                )
            sent = [int(n) for n in matrix[self.rank]]
            received = [int(n) for n in matrix[:, self.rank]]
            if sum(sent) != _rows_of(view.shape):
                raise ParameterError(f"rank {self.rank} sends {sum(sent)} rows, but has shape {view.shape}")
            out, target = on.result(x, out, view, (sum(received), *view.shape[1:]))
            self.core.all_to_all_v(
                view.address,
                target.address,
                [n * row for n in sent],
                [n * row for n in received],
                view.element,
                on.stream,
            )
        return out

    # --- memory that the library knows -------------------------------------------------------------------------

    def symmetric(self, shape: Sequence[int], dtype: npt.DTypeLike) -> DeviceArray:
        """A new array, of the same shape and type on all ranks, in memory that the library has registered as a symmetric window.

        Collectives between such arrays (both, where there are two) go by the library's kernels for symmetric memory, which are
        faster; they are arrays like others besides. Each takes whole pages of 2 MiB. Its memory is used again, or given up, at the
        first later call of `symmetric` for which all ranks have let it go. Raises `DeviceError` where there are no windows,
        and `ParameterError` where ranks want different sizes, on all ranks.
        """
        recording.refuse_call("symmetric")
        nbytes = math.prod(shape) * SIZES[element_name(dtype)]
        try:
            memory = self.core.symmetric(nbytes)
        except ValueError as error:
            raise ParameterError(str(error)) from None
        return DeviceArray(self.gpu, memory, shape, dtype)

    def why_not_symmetric(self) -> str:
        """Why there is no symmetric memory here: the library is older than NCCL 2.27, the driver has no memory with handles, or
        the library makes no windows between these devices. Empty where there is, as far as was tried. The same on all ranks."""
        return str(self.core.why_no_windows)

    # --- waiting ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `DeviceError` if the library has met an error since, `RankError` if another rank has failed."""
        self.core.check()

    def synchronize(self, what: str = "collectives", *, stream: Any = None) -> None:
        """Wait, on the host, for all work so far on jali's stream (or on `stream`); `what` names it in errors."""
        recording.refuse_call("synchronize")
        self.core.synchronize(what, stream_handle(stream))

    def wait(self, event: _core.GpuEvent, what: str = "collectives") -> None:
        """Wait, on the host, for a recorded event, like `synchronize`."""
        recording.refuse_call("wait")
        self.core.wait(event, what)

    # --- arguments -------------------------------------------------------------------------------------------

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ParameterError(f"rank {rank} does not exist among {counted(self.size, 'rank')}")

    def _check_combines(self, view: DeviceView, op: str) -> None:
        try:
            self.core.check_combines(view.element, op)
        except ValueError as error:
            raise ParameterError(str(error)) from None

    def _equal_part(self, view: DeviceView) -> int:
        rows = _rows_of(view.shape)
        if rows % self.size:
            raise ParameterError(f"{rows} rows (shape {view.shape}) are no {self.size} equal parts")
        return rows // self.size

    def _checked(self, counts: Sequence[int]) -> list[int]:
        if len(counts) != self.size or any(n < 0 for n in counts):
            raise ParameterError(
                f"counts {list(counts)} for {counted(self.size, 'rank')}; give a number from 0 for each"
            )
        return [int(n) for n in counts]

    def _rows(self, view: DeviceView, counts: Sequence[int] | None) -> list[int]:
        """Rows of all ranks, where `view` is this rank's part."""
        mine = _rows_of(view.shape)
        rows = [mine] * self.size if counts is None else self._checked(counts)
        if rows[self.rank] != mine:
            raise ParameterError(
                f"counts {rows} mean {rows[self.rank]} rows on rank {self.rank}, the array has shape {view.shape}"
            )
        return rows

    def _parts(self, view: DeviceView, counts: Sequence[int] | None) -> list[int]:
        """Rows of all ranks, where `view` is the whole."""
        rows = [self._equal_part(view)] * self.size if counts is None else self._checked(counts)
        if sum(rows) != _rows_of(view.shape):
            raise ParameterError(f"counts {rows} do not fit an array of shape {view.shape}")
        return rows

    def _elements(self, view: DeviceView, rows: Sequence[int]) -> list[int]:
        return [n * _row(view.shape) for n in rows]


class _Arrays:
    """The arrays of one call, which live until it is on its stream, and the order of that stream with theirs."""

    def __init__(self, owner: CclCommunicator, stream: Any) -> None:
        recording.refuse_call("an operation of a CclCommunicator")
        self.owner = owner
        self.gpu = owner.gpu
        self.stream = stream_handle(stream)
        self.views: list[DeviceView] = []

    def __enter__(self) -> _Arrays:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None and self.owner._groups:
            self.owner._calls.append(self)  # nothing is on the stream before the group ends
        elif error is None:
            self.order()

    def order(self) -> None:
        """From here on the streams of the arrays wait for the call."""
        default = vendor(self.gpu.kind).default_stream
        theirs = {default if view.stream is None else view.stream for view in self.views}
        if self.stream is None:
            for handle in theirs - {self.gpu.stream}:
                self.gpu.let_wait(handle)
        elif self.gpu.stream in theirs:
            self.gpu.wait_for(self.stream)  # arrays of jali that are used on another stream

    def source(self, x: Any, writable: bool = False) -> DeviceView:
        view = view_of(x, self.gpu, self.stream, writable)
        self.views.append(view)
        return view

    def target(self, out: Any) -> DeviceView:
        return self.source(out, writable=True)

    def result(self, x: Any, out: Any, view: DeviceView, shape: tuple[int, ...]) -> tuple[Any, DeviceView]:
        """`out` (new, if None), checked to have this shape's size and the type of `view`."""
        if out is x:
            target = self.target(out)
        elif out is None:
            if self.stream is not None:
                raise ParameterError("a result on another stream than jali's needs `out`")
            out = DeviceArray.empty(self.gpu, shape, view.element, "collective")
            target = self.source(out)
        else:
            target = self.target(out)
        if target.element != view.element:
            raise ParameterError(
                f"the result is to be {target.element}, but {view.element} is sent; make them alike"
            )
        if target.size != math.prod(shape):
            raise ParameterError(f"`out` of shape {target.shape} cannot hold a result of shape {shape}")
        return out, target


def _rows_of(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 1


def _row(shape: tuple[int, ...]) -> int:
    return math.prod(shape[1:])
