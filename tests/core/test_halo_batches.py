"""Batches of halo exchanges and their fusions, as data: what must come before what stays so, whatever is fused."""

import itertools

import pytest

import jali.vendors  # noqa: F401  (its entries)
from jali import _core

POLICIES = {kind: [name for name, *_ in _core.halo_policies(kind)] for kind in ("cuda", "hip")}
SHAPES = [
    dict(
        zip(
            ("stages", "produces", "has_bulk", "bulk_waits_for_packing", "boundary_fills"),
            values,
            strict=True,
        )
    )
    for values in itertools.product((1, 2, 4), *[(False, True)] * 4)
]
# What one transport does, in the order in which it must happen; by the first word of its policies.
MOVES = {
    "remote-write": ["grant credit", "pack", "await credit", "put", "signal", "wait"],
    "buffered-write": ["pack", "await credit", "put", "signal", "wait", "unpack"],
    "copy-engine": ["pack", "await credit", "put", "signal", "wait", "unpack"],
    "nccl": ["pack", "exchange"],
    "rccl": ["pack", "exchange"],
    "gpu-aware-mpi": ["pack", "message"],
    "host-staged": ["pack", "copy to host", "message", "copy to device"],
}


def moves_of(policy):
    return next(moves for name, moves in MOVES.items() if policy.startswith(name))


def steps_of(policy, kind="cuda", **shape):
    return _core.halo_batches(kind, policy, **shape)


def before(steps):
    """For each step all that is over when it begins: by needs, and by the order of its stream."""
    known = []
    for number, (_, _, stream, needs) in enumerate(steps):
        assert all(need < number for need in needs)
        direct = {*needs, *(k for k in range(number) if steps[k][2] == stream)}
        known.append(direct.union(*(known[k] for k in direct)))
    return known


def only(steps, action, stage=None):
    """The step that does this, in a stage if one is given."""
    found = [
        k for k, step in enumerate(steps) if action in step[0] and (stage is None or step[1] in (-1, stage))
    ]
    assert len(found) == 1, (action, stage, steps)
    return found[0]


@pytest.mark.parametrize("kind", POLICIES)
def test_every_entry_does_what_its_transport_must_in_order_in_every_shape(kind):
    for policy, shape in itertools.product(POLICIES[kind], SHAPES):
        if shape["stages"] > 1 and not policy.endswith("-directions"):
            continue
        steps = steps_of(policy, kind, **shape)
        known = before(steps)

        overlaps = not policy.endswith("-wait")
        for stage in range(shape["stages"]):
            chain = [*(["produce"] if shape["produces"] else []), *moves_of(policy)]
            positions = [only(steps, action, stage) for action in [*chain, "boundary"]]
            for first, second in itertools.pairwise(positions):
                assert first == second or first in known[second], (policy, shape, chain)
        names = [action for actions, *_ in steps for action in actions]
        assert ("bulk" in names) == (overlaps and shape["has_bulk"])
        if "bulk" in names:
            bulk = only(steps, "bulk")
            if shape["bulk_waits_for_packing"]:
                assert only(steps, "pack") in known[bulk] | {bulk}
            # the last boundary comes after what is beside, unless it takes the places that the bulk leaves
            last = max(k for k, step in enumerate(steps) if step[2] == 0)
            beside = {k for k in range(len(steps)) if steps[k][2] != 0}
            assert beside <= known[last] or shape["boundary_fills"]


def test_a_bulk_waits_for_no_exchange_unless_it_is_in_it():
    for policy, shape in itertools.product(POLICIES["cuda"], SHAPES):
        if not shape["has_bulk"] or policy.endswith(("-wait", "-one-launch")):
            continue
        if shape["stages"] > 1 and not policy.endswith("-directions"):
            continue
        steps = steps_of(policy, **shape)
        (bulk,) = [k for k, step in enumerate(steps) if "bulk" in step[0]]
        over = {action for k in before(steps)[bulk] for action in steps[k][0]}
        assert not over & {"wait", "unpack", "exchange", "message"}, (policy, shape)
        assert "wait" not in steps[bulk][0]


@pytest.mark.parametrize(
    ("policy", "launches"),
    [
        (
            "remote-write-overlap",
            [{"grant credit", "pack", "await credit", "put", "signal", "wait"}, {"bulk"}, {"boundary"}],
        ),
        (
            "remote-write-pack-in-bulk",
            [{"grant credit", "pack", "await credit", "put", "signal", "bulk"}, {"wait", "boundary"}],
        ),
        (
            "remote-write-one-launch",
            [{"grant credit", "pack", "await credit", "put", "signal", "bulk", "wait", "boundary"}],
        ),
        (
            "buffered-write-overlap",
            [
                {"pack", "await credit", "put", "signal"},
                {"bulk"},
                {"wait", "unpack", "grant credit"},
                {"boundary"},
            ],
        ),
        (
            "copy-engine-wait",
            [
                {"pack"},
                {"await credit"},
                {"put"},
                {"signal"},
                {"wait", "unpack", "grant credit"},
                {"boundary"},
            ],
        ),
        ("nccl-wait", [{"pack"}, {"exchange"}, {"boundary"}]),
    ],
)
def test_rows_are_these_launches(policy, launches):
    assert [{*actions} for actions, *_ in steps_of(policy)] == launches


def test_packing_waits_only_where_nobody_else_waits_for_it():
    def packing(**shape):
        return next(
            actions for actions, *_ in steps_of("remote-write-directions", **shape) if "pack" in actions
        )

    assert "wait" in packing()
    assert "wait" not in packing(stages=2)
    assert "wait" not in packing(bulk_waits_for_packing=True)
    assert "wait" in packing(bulk_waits_for_packing=True, has_bulk=False)


def test_without_a_bulk_one_launch_is_left_of_it():
    steps = steps_of("remote-write-one-launch", has_bulk=False)
    assert [{*actions} for actions, *_ in steps] == [
        {"grant credit", "pack", "await credit", "put", "signal", "wait", "boundary"}
    ]
