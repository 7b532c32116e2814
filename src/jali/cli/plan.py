"""`jali plan`: how a collective is done on a machine, in words and as a picture.

Nothing runs on the machine, which is only described; the plan is made for all its ranks, simulated and explained.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jali import comm
from jali.amounts import counted
from jali.cli.options import make_folder
from jali.cli.plan_arguments import add_plan_arguments, plan_from
from jali.planner.plan import COUNTED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali plan`."""
    parser.description = "Explain the plan of a collective on a machine, and draw it."
    add_plan_arguments(parser)
    parser.add_argument("--check", action="store_true", help="prove over all ranks that the plan is right")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="where the picture goes (default: no picture)"
    )
    parser.add_argument(
        "--format", choices=("png", "svg", "pdf"), default="png", help="of the picture (default png)"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Explain, check and draw; one rank prints for all."""
    if comm.current().rank != 0:
        return 0
    plan = plan_from(arguments)
    facts = plan.facts()
    if arguments.check:
        plan.check()
        facts["checked"] = True
    if arguments.output is not None and plan.ranks <= COUNTED:
        result = plan.result
        machine = result.machine.name if result is not None else "ranks"
        name = f"{(plan.collective or 'plan').replace('_', '-')}-{machine}-{plan.ranks}.{arguments.format}"
        make_folder("--output", arguments.output)
        facts["picture"] = str(plan.draw(arguments.output / name))
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return 0
    print(plan.explain())
    if arguments.check:
        print(f"\n  checked: right on all {counted(plan.ranks, 'rank')}, in any order of steps")
    if "picture" in facts:
        print(f"\n  drawn in {facts['picture']}")
    elif arguments.output is not None:
        print(f"\n  not drawn: pictures are for up to {COUNTED} ranks")
    return 0
