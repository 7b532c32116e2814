"""What is given to drivers touches nothing beyond the end of the memory it begins in: the checker finds what does.

The ends are those of blocks of memory as they were asked for, not as a pool rounds them, and in blocks those of the parts
that something is there for: sites of fields, ghosts of a slab, messages, arrays of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import test_checked_collectives as collectives
import test_checked_launches as launches
import test_checked_messages as messages
import test_halos_between_devices as halos
from fake_driver import REAL
from seeded_faults import refused
from test_checked_launches import made
from test_one_schedule import arriving

import jali
from jali import _core, comm

__all__ = ["made"]  # a fixture: four devices, and what is launched on them

pytestmark = pytest.mark.skipif(REAL, reason="the same on every driver")


def of_run(record: _core.RecordedCalls, run: int, *kinds: str) -> list[int]:
    """Its calls of these kinds."""
    runs = np.cumsum([(kind, name) == ("mark", "begin") for kind, name, _ in record.calls])
    return [k for k, (kind, _, _) in enumerate(record.calls) if runs[k] == run and kind in kinds]


def longer(record: _core.RecordedCalls) -> Iterator[_core.RecordedCalls]:
    """With one copy or message of the second run 16 bytes too long."""
    for k in of_run(record, 2, "copy", "send", "receive", "ccl send", "ccl receive"):
        to, source, size = record.addresses(k)
        yield record.with_addresses(k, to, source, size + 16)


def shorter(
    records: list[_core.RecordedCalls], names: Callable[[str], bool], size_of: Callable[[int], int]
) -> Iterator[list[_core.RecordedCalls]]:
    """With one of the blocks of these names that the first rank touches of another size; all ranks know of it."""
    for address, (size, name) in records[0].blocks.items():
        if names(name):
            yield [r.with_block(address, size_of(size)) if address in r.blocks else r for r in records]


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(p, marks=[] if p in ("copy-engine-overlap", "host-staged-wait") else pytest.mark.full)
        for p in launches.OF_THREADS
    ],
)
def test_copies_and_messages_of_halos_that_are_too_long_are_found(policy, made, use_settings):
    """Also where the bytes behind are another message's, which comes later and sets them right."""
    halos.use(policy, use_settings, 2)
    use_settings(halo_policy=policy)
    records = jali.virtual_ranks(2, launches.recorded, made, *launches.SHAPES["pair"][1:])
    assert refused(records) == ""
    for record in longer(records[0]):
        assert refused([record, records[1]])
    used_up = {"halo messages sent", "halo messages received", "halo tables"}
    for others in shorter(records, used_up.__contains__, lambda size: size - 8):
        assert refused(others)


def with_items(made: launches.Made) -> _core.RecordedCalls:
    lattice = jali.Lattice(6, 4, grid=(2, 1), device="cuda")
    out, f = (lattice.field(jali.Vector(3)) for _ in range(2))
    U = lattice.field(jali.Matrix(3))
    made.launches.clear()
    arriving(out, f, U)
    return made.launches[-1].recorded()


@pytest.mark.parametrize("policy", ["remote-write-wait", "buffered-write-wait"])
def test_a_producer_that_stores_beyond_the_memory_of_halo_items_is_found(policy, made, use_settings):
    """It stores whole groups of 32 sites, also of two: what lacks one, or has room for what is sent alone, is too small."""
    use_settings(halo_policy=policy)
    records = jali.virtual_ranks(2, with_items, made)
    assert refused(records) == ""
    items = "halo items".__eq__
    assert [size for size, name in records[0].blocks.values() if items(name)] == [2 * 32 * 48]
    for size in (32 * 48, 32 * 48 + 2 * 48):
        [others] = shorter(records, items, lambda _, size=size: size)
        assert "writes 1536 bytes where" in refused(others)


def test_ghosts_that_lack_room_are_found(made, use_settings):
    """Its neighbour packs into them."""
    use_settings(halo_policy="remote-write-wait")
    records = jali.virtual_ranks(2, launches.recorded, made, *launches.SHAPES["pair"][1:])
    found = [refused(o[::-1]) for o in shorter(records[::-1], lambda name: True, lambda size: size - 8)]
    assert any("pack_halos" in one and "of rank 0 writes" in one and "left" in one for one in found), found


def test_messages_that_are_too_long_are_found():
    """By a launch that puts them, and by copies: behind an array of the user the pool may have room."""
    for transport in ("remote-write", "copy-engine"):
        records = comm.virtual_ranks(2, messages.recorded, transport)
        assert refused(records) == ""
        for record in longer(records[0]):
            assert "left" in refused([record, records[1]])
        for k in of_run(records[0], 2, "launch"):
            whole = messages.Arguments.from_buffer_copy(records[0].arguments(k))
            for m in range(whole.outgoing):
                if whole.sent[m].roles & 2:
                    whole.sent[m].bytes += 16
                    other = records[0].with_arguments(k, bytes(whole))
                    assert "left" in refused([other, records[1]])
                    whole.sent[m].bytes -= 16


@pytest.mark.parametrize("transport", [None, "nccl"])
def test_collectives_in_memory_that_is_too_small_are_found(transport, use_settings):
    use_settings(device_transport=transport)

    def body() -> Any:
        return collectives.recorded("all_gather", collectives.specs_of("all_gather")[0], 333)

    records = comm.virtual_ranks(2, body)
    assert refused(records) == ""
    for array in shorter(records, "array".__eq__, lambda size: size - 4):
        assert "left" in refused(array)
    for record in longer(records[0]):
        assert refused([record, records[1]])
    queues = list(shorter(records, lambda name: "queues" in name, lambda size: min(size, 4096)))
    assert (not queues) == (transport == "nccl")
    for others in queues:
        assert refused(others)
