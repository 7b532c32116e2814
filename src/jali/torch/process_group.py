"""The process group: PyTorch's calls as jali's, on the host and on devices.

Every call is a `_Step`: tensors it reads and writes, and what it does with a communicator. Steps of the host go to the group's
thread, which makes them in order; a call that its caller waits for anyway is made at once, by the caller. Steps of devices
are put on a stream: the caller's, or for `async_op` one of the group's that begins where the caller's is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from jali import settings
from jali.comm.communicator import Communicator
from jali.comm.sockets import SocketTransport
from jali.errors import ParameterError
from jali.torch import tensors as of
from jali.torch import threads
from jali.torch.work import DeviceWork, Together, Work

_LONGEST_SHUTDOWN = 4.0  # seconds for calls under way when a group is shut down


@dataclass
class _Step:
    """Part of a call: `begin` brings together what is read, `start` gives requests, `end` brings what came to its tensors."""

    start: Callable[[Communicator, dict[str, Any]], Any]  # with stream= and blocking= of jali's collectives
    begin: Callable[[], None] = lambda: None
    end: Callable[[], None] = lambda: None
    kept: list[Any] = field(default_factory=list)


@dataclass
class _Batch:
    """What is called between `_start_coalescing` and `_end_coalescing`."""

    steps: list[_Step] = field(default_factory=list)
    written: list[Any] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)


class ProcessGroup(dist.ProcessGroup):
    """A group of ranks for `torch.distributed`, backend "jali". Made by `init_process_group` and `new_group`."""

    supports_coalescing = True
    supports_splitting = False
    supports_time_estimate = False

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta | None = None, name: str = "jali"
    ) -> None:
        super().__init__(rank, size)  # with a store as well the class could not be derived from
        self._store = store
        self._name, self._description = name, "undefined"
        self._timeout = timeout or dist.constants.default_pg_timeout
        self._calls = 0
        self._barriers = 0
        self._batch: _Batch | None = None
        self._streams: dict[torch.device, Any] = {}
        self._ended = False
        self._failing = False
        self._threads: list[threads.GroupThread] = []
        if size > 1:  # a rank has no messages to itself
            self._messages = threads.MessageThread(
                f"jali messages {name}", lambda: self._connect("messages"), self._fail
            )
            self._threads.append(self._messages)
        self._collectives = threads.CollectiveThread(
            f"jali collectives {name}", lambda: self._connect("collectives"), self._fail
        )
        self._threads.append(self._collectives)
        for thread in self._threads:
            thread.await_ready()
        threads.end_with_program(self)

    def _connect(self, purpose: str) -> SocketTransport:
        def find(key: str) -> str:
            self._store.wait([f"{purpose}/{key}"], self._timeout)
            return self._store.get(f"{purpose}/{key}").decode()

        return SocketTransport(
            self.rank(),
            self.size(),
            lambda key, text: self._store.set(f"{purpose}/{key}", text),
            find,
            settings.environment().get("MASTER_ADDR", ""),
            self._timeout.total_seconds(),
        )

    # --- what PyTorch asks a backend --------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return "jali"

    name = _get_backend_name = getBackendName

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, text: str) -> None:
        self._description = text

    def getGroupDesc(self) -> str:
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        return self

    def get_group_store(self) -> Any:
        return self._store

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def _has_hooks(self) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """For calls from now on."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        self._calls = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def get_error(self) -> Any:
        failure = self._collectives.failure
        return c10d.ErrorType.SUCCESS if failure is None else c10d.ErrorType.COMM_ERROR

    # --- the end ----------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        if self._failing:
            return
        self._failing = True
        for thread in self._threads:
            thread.fail(error)

    def abort(self) -> None:
        """Every call, those under way too, raises from now on; the other ranks are told."""
        self._fail(dist.DistBackendError(f"rank {self.rank()} called abort()"))
        self._stop(threads.PATIENCE)

    def shutdown(self) -> None:
        """Ends the group when the calls under way have been made, or else fails them after some seconds."""
        if not self._stop(_LONGEST_SHUTDOWN):
            self.abort()

    def _stop(self, seconds: float) -> bool:
        if self._ended:
            return True
        self._ended = all([thread.stop(seconds / len(self._threads)) for thread in self._threads])
        return self._ended

    # --- how calls are made -----------------------------------------------------------------------------------

    def _issue(
        self, what: str, written: Sequence[Any], steps: Sequence[_Step], device: torch.device, options: Any
    ) -> Work | None:
        if self._batch is not None:
            self._batch.steps.extend(steps)
            self._batch.written.extend(written)
            return None
        self._calls += 1
        what = f"{what} (call {self._calls} of this group) on rank {self.rank()}"
        waited_for = not getattr(options, "asyncOp", True)
        if device.type != "cpu":
            return self._put_on_stream(what, written, steps, device, waited_for, self._seconds(options))
        work = Work(what, written, self._calls)

        def make(world: Communicator) -> None:
            for step in steps:
                step.begin()
            if len(steps) == 1:
                steps[0].start(world, {})
            else:
                for request in [step.start(world, {"blocking": False}) for step in steps]:
                    request.wait()
            for step in steps:
                step.end()

        self._collectives.issue(threads.Call(work, make, self._seconds(options)), waited_for)
        return work

    def _seconds(self, options: Any) -> float:
        own = getattr(options, "timeout", None)
        return (own if own is not None and own > timedelta(0) else self._timeout).total_seconds()

    def _put_on_stream(
        self,
        what: str,
        written: Sequence[Any],
        steps: Sequence[_Step],
        device: torch.device,
        waited_for: bool,
        limit: float,
    ) -> Work:
        stream = current = torch.cuda.current_stream(device)
        if not waited_for:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
            stream = self._streams[device]
            stream.wait_stream(current)

        def put(world: Communicator) -> DeviceWork:
            with torch.cuda.stream(stream):
                for step in steps:
                    step.begin()
                how = {"stream": stream.cuda_stream, "blocking": False}
                requests = [step.start(world, how) for step in steps]
                for step in steps:
                    step.end()
                return DeviceWork(what, written, self._calls, stream, requests, steps)

        return self._collectives.enqueue(put, limit)

    def _start_coalescing(self, device: torch.device) -> None:
        if self._batch is not None:
            raise ParameterError("coalescing has been started already; end it first")
        self._batch = _Batch()

    def _end_coalescing(self, device: torch.device) -> Work | None:
        """Starts what was called since `_start_coalescing` together."""
        if self._batch is None:
            raise ParameterError("coalescing was not started")
        batch, self._batch = self._batch, None
        works = batch.messages
        if batch.steps:
            what = f"{len(batch.steps)} coalesced calls"
            works = [*works, self._issue(what, batch.written, batch.steps, device, None)]
        return Together("coalesced calls", works) if len(works) > 1 else works[0] if works else None

    # --- reductions -------------------------------------------------------------------------------------------

    def _reduction(self, tensor: Any, op: Any, root: int | None = None) -> _Step:
        written = of.Written([tensor])
        word, factor = of.operation(op, written.row.dtype)
        receives = root is None or root == self.rank()
        row: list[torch.Tensor] = []

        def begin() -> None:
            numbers = written.begin()
            if factor is not None:
                numbers = numbers.mul_(factor) if receives else numbers * factor
            row[:] = [numbers]

        def start(world: Communicator, how: dict[str, Any]) -> Any:
            x = of.as_numbers(row[0])
            if root is None:
                return world.all_reduce(x, x, word, **how)
            return world.reduce(x, x if receives else None, word, root, **how)

        return _Step(start, begin, written.end if receives else lambda: None, [written, row])

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllreduceOptions()
        (tensor,) = _list(tensors)
        step = self._reduction(tensor, opts.reduceOp)
        return self._issue("allreduce", [tensor], [step], tensor.device, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllreduceCoalescedOptions()
        steps = [self._reduction(tensor, opts.reduceOp) for tensor in tensors]
        return self._issue("allreduce_coalesced", tensors, steps, tensors[0].device, opts)

    def reduce(self, tensors: Any, opts: Any) -> Any:
        (tensor,) = _list(tensors)
        root = self._root(opts.rootRank)
        return self._issue(
            "reduce", [tensor], [self._reduction(tensor, opts.reduceOp, root)], tensor.device, opts
        )

    def _scattered_reduction(self, output: Any, inputs: Sequence[Any], op: Any) -> _Step:
        into = of.Written([output])
        word, factor = of.operation(op, into.row.dtype)
        counts = self._counts([one.numel() for one in inputs]) if len(inputs) > 1 else None
        total = sum(one.numel() for one in inputs)
        mine = counts[self.rank()] if counts else total // self.size()
        if (counts is None and total % self.size()) or mine != output.numel():
            raise ParameterError(
                f"reduce_scatter of {total} numbers over {self.size()} ranks gives rank {self.rank()} "
                f"{counts[self.rank()] if counts else total / self.size():g}; its output has {output.numel()}"
            )
        _same_type([output, *inputs])
        row: list[torch.Tensor] = []

        def begin() -> None:
            numbers = of.joined(inputs)
            row[:] = [numbers if factor is None else numbers * factor]

        def start(world: Communicator, how: dict[str, Any]) -> Any:
            return world.reduce_scatter(
                of.as_numbers(row[0]), of.as_numbers(into.row), word, counts=counts, **how
            )

        return _Step(start, begin, into.end, [into, row])

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        (output,), (parts,) = _list(outputs), inputs if isinstance(inputs[0], list) else [inputs]
        self._one_each("reduce_scatter", parts)
        step = self._scattered_reduction(output, parts, opts.reduceOp)
        return self._issue("reduce_scatter", [output], [step], output.device, opts)

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        step = self._scattered_reduction(output, [input], opts.reduceOp)
        return self._issue("reduce_scatter_single", [output], [step], output.device, opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        steps = [
            self._scattered_reduction(output, [one], opts.reduceOp)
            for output, one in zip(outputs, inputs, strict=True)
        ]
        return self._issue("reduce_scatter_tensor_coalesced", outputs, steps, outputs[0].device, opts)

    # --- what only moves --------------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.BroadcastOptions()
        (tensor,) = _list(tensors)
        root = self._root(opts.rootRank)
        written = of.Written([tensor])
        step = _Step(
            lambda world, how: world.broadcast(of.as_bytes(written.row), root, **how),
            lambda: _do(written.begin),
            written.end,
            [written],
        )
        return self._issue("broadcast", [tensor], [step], tensor.device, opts)

    def _gathering(
        self, outputs: Sequence[Any] | None, one: Any, root: int | None = None, split: bool = True
    ) -> _Step:
        """`outputs`: one tensor per rank, or, not `split`, one for all; None on ranks that do not receive."""
        into = of.Written(outputs) if outputs is not None else None
        counts = None
        if outputs is not None and split:
            self._one_each("gathering", outputs)
            if outputs[self.rank()].numel() != one.numel():
                raise ParameterError(
                    f"rank {self.rank()} gives {one.numel()} numbers, and has room for {outputs[self.rank()].numel()} of its own"
                )
            if root is None:
                counts = self._counts([output.nbytes for output in outputs])
            elif any(output.numel() != one.numel() for output in outputs):
                raise ParameterError("gather takes tensors of one size on all ranks")
        elif into is not None and into.row.numel() != self.size() * one.numel():
            raise ParameterError(
                f"{self.size()} ranks with {one.numel()} numbers each have {self.size() * one.numel()}; the output has {into.row.numel()}"
            )
        if outputs is not None:
            _same_type([one, *outputs])
        row: list[torch.Tensor] = []

        def start(world: Communicator, how: dict[str, Any]) -> Any:
            out = of.as_bytes(into.row) if into is not None else None
            if root is not None:
                return world.gather(of.as_bytes(row[0]), out, root, **how)
            # A part of the output that is the input already is in place.
            x = of.as_bytes(row[0])
            if into is not None and not into.copies and counts is None:
                begin = into.row.data_ptr() + self.rank() * x.nbytes
                if row[0].data_ptr() == begin:
                    x = out
            return world.all_gather(x, out, counts=counts, **how)

        return _Step(
            start,
            lambda: row.__setitem__(slice(None), [of.to_read(one)]),
            into.end if into else _nothing,
            [into, row],
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        (one,) = _list(inputs)
        (parts,) = outputs if isinstance(outputs[0], list) else [outputs]
        return self._issue("allgather", parts, [self._gathering(parts, one)], one.device, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`outputs[r][k]`, as gloo's backend has it, or `outputs[k][r]`: with as many tensors as ranks, the former."""
        if len(outputs) == self.size() and all(len(parts) == len(inputs) for parts in outputs):
            outputs = [[parts[k] for parts in outputs] for k in range(len(inputs))]
        steps = [self._gathering(parts, one) for parts, one in zip(outputs, inputs, strict=True)]
        written = [one for parts in outputs for one in parts]
        return self._issue("allgather_coalesced", written, steps, inputs[0].device, opts)

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        step = self._gathering([output], input, split=False)
        return self._issue("all_gather_single", [output], [step], input.device, opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        steps = [
            self._gathering([output], one, split=False) for output, one in zip(outputs, inputs, strict=True)
        ]
        return self._issue("allgather_into_tensor_coalesced", outputs, steps, inputs[0].device, opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        (one,) = _list(inputs)
        root = self._root(opts.rootRank)
        parts = (outputs[0] if isinstance(outputs[0], list) else outputs) if root == self.rank() else None
        step = self._gathering(parts, one, root)
        return self._issue("gather", parts or [], [step], one.device, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        (output,) = _list(outputs)
        root = self._root(opts.rootRank)
        into = of.Written([output])
        parts = None
        if root == self.rank():
            parts = inputs[0] if isinstance(inputs[0], list) else inputs
            self._one_each("scatter", parts)
            _same_type([output, *parts])
            if any(part.numel() != output.numel() for part in parts):
                raise ParameterError("scatter takes tensors of one size, that of the output")
        row: list[torch.Tensor] = []

        def begin() -> None:
            row[:] = [of.joined(parts)] if parts else []

        def start(world: Communicator, how: dict[str, Any]) -> Any:
            return world.scatter(of.as_bytes(row[0]) if row else None, of.as_bytes(into.row), root, **how)

        return self._issue(
            "scatter", [output], [_Step(start, begin, into.end, [into, row])], output.device, opts
        )

    def _exchange(
        self,
        outputs: Sequence[Any],
        inputs: Sequence[Any],
        sent: Sequence[int] | None,
        received: Sequence[int] | None,
    ) -> _Step:
        """`sent` and `received` are the bytes to and from each rank; None where all are equal."""
        _same_type([*outputs, *inputs])
        into = of.Written(outputs)
        row: list[torch.Tensor] = []

        def start(world: Communicator, how: dict[str, Any]) -> Any:
            x, out = of.as_bytes(row[0]), of.as_bytes(into.row)
            counts = None
            if sent is not None:  # every rank knows its row and its column
                rows = world.gather_bytes(_numbers(sent), what="sizes of an all-to-all")
                counts = [_read_numbers(one) for one in rows]
                came = [one[world.rank] for one in counts]
                if list(received or ()) != came:
                    raise ParameterError(
                        f"rank {world.rank} has room for {list(received or ())} bytes of the ranks, which send it {came}"
                    )
            return world.all_to_all(x, out, counts=counts, **how)

        return _Step(start, lambda: row.__setitem__(slice(None), [of.joined(inputs)]), into.end, [into, row])

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        self._one_each("alltoall", inputs)
        self._one_each("alltoall", outputs)
        step = self._exchange(
            outputs, inputs, [one.nbytes for one in inputs], [one.nbytes for one in outputs]
        )
        return self._issue("alltoall", outputs, [step], inputs[0].device, opts)

    def alltoall_base(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Any:
        sent = self._split_bytes(input, input_splits)
        received = self._split_bytes(output, output_splits)
        equal = not input_splits and not output_splits
        step = self._exchange([output], [input], None if equal else sent, None if equal else received)
        return self._issue("alltoall_base", [output], [step], input.device, opts)

    def _split_bytes(self, tensor: Any, splits: Any) -> list[int]:
        rows = tensor.shape[0] if tensor.dim() else 1
        splits = list(splits or ())
        if not splits:
            if rows % self.size():
                raise ParameterError(
                    f"{rows} rows are no equal parts for {self.size()} ranks; give the sizes"
                )
            splits = [rows // self.size()] * self.size()
        if len(splits) != self.size() or sum(splits) != rows or min(splits) < 0:
            raise ParameterError(f"{splits} are no parts of {rows} rows for {self.size()} ranks")
        each = tensor.nbytes // rows if rows else 0
        return [each * count for count in splits]

    def barrier(self, opts: Any = None) -> Any:
        """When it has ended all ranks have called it, and this rank's current stream had done its work before."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        return self._issue(
            "barrier", [], [_Step(lambda world, how: _Barrier(world))], torch.device("cpu"), opts
        )

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier of the host in which rank 0 says which ranks did not come: the first, or all with `wait_all_ranks`."""
        limit = timeout if timeout is not None and timeout > timedelta(0) else self._timeout
        self._barriers += 1
        key = f"monitored barrier {self._barriers}"
        self._store.set(f"{key}/{self.rank()}", "")
        missing: list[int] = []
        if self.rank() != 0:
            try:
                self._store.wait([f"{key}/all"], 2 * limit)  # rank 0 says it to the last
            except RuntimeError as error:  # stores have no better one in common
                raise dist.DistBackendError(f"rank 0 did not come to a monitored barrier: {error}") from error
            told = self._store.get(f"{key}/all").decode()
        else:
            for rank in range(1, self.size()):
                if missing and not wait_all_ranks:
                    break
                try:
                    self._store.wait([f"{key}/{rank}"], timedelta(milliseconds=1) if missing else limit)
                except RuntimeError:
                    missing.append(rank)
            told = f"ranks {', '.join(map(str, missing))} did not come to a monitored barrier in {limit.total_seconds():g} s"
            told = told if missing else ""
            self._store.set(f"{key}/all", told)
        if told:
            raise dist.DistBackendError(told)

    # --- messages between two ranks ---------------------------------------------------------------------------

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        (tensor,) = _list(tensors)
        self._peer(to)
        row = of.to_read(tensor).cpu()  # of a device: waits for its stream
        return self._issue_message(f"send to rank {to}", tensor, row, to, tag, True)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        (tensor,) = _list(tensors)
        self._peer(source)
        return self._issue_message(f"recv from rank {source}", tensor, None, source, tag, False)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        (tensor,) = _list(tensors)
        return self._issue_message("recv from any rank", tensor, None, -1, tag, False)

    def _issue_message(
        self, what: str, tensor: Any, row: torch.Tensor | None, peer: int, tag: int, sends: bool
    ) -> Work:
        if self.size() == 1:
            raise ParameterError("the only rank of a group has nobody to send to, or to receive from")
        work = Work(f"{what} with tag {tag} on rank {self.rank()}", [tensor])
        done = _nothing
        if row is None:
            into = of.Written([tensor])
            row = into.row
            if row.device.type != "cpu":
                row = torch.empty(row.shape, dtype=row.dtype)

            def done() -> None:
                if row.device != into.row.device:
                    into.row.copy_(row)
                into.end()

        message = threads.Message(work, of.as_bytes(row), peer, int(tag), self._timeout.total_seconds())
        message.done = done
        self._messages.issue(message, sends)
        if self._batch is not None:  # whose end waits for it; it goes on at once
            self._batch.messages.append(work)
        return work

    # --- what arguments must be -------------------------------------------------------------------------------

    def _root(self, root: int) -> int:
        if not 0 <= root < self.size():
            raise ParameterError(f"root {root} does not exist among {self.size()} ranks")
        return root

    def _peer(self, peer: int) -> None:
        if not 0 <= peer < self.size() or peer == self.rank():
            raise ParameterError(
                f"rank {self.rank()} of {self.size()} can send to, or receive from, another rank of the group, not {peer}"
            )

    def _one_each(self, what: str, parts: Sequence[Any]) -> None:
        if len(parts) != self.size():
            raise ParameterError(f"{what} takes a tensor for each of {self.size()} ranks, not {len(parts)}")

    def _counts(self, counts: list[int]) -> list[int] | None:
        return counts if len(set(counts)) > 1 else None

    # The names of later versions of PyTorch.
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_reduce = allreduce
    all_gather = allgather
    all_to_all = alltoall
    all_to_all_single = alltoall_base


class _Barrier:
    """A barrier of the control plane, which has no request: it was waited for when this is there."""

    def __init__(self, world: Communicator) -> None:
        world.barrier()

    def wait(self) -> None:
        pass


def _nothing() -> None:
    pass


def _do(function: Callable[[], Any]) -> None:
    function()


def _list(tensors: Any) -> list[Any]:
    """The tensors of a call on one; PyTorch has lists of one, for several devices of a process once."""
    told = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if len(told) != 1:
        raise ParameterError(f"a call takes one tensor (or list) of this rank, not {len(told)}")
    return told


def _same_type(tensors: Sequence[Any]) -> None:
    types = {of.check(tensor).dtype for tensor in tensors}
    if len(types) > 1:
        raise ParameterError(f"tensors of one call have one type, not {', '.join(sorted(map(str, types)))}")


def _numbers(values: Sequence[int]) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def _read_numbers(data: bytes) -> list[int]:
    return [int.from_bytes(data[k : k + 8], "little") for k in range(0, len(data), 8)]
