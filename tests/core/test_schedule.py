"""core/schedule: order, checks and execution of graphs of steps."""

from __future__ import annotations

import numpy as np
import pytest

from jali import _core
from jali._core import Schedule


def ring(rank, ranks, log):
    """Send 8 bytes to the next rank; a kernel with a port: bulk, then boundary after the arrival."""
    s = Schedule()
    data = s.add_buffer("data", 8, holds_data=True)
    out, ghost = s.add_buffer("out", 8), s.add_buffer("ghost", 8)
    receive = s.add_receive("receive", (ghost, 0, 8), (rank - 1) % ranks, 5)
    pack = s.add_copy("pack", (data, 0, 8), (out, 0, 8), 8)
    s.add_send("send", (out, 0, 8), (rank + 1) % ranks, 5, [(pack, 0)])
    s.add_kernel("kernel", log.append, [[], [(ghost, 0, 8)]], [[], []], [[(pack, 0)], [(receive, 0)]])
    return s


def test_a_kernel_with_a_port_runs_its_bulk_before_the_arrival(on_ranks):
    def body(communicator):
        log = []
        s = ring(communicator.rank, 3, log)
        s.check()
        data, out, ghost = np.array([communicator.rank + 10.0]), np.zeros(1), np.zeros(1)
        s.run([data, out, ghost], communicator)
        assert log == [0, 1]
        lines = s.describe().splitlines()
        names = [line.split("  ")[1].split(":")[0] for line in lines]
        assert names == ["receive", "pack", "send", "kernel/0", "kernel/1"]
        return ghost[0]

    assert on_ranks(3, body) == [12.0, 10.0, 11.0]


def test_copies_gather_rows():
    s = Schedule()
    a, b = s.add_buffer("a", 80, holds_data=True), s.add_buffer("b", 24)
    s.add_copy("pick", (a, 0, 80), (b, 0, 24), 8, [7, 0, 3])
    s.check()
    target = np.zeros(3)
    s.run([np.arange(10.0), target], _core.make_self_communicator())
    assert list(target) == [7, 0, 3]


def cycle():
    s = Schedule()
    s.add_buffer("a", 8, True)
    s.add_copy("first", (0, 0, 4), (0, 4, 4), 4, needs=[(1, 0)])
    s.add_copy("second", (0, 0, 4), (0, 4, 4), 4, needs=[(0, 0)])
    return s


def missing_need():
    s = Schedule()
    s.add_buffer("a", 8, True)
    s.add_copy("lonely", (0, 0, 4), (0, 4, 4), 4, needs=[(7, 0)])
    return s


def outside():
    s = Schedule()
    s.add_buffer("small", 8, True)
    s.add_copy("copy", (0, 0, 8), (0, 4, 8), 8)
    return s


def unwritten():
    s = Schedule()
    s.add_buffer("a", 8)
    s.add_buffer("b", 8)
    s.add_copy("copy", (0, 0, 8), (1, 0, 8), 8)
    return s


def half_written():
    s = Schedule()
    a = s.add_buffer("a", 8, True)
    b, c = s.add_buffer("b", 8), s.add_buffer("c", 8)
    first = s.add_copy("first", (a, 0, 4), (b, 0, 4), 4)
    s.add_copy("second", (b, 0, 8), (c, 0, 8), 8, needs=[(first, 0)])
    return s


def read_before_arrival():
    s = Schedule()
    ghost = s.add_buffer("ghost", 8)
    s.add_receive("receive", (ghost, 0, 8), 1, 0)
    s.add_kernel("kernel", print, [[(ghost, 0, 8)]], [[]], [[]])
    return s


def overwritten_while_sent():
    s = Schedule()
    s.add_buffer("a", 16, True)
    s.add_send("send", (0, 0, 8), 1, 0)
    s.add_copy("copy", (0, 8, 8), (0, 0, 8), 8)
    return s


def copy_onto_itself():
    s = Schedule()
    s.add_buffer("a", 16, True)
    s.add_copy("copy", (0, 0, 12), (0, 4, 12), 12)
    return s


def row_that_does_not_exist():
    s = Schedule()
    s.add_buffer("a", 16, True)
    s.add_buffer("b", 8)
    s.add_copy("copy", (0, 0, 16), (1, 0, 8), 8, [2])
    return s


