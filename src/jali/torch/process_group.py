"""The process group: PyTorch's calls as jali's, on the host and on devices.

Every call is a `Step`: tensors it reads and writes, and its calls of a communicator. Steps of the host go to the group's
thread, which makes them in order; a call that its caller waits for anyway is made at once, by the caller. Steps of devices
are put on a stream: the caller's, or for `async_op` one of the group's that begins where the caller's is.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from jali.torch.steps import (
    AllToAll,
    Barrier,
    Broadcast,
    Gathering,
    Reduction,
    ScatteredReduction,
    Scattering,
    Step,
    same_type,
)
from jali.torch.work import DeviceWork, HostWork, Together, Work

_NO_TIME = timedelta(0)
_LONGEST_SHUTDOWN = 4.0  # seconds for calls under way when a group is shut down


@dataclass
class _Batch:
    """The calls between `_start_coalescing` and `_end_coalescing`."""

    steps: list[Step] = field(default_factory=list)
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
        self._rank, self._size = rank, size
        self.set_timeout(timeout or dist.constants.default_pg_timeout)
        self._calls = 0
        self._barriers = 0
        self._batch: _Batch | None = None
        self._streams: dict[int, Any] = {}  # by number of the device
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
            self._rank,
            self._size,
            lambda key, text: self._store.set(f"{purpose}/{key}", text),
            find,
            settings.environment().get("MASTER_ADDR", ""),
            self._limit,
        )

    # --- the interface of a backend --------------------------------------------------------------------------

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
        self._limit = timeout.total_seconds()

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
        """Every call, those under way too, raises from now on; the other ranks are notified."""
        self._fail(dist.DistBackendError(f"rank {self._rank} called abort()"))
        self._stop(threads.TIMEOUT)

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

    def _issue(self, what: str, written: Sequence[Any], steps: Sequence[Step], options: Any) -> Work | None:
        if self._batch is not None:
            self._batch.steps.extend(steps)
            self._batch.written.extend(written)
            return None
        index = steps[0].index
        if len(steps) > 1 and any([step.index != index for step in steps]):
            raise ParameterError(f"the tensors of {what} are on several devices; make a call for each device")
        self._calls += 1
        what = f"{what} (call {self._calls} of this group) on rank {self._rank}"
        limit = self._limit
        waited_for = False
        if options is not None:
            own = getattr(options, "timeout", _NO_TIME)
            if own > _NO_TIME:
                limit = own.total_seconds()
            waited_for = not getattr(options, "asyncOp", True)
        if index >= 0:
            return self._put_on_stream(what, written, steps, index, waited_for, limit)
        work = HostWork(what, written, self._calls)

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

        self._collectives.issue(threads.Call(work, make, limit), waited_for)
        return work

    def _put_on_stream(
        self,
        what: str,
        written: Sequence[Any],
        steps: Sequence[Step],
        index: int,
        waited_for: bool,
        limit: float,
    ) -> Work:
        stream = torch._C._cuda_getCurrentRawStream(index)
        if not waited_for:
            current, stream = stream, self._own_stream(index)
            of.gpu_of(index).order(current, stream)
        work = DeviceWork(what, written, self._calls, (index, stream), steps)
        self._collectives.enqueue(work, limit)
        return work

    def _own_stream(self, index: int) -> int:
        """Handle of the stream of asynchronous calls."""
        stream = self._streams.get(index)
        if stream is None:
            stream = self._streams[index] = torch.cuda.Stream(torch.device("cuda", index))
        return stream.cuda_stream

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
            works = [*works, self._issue(what, batch.written, batch.steps, None)]
        return Together("coalesced calls", works) if len(works) > 1 else works[0] if works else None

    # --- reductions -------------------------------------------------------------------------------------------

    def _reduction(self, tensor: Any, op: Any, root: int | None = None) -> Step:
        return Reduction(tensor, op, root, root is None or root == self._rank)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllreduceOptions()
        (tensor,) = _list(tensors)
        step = self._reduction(tensor, opts.reduceOp)
        return self._issue("allreduce", [tensor], [step], opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllreduceCoalescedOptions()
        steps = [self._reduction(tensor, opts.reduceOp) for tensor in tensors]
        return self._issue("allreduce_coalesced", tensors, steps, opts)

    def reduce(self, tensors: Any, opts: Any) -> Any:
        (tensor,) = _list(tensors)
        root = self._root(opts.rootRank)
        return self._issue("reduce", [tensor], [self._reduction(tensor, opts.reduceOp, root)], opts)

    def _scattered_reduction(self, output: Any, inputs: Sequence[Any], op: Any) -> Step:
        counts = self._counts([one.numel() for one in inputs]) if len(inputs) > 1 else None
        total = sum([one.numel() for one in inputs])
        mine = counts[self._rank] if counts else total // self._size
        if (counts is None and total % self._size) or mine != output.numel():
            raise ParameterError(
                f"reduce_scatter of {total} numbers over {self._size} ranks gives rank {self._rank} "
                f"{counts[self._rank] if counts else total / self._size:g}; its output has {output.numel()}"
            )
        same_type([output, *inputs])
        return ScatteredReduction(output, inputs, op, counts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        (output,), (parts,) = _list(outputs), inputs if isinstance(inputs[0], list) else [inputs]
        self._one_each("reduce_scatter", parts)
        step = self._scattered_reduction(output, parts, opts.reduceOp)
        return self._issue("reduce_scatter", [output], [step], opts)

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        step = self._scattered_reduction(output, [input], opts.reduceOp)
        return self._issue("reduce_scatter_single", [output], [step], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        steps = [
            self._scattered_reduction(output, [one], opts.reduceOp)
            for output, one in zip(outputs, inputs, strict=True)
        ]
        return self._issue("reduce_scatter_tensor_coalesced", outputs, steps, opts)

    # --- what only moves --------------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.BroadcastOptions()
        (tensor,) = _list(tensors)
        root = self._root(opts.rootRank)
        step = Broadcast(tensor, root)
        return self._issue("broadcast", [tensor], [step], opts)

    def _gathering(
        self, outputs: Sequence[Any] | None, one: Any, root: int | None = None, split: bool = True
    ) -> Step:
        """`outputs`: one tensor per rank, or, not `split`, one for all; None on ranks that do not receive."""
        counts = None
        if outputs is not None and split:
            self._one_each("gathering", outputs)
            if outputs[self._rank].numel() != one.numel():
                raise ParameterError(
                    f"rank {self._rank} gives {one.numel()} numbers, and has room for {outputs[self._rank].numel()} of its own"
                )
            if root is None:
                counts = self._counts([output.nbytes for output in outputs])
            elif any(output.numel() != one.numel() for output in outputs):
                raise ParameterError("gather takes tensors of one size on all ranks")
        elif outputs is not None and outputs[0].numel() != self._size * one.numel():
            raise ParameterError(
                f"{self._size} ranks with {one.numel()} numbers each have {self._size * one.numel()}; the output has {outputs[0].numel()}"
            )
        if outputs is not None:
            same_type([one, *outputs])
        return Gathering(one, outputs, root, counts, self._rank)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        (one,) = _list(inputs)
        (parts,) = outputs if isinstance(outputs[0], list) else [outputs]
        return self._issue("allgather", parts, [self._gathering(parts, one)], opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`outputs[r][k]`, as gloo's backend has it, or `outputs[k][r]`: with as many tensors as ranks, the former."""
        if len(outputs) == self._size and all(len(parts) == len(inputs) for parts in outputs):
            outputs = [[parts[k] for parts in outputs] for k in range(len(inputs))]
        steps = [self._gathering(parts, one) for parts, one in zip(outputs, inputs, strict=True)]
        written = [one for parts in outputs for one in parts]
        return self._issue("allgather_coalesced", written, steps, opts)

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        step = self._gathering([output], input, split=False)
        return self._issue("all_gather_single", [output], [step], opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        steps = [
            self._gathering([output], one, split=False) for output, one in zip(outputs, inputs, strict=True)
        ]
        return self._issue("allgather_into_tensor_coalesced", outputs, steps, opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        (one,) = _list(inputs)
        root = self._root(opts.rootRank)
        parts = (outputs[0] if isinstance(outputs[0], list) else outputs) if root == self._rank else None
        step = self._gathering(parts, one, root)
        return self._issue("gather", parts or [], [step], opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        (output,) = _list(outputs)
        root = self._root(opts.rootRank)
        parts = None
        if root == self._rank:
            parts = inputs[0] if isinstance(inputs[0], list) else inputs
            self._one_each("scatter", parts)
            same_type([output, *parts])
            if any(part.numel() != output.numel() for part in parts):
                raise ParameterError("scatter takes tensors of one size, that of the output")
        return self._issue("scatter", [output], [Scattering(parts, output, root)], opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        self._one_each("alltoall", inputs)
        self._one_each("alltoall", outputs)
        step = AllToAll(outputs, inputs, [one.nbytes for one in inputs], [one.nbytes for one in outputs])
        return self._issue("alltoall", outputs, [step], opts)

    def alltoall_base(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Any:
        sent = self._split_bytes(input, input_splits)
        received = self._split_bytes(output, output_splits)
        equal = not input_splits and not output_splits
        step = AllToAll([output], [input], None if equal else sent, None if equal else received)
        return self._issue("alltoall_base", [output], [step], opts)

    def _split_bytes(self, tensor: Any, splits: Any) -> list[int]:
        rows = tensor.shape[0] if tensor.dim() else 1
        splits = list(splits or ())
        if not splits:
            if rows % self._size:
                raise ParameterError(f"{rows} rows are no equal parts for {self._size} ranks; give the sizes")
            splits = [rows // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows or min(splits) < 0:
            raise ParameterError(f"{splits} are no parts of {rows} rows for {self._size} ranks")
        each = tensor.nbytes // rows if rows else 0
        return [each * count for count in splits]

    def barrier(self, opts: Any = None) -> Any:
        """When it has ended all ranks have called it, and this rank's current stream had done its work before."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        return self._issue("barrier", [], [Barrier()], opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier of the host in which rank 0 reports missing ranks: the first, or all with `wait_all_ranks`."""
        limit = timeout if timeout is not None and timeout > timedelta(0) else self._timeout
        self._barriers += 1
        key = f"monitored barrier {self._barriers}"
        self._store.set(f"{key}/{self._rank}", "")
        missing: list[int] = []
        if self._rank != 0:
            try:
                self._store.wait([f"{key}/all"], 2 * limit)  # rank 0 notifies the last
            except RuntimeError as error:  # stores have no better one in common
                raise dist.DistBackendError(f"rank 0 did not come to a monitored barrier: {error}") from error
            answer = self._store.get(f"{key}/all").decode()
        else:
            for rank in range(1, self._size):
                if missing and not wait_all_ranks:
                    break
                try:
                    self._store.wait([f"{key}/{rank}"], timedelta(milliseconds=1) if missing else limit)
                except RuntimeError:
                    missing.append(rank)
            answer = f"ranks {', '.join(map(str, missing))} did not come to a monitored barrier in {limit.total_seconds():g} s"
            answer = answer if missing else ""
            self._store.set(f"{key}/all", answer)
        if answer:
            raise dist.DistBackendError(answer)

    # --- messages between two ranks ---------------------------------------------------------------------------

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        (tensor,) = _list(tensors)
        self._peer(to)
        row = of.Rows([tensor]).begin().cpu()  # of a device: waits for its stream
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
        if self._size == 1:
            raise ParameterError("the only rank of a group has nobody to send to, or to receive from")
        work = HostWork(f"{what} with tag {tag} on rank {self._rank}", [tensor])
        done = _nothing
        if row is None:
            into = of.Rows([tensor])
            row = into.row
            if row.device.type != "cpu":
                row = torch.empty(row.shape, dtype=row.dtype)

            def done() -> None:
                if row.device != into.row.device:
                    into.row.detach().copy_(row)
                into.end()

        message = threads.Message(work, of.as_bytes(row), peer, int(tag), self._limit)
        message.done = done
        self._messages.issue(message, sends)
        if self._batch is not None:  # whose end waits for it; it continues at once
            self._batch.messages.append(work)
        return work

    # --- what arguments must be -------------------------------------------------------------------------------

    def _root(self, root: int) -> int:
        if not 0 <= root < self._size:
            raise ParameterError(f"root {root} does not exist among {self._size} ranks")
        return root

    def _peer(self, peer: int) -> None:
        if not 0 <= peer < self._size or peer == self._rank:
            raise ParameterError(
                f"rank {self._rank} of {self._size} can send to, or receive from, another rank of the group, not {peer}"
            )

    def _one_each(self, what: str, parts: Sequence[Any]) -> None:
        if len(parts) != self._size:
            raise ParameterError(f"{what} takes a tensor for each of {self._size} ranks, not {len(parts)}")

    def _counts(self, counts: list[int]) -> list[int] | None:
        return counts if len(set(counts)) > 1 else None

    # The names of later versions of PyTorch.
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_reduce = allreduce
    all_gather = allgather
    all_to_all = alltoall
    all_to_all_single = alltoall_base


def _nothing() -> None:
    pass


def _list(tensors: Any) -> list[Any]:
    """The tensors of a call on one; PyTorch has lists of one, for several devices of a process once."""
    listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if len(listed) != 1:
        raise ParameterError(f"a call takes one tensor (or list) of this rank, not {len(listed)}")
    return listed
