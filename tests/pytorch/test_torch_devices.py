"""Tensors on devices: the calls that streams get. PyTorch sees no fake device, so its streams, events and tensors are stood in for.

What jali does with the memory and the streams is real, on the fake driver of tests/gpu. No GPU is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
import weakref
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch has it")

import torch
import torch.distributed as dist
from rank_processes import RankProcesses
from torch._C import _distributed_c10d as c10d

from jali.errors import ParameterError

GPU_TESTS = Path(__file__).parent.parent / "gpu"


@pytest.fixture(scope="module")
def device_ranks():
    sys.path[:0] = [str(GPU_TESTS), str(GPU_TESTS.parent)]
    try:
        from fake_driver import make_fake_driver
    finally:
        del sys.path[:2]
    with pytest.MonkeyPatch.context() as patch:
        driver = str(make_fake_driver())
        for name in ("JALI_CUDA_DRIVER", "JALI_NVRTC"):
            patch.setenv(name, driver)
        patch.setenv("JALI_FAKE_GPUS", "2")
        with RankProcesses(2) as ranks:
            yield ranks


class Stream:
    def __init__(self, device=None, handle: int | None = None) -> None:
        if handle is None:
            made = ctypes.c_void_p()
            assert driver().cuStreamCreateWithPriority(ctypes.byref(made), 1, 0) == 0
            handle = made.value
        self.cuda_stream, self.device = handle, torch.device("cuda", dist.get_rank())

    def synchronize(self) -> None:
        assert driver().cuStreamSynchronize(ctypes.c_void_p(self.cuda_stream)) == 0


def driver() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["JALI_CUDA_DRIVER"])


class OnDevice(torch.Tensor):
    """A tensor of the host over memory that the fake driver takes for a device's."""

    index = 0
    device = property(lambda self: torch.device("cuda", OnDevice.index))
    __torch_function__ = torch._C._disabled_torch_function_impl  # which takes longer than a call
    is_cuda, is_cpu = True, False

    def detach(self):
        return self

    def get_device(self) -> int:
        return OnDevice.index


@contextlib.contextmanager
def cuda_stands_in():
    """Yields the stream of the caller and what makes tensors in device memory."""
    from jali import _core
    from jali.comm import DeviceArray
    from jali.errors import DeviceError

    OnDevice.index = dist.get_rank()
    gpu = _core.Gpu.open("cuda", OnDevice.index)
    gpu.synchronize()  # a thread keeps the first device that it meets
    current = [Stream()]

    @contextlib.contextmanager
    def use(stream):
        current.insert(0, stream)
        yield
        current.pop(0)

    kept = []

    def tensor(values: torch.Tensor) -> torch.Tensor:
        memory = DeviceArray.empty(gpu, (max(1, values.nbytes),), "uint8")
        kept.append(memory)
        buffer = (ctypes.c_ubyte * values.nbytes).from_address(memory.address)
        made = torch.frombuffer(buffer, dtype=values.dtype).view(values.shape)
        made.copy_(values)
        return made.as_subclass(OnDevice)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_stream", lambda device=None: current[0])
        patch.setattr(torch.cuda, "stream", use)
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(torch.cuda, "ExternalStream", lambda handle, device: Stream(device, handle))

        def current_stream_handle(index: int) -> int:
            return current[0].cuda_stream

        # which PyTorch has not where it was built without CUDA
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", current_stream_handle, raising=False)
        patch.setattr(torch._C, "_cuda_getDevice", lambda: OnDevice.index, raising=False)
        yield current[0], tensor
        with contextlib.suppress(DeviceError):  # a test may have let it give up
            gpu.synchronize()


