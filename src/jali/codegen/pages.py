"""Pages about stages, for users and programs: what `jali.inspect` shows of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from jali.codegen.ir import Label, SiteProgram, Store, Sum, offset_text
from jali.codegen.operation import described
from jali.codegen.rewriting import reachable
from jali.codegen.stage_cache import COUNTS
from jali.codegen.stages import Analysed, Binary, Lowered, Traced

_OF_HALO_ITEMS = ("crossing", "wraps")  # fields of a Lowering that a page describes in words


@dataclass(frozen=True)
class StagePage:
    """One stage of a kernel: facts by name, and what is long as `text`. This process has `found` the stage, of this or other kernels,
    so often, and `made` it so often; running what is bound is not counted.

    Of several kernels `facts` has those of each by its name, and `text` one part for each; `traced` has common facts."""

    stage: str
    facts: dict[str, Any]
    text: str
    found: int
    made: int

    def __str__(self) -> str:
        lines = [f"{self.stage} (in this process {self.made} made, {self.found} found)"]
        for name, value in self.facts.items():
            if isinstance(value, dict):
                lines += [f"  {name}", *(f"    {fact}: {_shown(one)}" for fact, one in value.items())]
            else:
                lines.append(f"  {name}: {_shown(value)}")
        return "\n".join([*lines, *(["", self.text] if self.text else [])])


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None or value == "" else str(value)


def page(stage: str, facts: dict[str, Any], text: str = "") -> StagePage:
    """A page with the counts of its stage."""
    return StagePage(stage, facts, text, COUNTS[stage].found, COUNTS[stage].made)


def pages_of(traced: Traced, binary: Binary) -> list[StagePage]:
    """The pages of the stages that this machine code went through."""
    source = binary.source
    kernel, lowered = source.kernel, source.lowered
    facts = {"lines": kernel.text.count("\n"), "parameters": [_parameter(p) for p in kernel.parameters]}
    where = {"source": binary.path, "runs on": "the host" if binary.function is None else "a device"}
    return [
        _traced(traced),
        _rewritten(lowered),
        _analysed(lowered.analysed),
        _lowered(lowered),
        page("source", facts, kernel.text),
        page("binary", where),
    ]


def page_of_kernels(pages: Mapping[str, StagePage]) -> StagePage:
    """The page of one stage of several kernels, by their names."""
    stages = {page.stage for page in pages.values()}
    assert len(stages) == 1, f"a page of several stages: {stages}"
    (stage,) = stages
    facts = {name: page.facts for name, page in pages.items()}
    if stage == "source":  # whose first line has the name
        return page(stage, facts, "\n".join(page.text for page in pages.values()))
    return page(stage, facts, _by_name({name: page.text for name, page in pages.items()}))


def _by_name(texts: Mapping[str, str]) -> str:
    """Texts of kernels, each under a line with the name."""
    return "\n\n".join(f"// {name}\n{text}" for name, text in texts.items() if text)


def _traced(traced: Traced) -> StagePage:
    first = traced.programs[0]
    facts = {
        "programs": [program.name for program in traced.programs],
        "fields": [f"{slot.name}, {slot.element}" for slot in first.fields],
        "scalars": [f"{name}, {type}" for name, type in first.scalars],
        "random numbers": first.randoms,
        "precision": first.precision,
        "watched objects": len(traced.guards),
    }
    if len(traced.programs) == 1:
        return page("traced", facts, _effects(first))
    return page("traced", facts, _by_name({p.name: _effects(p) for p in traced.programs}))


def _effects(program: SiteProgram) -> str:
    lines = []
    for effect in program.effects:
        if isinstance(effect, Store):
            target = (
                f"{program.fields[effect.slot].name} at {offset_text(program.offset_of_user(effect.offset))}"
            )
            lines.append(f"{target} = %{effect.value.number}  // {effect.where}")
        elif isinstance(effect, Sum):
            entry = f"[label {effect.label}]" if effect.label >= 0 else ""
            lines.append(f"{effect.how} {effect.slot}{entry} += %{effect.value.number}  // {effect.where}")
        elif isinstance(effect, Label):
            lines.append(f"label {effect.slot} = %{effect.value.number}  // {effect.where}")
    return "\n".join(lines)


def _rewritten(lowered: Lowered) -> StagePage:
    program = lowered.analysed.program
    facts = {"passes": list(program.rewrites)}
    return page("rewritten", facts, _effects(program))


def _analysed(analysed: Analysed) -> StagePage:
    program, analysis = analysed.program, analysed.analysis
    names = [slot.name for slot in program.fields]
    nodes = reachable(effect.value for effect in program.effects)
    facts = {
        "flops": analysis.flops,
        "reals read": analysis.loads,
        "reals written": analysis.stores,
        "reads": [f"{names[slot]} at {offset_text(o)}" for slot, at in analysis.reads.items() for o in at],
        "writes": [names[slot] for slot in analysis.writes],
        "multiply-adds": sum(described(node).fused for node in nodes),
        "reads that may race": [
            f"{names[store.slot]} at {offset_text(o)}" for store, o in analysed.may_race if any(o)
        ],
    }
    lines = []
    for node in nodes:
        lines.append(f"{node!r}  // {node.where}")
    return page("analysed", facts, "\n".join(lines))


def _lowered(lowered: Lowered) -> StagePage:
    lowering = lowered.lowering
    facts = {f.name: getattr(lowering, f.name) for f in fields(lowering) if f.name not in _OF_HALO_ITEMS}
    facts["accesses"] = sorted(lowering.accesses, key=lambda access: (access.slot, access.offset))
    facts["halo items"] = [
        f"{item.reals} reals at {offset_text(item.offset)}" for item, _ in lowered.producers
    ]
    return page("lowered", facts)


def _parameter(parameter: Any) -> str:
    slot = (
        f" {parameter.slot}"
        if parameter.what in ("field", "phases", "scalar", "whole", "key", "call")
        else ""
    )
    return f"{parameter.what}{slot}" + (f" at {offset_text(parameter.offset)}" if parameter.offset else "")
