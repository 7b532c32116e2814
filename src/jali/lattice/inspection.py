"""`inspect`: what jali made of a site function, stage by stage (`jali.codegen.stages`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jali.codegen.pages import StagePage, page, pages_of
from jali.lattice.binding import BoundKernel
from jali.lattice.domain import ALL, Domain, as_domain
from jali.lattice.launch_text import facts_of_halos
from jali.lattice.sites import SiteFunction, SiteFunctionOn
from jali.lattice.sums import Sums, as_bins, as_site_function
from jali.notebook import facts


@dataclass(frozen=True, repr=False)
class KernelReport:
    """One compiled kernel.

    `reads` and `writes` map field names to offsets; `flops` and `bytes_moved` are per site, bytes counting every read at every
    offset and every write once (no reuse by caches); `bytes_least` counts each field once (perfect reuse). `launch` is how it
    is compiled and started on a device, `halo` the halo policy, each with the reason. `stages` has a page for each stage that
    the kernel went through, in order: traced, analysed, lowered, source, binary, bound.
    """

    name: str
    source: str
    path: Path
    lanes: int
    precision: str
    reads: dict[str, list[tuple[int, ...]]]
    writes: dict[str, list[tuple[int, ...]]]
    flops: int
    bytes_moved: int
    bytes_least: int
    fields: list[str] = field(default_factory=list)
    launch: str = ""
    halo: str = ""
    stages: dict[str, StagePage] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<kernel {self._costs}>"

    @property
    def _costs(self) -> str:
        return (
            f"{self.name}: {self.flops} flops, {self.bytes_moved} bytes per site (at least {self.bytes_least}), "
            f"{self.precision}, {self.lanes} lanes"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the facts, and stages and source where they are clicked."""
        rows: dict[str, object] = {"costs": self._costs.partition(": ")[2]}
        for what, accesses in (("reads", self.reads), ("writes", self.writes)):
            for name, offsets in accesses.items():
                rows[f"{what} {name}"] = "at " + ", ".join(map(str, offsets))
        rows |= {name: text for name, text in (("launch", self.launch), ("halos", self.halo)) if text}
        folded = {f"stage {name}": str(page) for name, page in self.stages.items()}
        return facts(f"kernel {self.name}", rows, folded | {"source": self.source})

    def __str__(self) -> str:
        lines = [
            self._costs,
            f"  source {self.path}",
            *([f"  launch {self.launch}"] if self.launch else []),
            *([f"  halos {self.halo}"] if self.halo else []),
        ]
        lines += [f"  reads {name} at {', '.join(map(str, offsets))}" for name, offsets in self.reads.items()]
        lines += [
            f"  writes {name} at {', '.join(map(str, offsets))}" for name, offsets in self.writes.items()
        ]
        return "\n".join([*lines, "", self.source])


def inspect(
    function: SiteFunction | SiteFunctionOn,
    *arguments: Any,
    over: Domain = ALL,
    lattice: Any = None,
    bins: int | dict[str, int] | None = None,
    **named: Any,
) -> KernelReport:
    """Compiles (without running) a site function for these arguments and reports on its kernel.

    Arguments may be given by name. Sums, maxima and minima are what remains of its parameters, and `bins` is as in `lattice.sum`. Raises what a call would raise.
    """
    whole = function
    if isinstance(function, SiteFunctionOn):
        whole, over = function.function, function.domain
    whole, over = as_site_function(whole, "jali.inspect"), as_domain(over, "over=")
    sums = Sums(bins=bins if bins is None else as_bins(bins)) if whole.missing(arguments, named) else None
    traced, (kernel, *_) = whole.traced(*arguments, over=over, lattice=lattice, sums=sums, **named)
    analysis, program = kernel.text.analysis, kernel.program
    return KernelReport(
        name=program.name,
        source=kernel.text.text,
        path=kernel.source,
        lanes=kernel.layout.lanes,
        precision=program.precision,
        reads={
            program.fields[slot].name: [program.offset_of_user(offset) for offset in offsets]
            for slot, offsets in analysis.reads.items()
        },
        writes={
            program.fields[slot].name: [program.offset_of_user((0,) * program.ndim)]
            for slot in analysis.writes
        },
        flops=kernel.cost.flops,
        bytes_moved=kernel.cost.bytes_moved,
        bytes_least=kernel.cost.bytes_least,
        fields=[f.name for f in kernel.fields],
        launch=kernel.chosen.launch,
        halo=kernel.chosen.halo,
        stages={page.stage: page for page in [*pages_of(traced, kernel.binary), bound_page(kernel, over)]},
    )


def bound_page(kernel: BoundKernel, domain: Domain) -> StagePage:
    """The page of the last stage."""
    sites = kernel.sites
    return page(
        "bound",
        {
            "fields": [field.name for field in kernel.fields],
            "parameters": len(kernel.parameters),
            "positions": sites.end - sites.begin if sites.blocks is None else len(sites.blocks),
            "bytes moved": kernel.cost.bytes_moved,
            "bytes least": kernel.cost.bytes_least,
            "launch": kernel.chosen.launch,
            "halos": kernel.chosen.halo,
            **facts_of_halos(kernel, domain),
        },
    )
