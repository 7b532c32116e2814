"""`inspect`: what jali made of a site function, stage by stage (`jali.codegen.stages`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jali.codegen.pages import StagePage, page, page_of_kernels, pages_of
from jali.codegen.stages import Traced
from jali.lattice.binding import BoundKernel
from jali.lattice.domain import ALL, Domain, as_domain
from jali.lattice.launch_text import facts_of_halos
from jali.lattice.sites import SiteFunction, SiteFunctionOn
from jali.lattice.sums import Sums, as_bins, as_site_function
from jali.notebook import facts


@dataclass(frozen=True, repr=False)
class KernelReport:
    """One compiled kernel, or the kernels of a function that writes at several offsets, one for each of them.

    `reads` and `writes` map field names to offsets; `flops` and `bytes_moved` are per site, bytes counting every read at every
    offset and every write once (no reuse by caches); `bytes_least` counts each field once (perfect reuse). `launch` is how it
    is compiled and started on a device, `halo` the halo policy, each with the reason. `stages` has a page for each stage that
    the kernel went through, in order: traced, rewritten, analysed, lowered, source, binary, bound.

    Of several kernels `kernels` has a report of each, in the order in which they run, else it is empty. Reads, writes, flops, bytes,
    `source` and `stages` are then those of all; `path` is that of the first.
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
    kernels: list[KernelReport] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<{self._what} {self._costs}>"

    @property
    def _what(self) -> str:
        return f"{len(self.kernels)} kernels of" if self.kernels else "kernel"

    @property
    def _costs(self) -> str:
        return (
            f"{self.name}: {self.flops} flops, {self.bytes_moved} bytes per site (at least {self.bytes_least}), "
            f"{self.precision}, {self.lanes} lanes"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the facts, and stages and source where they are clicked."""
        rows: dict[str, object] = {"costs": self._costs.partition(": ")[2]}
        rows |= {f"costs of {one.name}": one._costs.partition(": ")[2] for one in self.kernels}
        for what, accesses in (("reads", self.reads), ("writes", self.writes)):
            for name, offsets in accesses.items():
                rows[f"{what} {name}"] = "at " + ", ".join(map(str, offsets))
        rows |= {name: text for name, text in (("launch", self.launch), ("halos", self.halo)) if text}
        folded = {f"stage {name}": str(page) for name, page in self.stages.items()}
        return facts(f"{self._what} {self.name}", rows, folded | {"source": self.source})

    def __str__(self) -> str:
        return "\n".join([*self._lines(), "", self.source])

    def _lines(self) -> list[str]:
        """What it says above the source."""
        lines = [self._costs]
        if self.kernels:
            lines.append(f"  {len(self.kernels)} kernels, one for each offset that is written")
        else:
            lines += [
                f"  source {self.path}",
                *([f"  launch {self.launch}"] if self.launch else []),
                *([f"  halos {self.halo}"] if self.halo else []),
            ]
        lines += [f"  reads {name} at {', '.join(map(str, offsets))}" for name, offsets in self.reads.items()]
        lines += [
            f"  writes {name} at {', '.join(map(str, offsets))}" for name, offsets in self.writes.items()
        ]
        return [*lines, *(f"  {line}" for one in self.kernels for line in one._lines())]


def inspect(
    function: SiteFunction | SiteFunctionOn,
    *arguments: Any,
    over: Domain = ALL,
    lattice: Any = None,
    bins: int | dict[str, int] | None = None,
    **named: Any,
) -> KernelReport:
    """Compiles (without running) a site function for these arguments and reports on its kernel, or on all where there are several.

    Arguments may be given by name. Sums, maxima and minima are what remains of its parameters, and `bins` is as in `lattice.sum`. Raises what a call would raise.
    """
    whole = function
    if isinstance(function, SiteFunctionOn):
        whole, over = function.function, function.domain
    whole, over = as_site_function(whole, "jali.inspect"), as_domain(over, "over=")
    sums = Sums(bins=bins if bins is None else as_bins(bins)) if whole.missing(arguments, named) else None
    pairs = whole.stages(*arguments, over=over, lattice=lattice, sums=sums, **named)
    reports = [_report(traced, kernel, over) for traced, kernel in pairs]
    return reports[0] if len(reports) == 1 else _report_of_kernels(reports)


def _report(traced: Traced, kernel: BoundKernel, over: Domain) -> KernelReport:
    """On one kernel."""
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


def _report_of_kernels(reports: list[KernelReport]) -> KernelReport:
    """On all kernels of a function. What each reads and computes counts, also where another one does the same."""
    first = reports[0]
    pages = {
        stage: page_of_kernels({one.name: one.stages[stage] for one in reports})
        for stage in first.stages
        if stage != "traced"
    }
    return replace(
        first,
        source="\n".join(one.source for one in reports),
        reads=_joined(one.reads for one in reports),
        writes=_joined(one.writes for one in reports),
        flops=sum(one.flops for one in reports),
        bytes_moved=sum(one.bytes_moved for one in reports),
        bytes_least=sum(one.bytes_least for one in reports),
        launch=_by_kernel({one.name: one.launch for one in reports}),
        halo=_by_kernel({one.name: one.halo for one in reports}),
        stages={"traced": first.stages["traced"], **pages},
        kernels=reports,
    )


def _joined(accesses: Iterable[dict[str, list[tuple[int, ...]]]]) -> dict[str, list[tuple[int, ...]]]:
    """Offsets by fields, each once."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for of_kernel in accesses:
        for name, offsets in of_kernel.items():
            found[name] = list(dict.fromkeys([*found.get(name, []), *offsets]))
    return found


def _by_kernel(texts: dict[str, str]) -> str:
    """What is said of each kernel, once where it is the same."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {text}" for name, text in texts.items() if text)


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