def on_streams() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    with cuda_stands_in() as (stream, tensor):

        def waited_for(work, x) -> torch.Tensor:
            work.wait()
            stream.synchronize()  # the caller's stream alone
            return x.as_subclass(torch.Tensor).clone()

        for count in (5, 1000, 70_001):
            for asynchronous in (False, True):
                options = dist.AllreduceOptions()
                options.asyncOp = asynchronous
                x = tensor(torch.full((count,), me + 1.0))
                work = group.allreduce([x], options)
                assert type(work).__name__ == "DeviceWork"
                assert waited_for(work, x).tolist() == [3.0] * count
            x = tensor(torch.full((count,), me, dtype=torch.int32))
            options = dist.BroadcastOptions()
            options.rootRank = 1
            assert waited_for(group.broadcast([x], options), x).tolist() == [1] * count
            x, out = tensor(torch.full((count,), me + 0.5)), tensor(torch.zeros(size * count))
            expected = torch.arange(2.0).repeat_interleave(count) + 0.5
            assert torch.equal(waited_for(group._allgather_base(out, x), out), expected)
            x, out = tensor(torch.arange(2.0 * count) + me), tensor(torch.zeros(count))
            expected = 2 * torch.arange(2.0 * count)[me * count : (me + 1) * count] + 1
            assert torch.equal(waited_for(group._reduce_scatter_base(out, x), out), expected)
            x, out = tensor(torch.arange(2.0 * count) + 10 * me), tensor(torch.zeros(2 * count))
            expected = torch.cat(
                [torch.arange(2.0 * count)[me * count : (me + 1) * count] + 10 * r for r in (0, 1)]
            )
            assert torch.equal(waited_for(group.alltoall_base(out, x, [], []), out), expected)
        tensors = [tensor(torch.full((k + 1,), me + 1.0)) for k in range(4)]
        work = group.allreduce_coalesced(tensors)
        assert all(waited_for(work, x).tolist() == [3.0] * (k + 1) for k, x in enumerate(tensors))
        group._start_coalescing(torch.device("cuda"))
        assert [group.allreduce([x]) for x in tensors] == [None] * 4
        work = group._end_coalescing(torch.device("cuda"))
        assert all(waited_for(work, x).tolist() == [6.0] * (k + 1) for k, x in enumerate(tensors))
        y = torch.ones(3)  # and the host's, in between
        dist.all_reduce(y)
        assert y.sum() == 6
        with pytest.raises(Exception, match="jali has no ReduceOp.BAND of torch.float32"):
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.BAND
            group.allreduce([tensors[0]], options)
        dist.destroy_process_group()


def test_calls_on_tensors_of_devices_are_put_on_streams(device_ranks):
    device_ranks.run(on_streams)


def frames_of(call) -> tuple[int, int]:
    """What `call` enters: functions of jali in Python, and functions of PyTorch's or their stand-ins that say which stream is the current one."""
    entered = [0, 0]

    def note(frame, event, argument) -> None:
        if event == "call":
            entered[0] += "/jali/" in frame.f_code.co_filename.replace(os.sep, "/")
            entered[1] += "current_stream" in frame.f_code.co_name

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered[0], entered[1]


MOST_FRAMES = 24


def few_frames() -> None:
    size, group = dist.get_world_size(), dist.group.WORLD
    with cuda_stands_in() as (stream, tensor):
        x, whole = tensor(torch.ones(8)), tensor(torch.ones(8 * size))
        calls = {
            "allreduce": (c10d.AllreduceOptions, lambda given: group.allreduce([x], given)),
            "broadcast": (c10d.BroadcastOptions, lambda given: group.broadcast([x], given)),
            "all_gather": (c10d.AllgatherOptions, lambda given: group._allgather_base(whole, x, given)),
            "reduce_scatter": (
                c10d.ReduceScatterOptions,
                lambda given: group._reduce_scatter_base(x, whole, given),
            ),
        }
        for name, (options, call) in calls.items():
            for asynchronous in (False, True):
                given = options()
                given.asyncOp = asynchronous
                call(given).wait()
                frames, streams = frames_of(lambda call=call, given=given: call(given).wait())
                several = 12 if name in ("all_gather", "reduce_scatter") else 0  # two tensors, more to check
                assert 5 < frames <= MOST_FRAMES + several, (name, asynchronous, frames)
                assert streams == 2  # when it begins, and when it is waited for
        stream.synchronize()


