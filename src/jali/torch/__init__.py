"""The backend "jali" of `torch.distributed`: importing this module registers it.

    import jali.torch
    torch.distributed.init_process_group("jali")

docs/guides/pytorch.md lists its functions. The ranks are PyTorch's, found through its store; `jali.comm`
communicates. Needs PyTorch, which jali itself does not.
"""

from __future__ import annotations

from typing import Any

try:
    import torch.distributed as dist
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        'jali.torch needs PyTorch, which is not installed: pip install "jali[torch]"', name="torch"
    ) from None
if not dist.is_available():
    raise ImportError("jali.torch needs torch.distributed, which this PyTorch was built without")

from jali.torch.process_group import ProcessGroup
from jali.torch.work import Work

__all__ = ["ProcessGroup", "Work"]


def _make(group: Any, options: Any) -> ProcessGroup:
    return ProcessGroup(group.store, group.group_rank, group.group_size, group.timeout, group.group_id)


dist.Backend.register_backend("jali", _make, extended_api=True, devices=["cpu", "cuda"])
