"""Processes that are ranks of PyTorch: they import it once, and then run one function after the other, in a new group each."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

_numbers = itertools.count()


class RankProcesses:
    def __init__(self, size: int, shm: str = "auto") -> None:
        self.size = size
        self.folder = tempfile.TemporaryDirectory(prefix="jali-torch-")
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(size)]
        self.connections = [ours for ours, _ in pipes]
        self.processes = [
            spawn.Process(target=_serve, args=(theirs, rank, size, shm), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *error: Any) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        backend: str = "jali",
        seconds: float = 60,
        ranks: list[int] | None = None,
    ) -> list[Any]:
        """What `function(*arguments)` returns on each rank, where a group of them is the default; the first error is raised."""
        store = str(Path(self.folder.name) / f"store {next(_numbers)}")
        for connection in self.connections:
            connection.send((function, arguments, backend, store, seconds))
        results, errors = [], []
        for rank in ranks if ranks is not None else range(self.size):
            if not self.connections[rank].poll(seconds + 60):
                raise TimeoutError(f"rank {rank} of {function.__name__} hangs")
            try:
                error, result = self.connections[rank].recv()
            except EOFError:
                error, result = f"rank {rank} has died", None
            results.append(result)
            if error:
                errors.append(f"rank {rank}: {error}")
        if errors:
            raise AssertionError("\n".join(errors))
        return results


def _serve(connection: Any, rank: int, size: int, shm: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    import jali.torch

    jali.settings.use(shm=shm)

    torch.set_num_threads(1)
    while True:
        try:
            function, arguments, backend, store, seconds = connection.recv()
        except EOFError:
            return
        try:
            dist.init_process_group(
                backend,
                store=dist.FileStore(store, size),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=seconds),
            )
            result = function(*arguments)
            if dist.is_initialized():
                dist.destroy_process_group()
            connection.send((None, result))
        except BaseException:
            said = traceback.format_exc()
            if dist.is_initialized():
                dist.destroy_process_group()
            connection.send((said, None))