def test_calls_on_devices_enter_few_functions_of_python(device_ranks):
    device_ranks.run(few_frames)


def many_calls() -> None:
    group = dist.group.WORLD
    with cuda_stands_in() as (stream, tensor):
        x = tensor(torch.zeros(8))
        options = dist.AllreduceOptions()
        options.asyncOp = False
        most = 0
        for _ in range(30):
            for _ in range(100):
                group.allreduce([x], options).wait()
                most = max(most, len(group._collectives._on_device))
            stream.synchronize()
        assert most < 1000


def test_calls_that_streams_have_done_are_forgotten_while_others_come(device_ranks):
    device_ranks.run(many_calls)


def tensors_let_go() -> None:
    group = dist.group.WORLD
    with cuda_stands_in() as (stream, tensor):
        for waited in (True, False):
            x, whole = tensor(torch.ones(8)), tensor(torch.zeros(16))
            given = weakref.ref(x)
            work = group._allgather_base(whole, x)
            del x
            assert given() is not None  # a stream of the group's may still read it
            if waited:
                work.wait()
                assert work.result() == [whole]
                assert given() is None
            else:
                stream.synchronize()
                work.request.wait_on_host()
                del work
                for _ in range(200):
                    if given() is None:
                        break
                    time.sleep(0.02)
                assert given() is None


def test_tensors_are_kept_until_somebody_has_waited_or_the_stream_has_done(device_ranks):
    device_ranks.run(tensors_let_go)


def other_ways() -> None:
    me, group = dist.get_rank(), dist.group.WORLD
    with cuda_stands_in() as (stream, tensor):
        for asynchronous in (False, True):
            options = dist.AllreduceOptions()
            options.asyncOp = asynchronous
            options.reduceOp = c10d._make_nccl_premul_sum(2.0)
            x = tensor(torch.full((5,), me + 1.0))
            stream.synchronize()
            group.allreduce([x], options).wait()
            stream.synchronize()
            assert x.tolist() == [6.0] * 5
        assert torch.cuda.current_stream() is stream
        # The current device is another one: it is so again afterwards.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch._C, "_cuda_getDevice", lambda: 7)
            group.allreduce([x], options).wait()
            stream.synchronize()
        assert x.tolist() == [24.0] * 5
        # One tensor on the host, one on a device; several devices in one batch.
        y = torch.zeros(10)
        for out, one in ((y, x), (tensor(y), torch.zeros(5))):
            with pytest.raises(ParameterError, match="one tensor is on .* give both on the same"):
                group._allgather_base(out, one)
        with pytest.raises(ParameterError, match="are on several devices"):
            group.allreduce_coalesced([x, y])
        group.allreduce([x]).wait()  # the group lives
        stream.synchronize()


def test_factors_other_devices_and_tensors_that_are_apart(device_ranks):
    device_ranks.run(other_ways)


def one_never_comes() -> None:
    group = dist.group.WORLD
    with cuda_stands_in() as (stream, tensor):
        x = tensor(torch.ones(100))
        group.allreduce([x]).wait()
        stream.synchronize()
        if dist.get_rank() == 0:
            options = dist.AllreduceOptions()
            options.timeout = timedelta(seconds=1)
            start = time.monotonic()
            group.allreduce([x], options)
            while group._collectives.failure is None:
                assert time.monotonic() - start < 10
                time.sleep(0.05)
            with pytest.raises(dist.DistBackendError, match="has not ended after 1 s"):
                group.allreduce([x])
        else:
            time.sleep(3)
        start = time.monotonic()
        dist.destroy_process_group()
        assert time.monotonic() - start < 10


def test_what_lasts_too_long_on_a_stream_is_given_up(device_ranks):
    device_ranks.run(one_never_comes)
