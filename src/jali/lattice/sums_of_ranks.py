"""Sums of several ranks that stay on their devices.

A launch leaves the words of its rank's sums in device memory (core/sum): whole numbers, which a collective of the devices adds
in place, and keys of maxima and minima, of which it takes the largest. So the collective is issued where the launch was called,
the host does not wait, and the bits are those of a sum on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from jali import _core, graph_recorder
from jali.comm.device_arrays import DeviceView


def why_ranks_need_the_host(lattice: Any) -> str:
    """Why sums of several ranks cannot stay on this lattice's devices, the same on all ranks; empty if they can. The first use is collective."""
    with graph_recorder.suspended():  # what is made by the first use is no part of a graph
        there, call = lattice.communicator.collectives.on_device(lattice.gpu), _call("sum", 1)
        return (
            ""
            if there.plan_of(call).recordable
            else f"ranks add them by way of {there.algorithm_of(call).name!r}"
        )


class SumsOfRanks:
    """The sums of one launch, added over the ranks of a lattice on devices. Making the first of a kind is collective."""

    def __init__(self, launch: Any, reductions: Sequence[str], lattice: Any):
        self._launch = launch
        self._checked = lattice.communicator.checked
        self._there = lattice.communicator.collectives.on_device(lattice.gpu)
        self._additions: list[tuple[_core.CollectiveCall, Any, Any]] = []  # its plan, and the words
        address = launch.words_of_sums
        for how, same in groupby("sum" if r == "sum" else "max" for r in reductions):
            count = _core.sum_words * len(list(same))
            call = _call(how, count)
            words = DeviceView(address, call.type, (count,), lattice.gpu.stream, launch, lattice.gpu)
            plan = self._there.plan_of(call)
            # Checked calls run another plan, which is proved when they begin; graphs run this one.
            self._there.prove_once(call, plan, (words,), self._checked)
            self._additions.append((call, plan, words))
            address += words.nbytes
        self.add()  # of nothing yet: libraries connect ranks at their first call, which no graph can do

    def add(self) -> None:
        """Puts the addition on the device, behind the launch. Collective."""
        for call, plan, words in self._additions:
            checked = self._checked and not words.gpu.capturing
            there = self._there.plan_of(call, True) if checked else plan
            self._there.prove_once(call, there, (words,), checked)
            there((words,))

    def run(self) -> None:
        """The launch and the addition."""
        self._launch.run_leaving_sums()
        self.add()


def _call(op: str, count: int) -> _core.CollectiveCall:
    return _core.CollectiveCall("all_reduce", "int64" if op == "sum" else "uint64", count, 0, op, True)
