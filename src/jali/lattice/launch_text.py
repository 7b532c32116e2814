"""What a launch does, as text: its sites, the ghosts that it reads, the policy that brings them and why not another,
its steps.

The form is that of `jali.planner.Plan.explain`. Sites and slabs come from geometry (`jali.lattice.updates`), steps and
reasons from the core's launch, on a device from what its driver is given.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from jali import _core
from jali.amounts import counted, size_text
from jali.lattice.binding import BoundKernel
from jali.lattice.colours import sites_of
from jali.lattice.domain import ALL
from jali.lattice.updates import Part, SplitUpdate, Update


def explain_launch(kernel: BoundKernel, domain: Any) -> str:
    """The text for one kernel of a call. Collective where the lattice is split."""
    lattice = kernel.lattice
    steps = _by_argument(kernel, kernel.launch.describe().rstrip())  # first, since it makes room for ghosts
    lines = [
        f"{kernel.program.name} over {domain} of {lattice}, {kernel.program.precision}, on rank {lattice.rank} of "
        f"{lattice.communicator.size} as {'x'.join(map(str, lattice.grid))}",
        f"  {_place(kernel)}",
        f"  a site: {kernel.cost.bytes_moved} bytes moved, {kernel.cost.bytes_least} at least, "
        f"{kernel.cost.flops} flops",
        *([f"  launch {kernel.chosen.launch}"] if kernel.chosen.launch else []),
        "",
        *_memory(kernel),
    ]
    if kernel.lowering.tables:
        lines += [
            "",
            "  its fields are of several lattices, or arrays: their halos are exchanged before it begins",
        ]
    else:
        split = Update.of(kernel, domain).on(lattice.extents, lattice.grid)
        lines += ["", *_sites(split.part(lattice.rank)), *_ghosts(split, lattice.rank)]
        if split.ghosts and lattice.communicator.size > 1:
            lines += ["", *_policies(kernel)]
    lines += ["", "  steps of a run whose ghosts are all stale:"]
    lines += textwrap.indent(steps, "    ").splitlines()
    return "\n".join(lines)


def facts_of_halos(kernel: BoundKernel, domain: Any) -> dict[str, Any]:
    """Sites and slabs of a kernel for `jali.inspect`: nothing where it has no ghosts."""
    lattice = kernel.lattice
    if kernel.lowering.tables or lattice.communicator.size == 1:
        return {}
    split = Update.of(kernel, domain).on(lattice.extents, lattice.grid)
    if not split.ghosts:
        return {}
    part = split.part(lattice.rank)
    return {
        "sites in the bulk": part.bulk.sites,
        "sites in the boundary": part.late.sites,
        "halos sent": [f"{size_text(m.bytes)} of slab {_key(m.key)} to rank {m.to}" for m in part.sent],
    }


def _by_argument(kernel: BoundKernel, text: str) -> str:
    """The text with fields that their user gave no name called as the arguments that they are."""
    for described, field in zip(kernel.program.fields, kernel.fields, strict=True):
        if not field.named:
            argument = described.name.replace("\\", "")  # a replacement of re's
            text = re.sub(rf"(?<!\w){re.escape(field.name)}(?!\w)", argument, text)
    return text


def _place(kernel: BoundKernel) -> str:
    gpu, layout = kernel.lattice.gpu, kernel.layout
    box = f"a box of {'x'.join(map(str, kernel.lattice.local_extents))}"
    if gpu is not None:
        return f"{box} on {gpu.kind}:{gpu.ordinal} ({gpu.name})"
    return f"{box} on the host, {layout.lanes} lane{'s' if layout.lanes > 1 else ''}"


def _memory(kernel: BoundKernel) -> list[str]:
    lines = [f"  {'field':<22}{'use':<12}{'a site':>10}{'box':>12}{'ghosts':>12}   where"]
    reads, writes = kernel.text.analysis.reads, kernel.text.analysis.writes
    for slot, described in enumerate(kernel.program.fields):
        if slot not in reads and slot not in writes:
            continue
        field = kernel.fields[slot]
        storage, layout = field.storage, field.layout
        use = " and ".join(what for what, slots in (("read", reads), ("written", writes)) if slot in slots)
        box = storage.site_bytes * sites_of(
            field.over, kernel.lattice.local_extents, kernel.lattice.local_origin
        )
        odd = any(n % 2 for n in kernel.lattice.extents)  # then there is memory for the other colour, too
        kept = 0 if storage.borrowed else storage.site_bytes * layout.sites if odd else box
        name = described.name if field.over is ALL else f"{described.name} on {field.over}"
        lines.append(
            f"  {name:<22}{use:<12}{size_text(storage.site_bytes):>10}{size_text(box):>12}"
            f"{size_text(max(0, storage.nbytes - kept)):>12}   {storage.address:#x}"
        )
    return lines


def _sites(part: Part) -> list[str]:
    if not part.boundary:
        return [f"  {counted(part.whole.sites, 'site')}, none of which reads a ghost"]
    late = ", ".join(f"{work.sites} in direction {d}" for d, work in part.boundary.items())
    return [
        f"  {counted(part.whole.sites, 'site')}: {part.bulk.sites} in the bulk, {part.late.sites} in the boundary ({late}; a site "
        "that reads ghosts of several counts in the last)"
    ]


def _ghosts(split: SplitUpdate, rank: int) -> list[str]:
    if not split.ghosts:
        return []
    geometry = _core.Geometry(split.partition, rank)
    lines = ["", f"  {'ghosts':<22}{'bytes':>12}{'from':>7}   what"]
    for message in split.part(
        rank
    ).sent:  # as large as the received part, since boxes side by side are alike across
        held = ", ".join(f"{name} {size_text(size)}" for name, size in message.parts)
        owner = geometry.slab(list(message.key))[0]
        lines.append(f"  slab {_key(message.key):<17}{size_text(message.bytes):>12}{owner:>7}   {held}")
    return lines


def _policies(kernel: BoundKernel) -> list[str]:
    gpu, core = kernel.lattice.gpu, kernel.lattice.communicator.core
    lines = [f"  halo policy {kernel.chosen.halo or kernel.launch.policy}"]
    for name, description, *_ in _core.halo_policies("cpu" if gpu is None else gpu.kind):
        taken = name == kernel.launch.policy
        why_not = kernel.layout.why_not_halo_policy(core, name)
        verdict = "taken" if taken else f"not here: {why_not}" if why_not else "possible, not asked for"
        lines += textwrap.wrap(
            f"{name}: {verdict}" + (f"; {description}" if taken else ""),
            116,
            initial_indent="    ",
            subsequent_indent="      ",
        )
    return lines


def _key(key: tuple[int, ...]) -> str:
    return f"({', '.join(f'{step:+d}' if step else '0' for step in key)})"
