"""What `explain` says of a launch: sites, ghosts and their peers, the policy and the reasons against others, memory,
steps."""

import re

import jali
from jali import EVEN
from jali.bench.halo import laplace, make_case


def explained(kernel, local, grid, over=None):
    """The text on this rank, what an exchange sent, and what inspect says of the last stage."""
    case = make_case(kernel, local, grid, "cpu")
    if over is None:
        return case.bind().explain(), case.lattice.local_extents
    x, out = case.changing[0], case.out
    return laplace.bind(out, x, over=over).explain(), case.lattice.local_extents


def test_a_split_launch_is_explained_on_every_rank(use_settings):
    use_settings(halo_policy="messages-overlap")
    for rank, (text, _) in enumerate(jali.virtual_ranks(2, explained, "staple", (4, 4, 4, 8), (1, 1, 1, 2))):
        other = 1 - rank
        assert text.startswith(
            f"staple_sum over ALL of Lattice(4, 4, 4, 16), float64, on rank {rank} of 2 as 1x1x1x2\n"
            "  a box of 4x4x4x8 on the host"
        )
        assert "512 sites: 384 in the bulk, 128 in the boundary (128 in direction 3;" in text
        assert re.search(rf"slab \(0, 0, 0, \+1\) +9 KiB +{other}   U\[0\] 9 KiB", text)
        assert re.search(rf"slab \(0, 0, 0, -1\) +18 KiB +{other}   U\[0\] 9 KiB, U\[3\] 9 KiB", text)
        assert "halo policy messages-overlap: JALI_HALO_POLICY" in text
        assert "messages-overlap: taken; packed here, sent as messages" in text
        assert "remote-write-overlap: possible, not asked for" in text
        assert re.search(r"U\[0\] +read +144 B +72 KiB +\S+ \S+ +0x[0-9a-f]+", text)
        assert "kernel/bulk: compute" in text.partition("steps of a run whose ghosts are all stale")[2]


def test_policies_that_are_not_possible_say_why(use_settings, monkeypatch):
    use_settings(halo_policy="messages-wait")
    from jali.lattice import launch_text

    class Layout:
        def why_not_halo_policy(self, core, name):
            return "these ranks share no memory" if name.startswith("remote") else ""

    class Kernel:
        lattice = type("L", (), {"gpu": None, "communicator": type("C", (), {"core": None})})
        launch = type("W", (), {"policy": "messages-wait"})
        chosen = type("H", (), {"halo": ""})
        layout = Layout()

    lines = "\n".join(launch_text._policies(Kernel()))
    assert "remote-write-wait: not here: these ranks share no memory" in lines


def test_even_sites_are_counted_and_send_the_odd_halves():
    text, _ = jali.virtual_ranks(2, explained, "laplace", (4, 4, 8), (1, 1, 2), EVEN)[0]
    assert "laplace over EVEN" in text
    assert "64 sites: 48 in the bulk, 16 in the boundary" in text
    assert re.search(r"slab \(0, 0, \+1\) +64 B", text)


def test_one_rank_reads_no_ghosts():
    lattice = jali.Lattice(4, 4)
    text = laplace.bind(*(lattice.field(jali.Real()) for _ in range(2))).explain()
    assert "16 sites, none of which reads a ghost" in text
    assert "kernel: compute (no halos)" in text
    assert "halo policy" not in text


def halos_of_inspect():
    case = make_case("wilson", (4, 4, 4, 8), (1, 1, 1, 2), "cpu")
    return jali.inspect(*_function_and_arguments(case)).stages["bound"].facts


def _function_and_arguments(case):
    from jali.bench.halo import wilson_hop

    return wilson_hop, *case.bind().args[0]


def test_inspect_tells_bulk_boundary_and_halos_of_the_last_stage():
    facts = jali.virtual_ranks(2, halos_of_inspect)[1]
    assert (facts["sites in the bulk"], facts["sites in the boundary"]) == (384, 128)
    assert facts["halos sent"] == [
        "6 KiB of slab (0, 0, 0, +1) to rank 0",
        "6 KiB of slab (0, 0, 0, -1) to rank 0",
    ]


def test_a_bound_call_is_a_function_that_runs():
    lattice = jali.Lattice(4, 4)
    x, out = (lattice.field(jali.Real()) for _ in range(2))
    x[...] = 1.0
    call = laplace.bind(out, x)
    assert call() is None
    assert (out[...] == 0).all()
    assert [k.program.name for k in call.kernels] == ["laplace"]