def reduction_of_unequal_pieces():
    s = Schedule()
    s.add_buffer("a", 16, True)
    s.add_reduce("reduce", [(0, 0, 8), (0, 8, 4)], (0, 0, 8), "int32")
    return s


def reduction_of_half_an_element():
    s = Schedule()
    s.add_buffer("a", 16, True)
    s.add_reduce("reduce", [(0, 0, 4), (0, 4, 4)], (0, 0, 4), "fp64")
    return s


def reduction_that_shifts():
    s = Schedule()
    s.add_buffer("a", 16, True)
    s.add_reduce("reduce", [(0, 0, 8), (0, 8, 8)], (0, 4, 8), "int32")
    return s


def logical_reduction_of_floats():
    s = Schedule()
    s.add_buffer("a", 16, True)
    s.add_reduce("reduce", [(0, 0, 8), (0, 8, 8)], (0, 0, 8), "fp64", "bit_xor")
    return s


def lanes_against_the_needs():
    s = Schedule()
    s.add_buffer("a", 16, True)
    s.add_send("first", (0, 0, 8), 1, 0, [(1, 0)])
    s.add_send("second", (0, 8, 8), 1, 0)
    s.add_send("third", (0, 8, 8), 1, 0, [(1, 0)])
    return s


def library_that_does_not_exist():
    s = Schedule()
    s.add_buffer("a", 8, True)
    s.add_send("send", (0, 0, 8), 1, 0, library=1)
    return s


def race_through_a_third():
    """Two writers that each follow a reader, but not one another."""
    s = Schedule()
    a, b = s.add_buffer("a", 8, True), s.add_buffer("b", 8)
    first = s.add_copy("first", (a, 0, 8), (b, 0, 8), 8)
    s.add_receive("one", (b, 0, 4), 1, 0, [(first, 0)])
    s.add_receive("two", (b, 0, 8), 2, 0, [(first, 0)])
    return s


def race():
    s = Schedule()
    s.add_buffer("a", 8, True)
    s.add_buffer("b", 8)
    s.add_copy("one", (0, 0, 8), (1, 0, 8), 8)
    s.add_copy("two", (0, 0, 8), (1, 4, 4), 8)
    return s


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (cycle, "cycle"),
        (missing_need, "step 7, which does not exist"),
        (outside, "bytes 4 to 12 of buffer 'small', which has 8"),
        (unwritten, "reads byte 0 of buffer 'a' before it is written"),
        (half_written, "reads byte 4 of buffer 'b' before it is written"),
        (read_before_arrival, "'receive' and 'kernel/0' may run in either order"),
        (overwritten_while_sent, "'send' and 'copy' may run in either order, and both use buffer 'a'"),
        (copy_onto_itself, "'copy' copies bytes onto themselves"),
        (row_that_does_not_exist, "'copy' copies row 2 of 2"),
        (reduction_of_unequal_pieces, "'reduce' reduces 4 bytes into 8"),
        (reduction_of_half_an_element, "no whole elements of 8"),
        (reduction_that_shifts, "into may only be one of the sources"),
        (logical_reduction_of_floats, "'reduce': .*fp64"),
        (lanes_against_the_needs, "cycle"),
        (library_that_does_not_exist, "'send' goes by library 1 of 1"),
        (race_through_a_third, "'one' and 'two' may run in either order"),
        (race, "either order"),
    ],
)
def test_broken_schedules_are_refused(make, words):
    with pytest.raises(RuntimeError, match=words):
        make().check()


def test_an_error_inside_a_kernel_reaches_the_other_ranks(on_ranks):
    class FireError(Exception):
        pass

    def body(communicator):
        def work(part):
            if communicator.rank == 1 and part == 0:
                raise FireError("smoke")

        log = []
        s = ring(communicator.rank, 3, log)
        if communicator.rank == 1:
            s = Schedule()
            s.add_kernel("kernel", work, [[]], [[]], [[]])
            with pytest.raises(FireError):
                s.run([], communicator)
            return "raised"
        try:
            s.run([np.zeros(1), np.zeros(1), np.zeros(1)], communicator)
        except Exception as error:
            return str(error)
        return "finished"

    results = on_ranks(3, body)
    assert results[1] == "raised"
    assert "smoke" in results[2]
