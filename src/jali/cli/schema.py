"""The contents of a parameter file of ``jali run``: one table, from which everything else follows.

Each section is a frozen dataclass and each key one of its fields: name, type, default, range, unit and a
sentence on its effect. Checking (``jali.cli.parameters``), the echoed file and the documentation page are
derived from it, so a key is added by adding one line here. Nothing here reads files.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from jali.amounts import counted
from jali.cli.scalars import checked_scalar, family_of
from jali.cli.terms import GAUGE, checked_term, problems_of_scalars
from jali.codegen.arithmetics import IEEE_PRECISIONS
from jali.devices import device_names, parse_device
from jali.errors import DeviceError
from jali.files import shown, value_shown
from jali.gauge.actions import ACTIONS
from jali.gauge.algorithms import algorithms
from jali.hmc import INTEGRATORS
from jali.io.formats import writers

__all__ = [
    "REQUIRED",
    "Gauge",
    "Hmc",
    "LatticeShape",
    "Measure",
    "ParameterSpec",
    "RunControl",
    "RunParameters",
    "Update",
    "find_inconsistencies",
    "group_name",
    "parameter_specs",
    "schema_markdown",
    "toml_value",
]

REQUIRED = dataclasses.MISSING

HMC = "hmc"
"""The algorithm whose sweeps are trajectories, which needs no update of single links."""

MOST_LEVELS = 8

LEAST_TO_TUNE = 20
"""Trajectories of thermalisation in which steps can be found."""

MOST = 10**12
"""The most sweeps of a run; numbers of them stay exact in tables and checkpoints."""


def key(doc: str, default: Any = REQUIRED, **limits: Any) -> Any:
    """A dataclass field that carries its entry of the schema; see :class:`ParameterSpec` for the limits."""
    return field(default=default, metadata={"doc": doc, **limits})


@dataclass(frozen=True)
class LatticeShape:
    """The lattice and its split over ranks."""

    extents: tuple[int, ...] = key(
        "Sites in each direction; the last one is time.",
        low=1,
        ceiling=2**30 - 1,
        lengths=(2, 4),
        example=(8, 8, 8, 8),
    )
    grid: tuple[int, ...] = key(
        "Ranks in each direction; an empty list lets jali choose.", (), low=1, ceiling=2**20, lengths=(0, 4)
    )


@dataclass(frozen=True)
class Gauge:
    """The theory and the configuration to start from."""

    group: str = key(
        "Gauge group: U(1) or SU(N) with N from 2; SU3 is understood too.", parse="group", example="SU(3)"
    )
    beta: float = key(
        "Coupling of the action; Wilson's weighs a configuration with exp((beta/N) sum Re Tr U_p).",
        low=0.0,
        example=6.0,
    )
    action: str = key(
        "Action: plaquettes (wilson), or plaquettes and 1 x 2 rectangles with c1 = -1/12 (symanzik, tree level), "
        "-0.331 (iwasaki) or -1.4088 (dbw2).",
        "wilson",
        choices=tuple(ACTIONS),
    )
    start: str = key(
        "First configuration: every link 1 (cold), every link random (hot), or read from start_file.",
        "hot",
        choices=("cold", "hot", "file"),
    )
    start_file: str = key('Configuration file, or folder of a run, to start from, with start = "file".', "")


@dataclass(frozen=True)
class Update:
    """What one sweep does and how many there are."""

    algorithm: str = key(
        "Update that brings randomness. A sweep of hmc is one trajectory, as [hmc] describes it, and nothing else.",
        "heatbath",
        choices=(*algorithms(), HMC),
    )
    sweeps: int = key("Sweeps after thermalisation, over which averages are taken.", 200, low=0, ceiling=MOST)
    thermalisation: int = key("Sweeps before averages begin.", 100, low=0, ceiling=MOST)
    heatbath: int = key(
        "Passes of the algorithm over the lattice in each sweep; hmc has none.", 1, low=1, ceiling=10**6
    )
    overrelaxation: int = key(
        "Overrelaxation passes after them in each sweep; hmc has none.", 4, low=0, ceiling=10**6
    )
    metropolis_hits: int = key("Metropolis proposals for a link in each pass.", 8, low=1, high=100)
    metropolis_step: float = key(
        "Size of a Metropolis proposal: the angle by which it rotates a link.",
        0.3,
        above=0.0,
        high=math.pi,
        unit="radians",
    )


@dataclass(frozen=True)
class Hmc:
    """Trajectories of hybrid Monte Carlo, with algorithm = "hmc"."""

    tau: float = key(
        "Length of a trajectory, for momenta with the density exp(tr P^2) in the algebra, T_a = lambda_a / 2.",
        1.0,
        above=0.0,
    )
    spread: float = key(
        "Lengths are drawn between (1 - spread) tau and (1 + spread) tau.", 0.0, low=0.0, high=0.99
    )
    integrator: tuple[str, ...] = key(
        "Integrator of each level, the coarsest first; a single one is that of all.",
        ("2MN",),
        choices=tuple(INTEGRATORS),
        lengths=(1, MOST_LEVELS),
    )
    steps: tuple[int, ...] = key(
        "Steps of each level over a move of the level around it, the whole trajectory for the first; their number is that of levels.",
        (10,),
        low=1,
        ceiling=10**6,
        lengths=(1, MOST_LEVELS),
    )
    tune_steps: float = key(
        "Acceptance for which thermalisation finds the steps of the first level, which then stay; 0 keeps those of steps.",
        0.0,
        low=0.0,
        high=0.999,
    )
    accept_always: int = key(
        "First trajectories that are accepted whatever dH is, of those of thermalisation.",
        10,
        low=0,
        ceiling=MOST,
    )
    check_reversibility: int = key(
        "Interval at which a trajectory is also gone back; 0 never.",
        100,
        low=0,
        ceiling=MOST,
        unit="trajectories",
    )
    forces_every: int = key(
        "Interval at which sizes of forces are recorded; 0 never.",
        10,
        low=0,
        ceiling=MOST,
        unit="trajectories",
    )
    mass: float = key("Mass of the momenta of links.", 1.0, above=0.0)
    scalars: tuple[dict[str, Any], ...] = key(
        'Scalar fields, a table [[hmc.scalars]] each: name; kind "real", "complex", "vector(N)" (N real numbers), "O(N)" (of length 1), "fundamental" or '
        '"adjoint"; mass of its momenta (1); start "cold" or "hot" ("hot").',
        (),
        entry=checked_scalar,
        lengths=(0, 20),
    )
    terms: tuple[dict[str, Any], ...] = key(
        "Terms of the action, a table [[hmc.terms]] each; none: the action of [gauge], on the finest level.",
        (),
        entry=checked_term,
        lengths=(0, 20),
    )


@dataclass(frozen=True)
class RunControl:
    """Random numbers, precision and what happens how often."""

    seed: int = key("Seed of the random numbers; equal seeds give equal bits.", 1, low=0, high=2**63 - 1)
    stream: int = key("Independent stream of random numbers for the same seed.", 0, low=0, high=2**32 - 1)
    precision: str = key("Precision of links and arithmetic.", "float64", choices=IEEE_PRECISIONS[::-1])
    device: str = key(
        'Where fields live and kernels run; "" is what JALI_DEVICE says, or else "cpu". Changes no bit.',
        "",
        parse="device",
    )
    measure_every: int = key("Interval of measurements.", 1, low=1, ceiling=MOST, unit="sweeps")
    checkpoint_every: int = key(
        "Interval of checkpoints; 0 writes one at the end only.", 100, low=0, ceiling=MOST, unit="sweeps"
    )
    reunitarise_every: int = key(
        "Interval of projections back to the group; 0 never.", 10, low=0, ceiling=MOST, unit="sweeps"
    )
    save_every: int = key(
        "Interval at which the configuration is written into the folder of the run, beside those before it; 0 never.",
        0,
        low=0,
        ceiling=MOST,
        unit="sweeps",
    )
    save_format: str = key("Format of the configurations that are saved.", "ildg", choices=tuple(writers()))


@dataclass(frozen=True)
class Measure:
    """What is measured besides the plaquette."""

    polyakov: bool = key("Measure the Polyakov loop.", True)
    flow: bool = key("Measure energy density and topological charge along the gradient flow.", False)
    flow_every: int = key("Interval of flow measurements.", 10, low=1, ceiling=MOST, unit="sweeps")
    flow_time: float = key(
        "Flow time at which the flow ends.", 1.0, above=0.0, unit="lattice spacings squared"
    )
    flow_step: float = key(
        "Step of the third-order integrator of the flow.",
        0.02,
        above=0.0,
        high=0.5,
        unit="lattice spacings squared",
    )


@dataclass(frozen=True)
class RunParameters:
    """All parameters of ``jali run``, complete and checked."""

    lattice: LatticeShape
    gauge: Gauge
    update: Update = field(default_factory=Update)
    hmc: Hmc = field(default_factory=Hmc)
    run: RunControl = field(default_factory=RunControl)
    measure: Measure = field(default_factory=Measure)

    @property
    def volume(self) -> int:
        """Number of sites."""
        return math.prod(self.lattice.extents)


@dataclass(frozen=True)
class ParameterSpec:
    """One key: its section, its allowed values and its meaning.

    ``low`` and ``high`` are inclusive, ``above`` is exclusive; ``ceiling`` is an undocumented bound: larger values
    are not meaningful. For lists they bound each entry, and ``lengths`` bounds their number; one value stands for a
    list of one, where that is long enough. ``entry`` checks an entry of a list of tables. ``example`` stands in for the
    default of a required key.
    """

    section: str
    name: str
    kind: type | Any
    default: Any
    doc: str
    unit: str = ""
    low: float | None = None
    above: float | None = None
    high: float | None = None
    ceiling: int | None = None
    choices: tuple[str, ...] = ()
    lengths: tuple[int, int] | None = None
    parse: str = ""
    entry: Callable[[Any], Any] | None = None
    example: Any = None

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def is_text(self) -> bool:
        return self.kind is str

    @property
    def is_list(self) -> bool:
        return self.lengths is not None

    def expected(self) -> str:
        """The allowed values, as the end of the sentence "must be ..."."""
        if self.entry:
            return "a list of tables"
        if self.choices:
            named = "one of " + ", ".join(toml_value(choice) for choice in self.choices)
            return f"{named}, or a list of them" if self.lengths else named
        if self.parse == "group":
            return '"U(1)" or "SU(N)" with N from 2'
        if self.parse == "device":
            return device_names('"') + ', or ""'
        if self.kind is bool:
            return "true or false"
        if self.is_text:
            return "a string"
        noun = "a number" if self.kind is float else "an integer"
        if self.lengths:
            least, most = self.lengths
            noun = f"a list of {least} to {most} integers" if least else f"a list of up to {most} integers"
            if least == 1:
                noun = f"an integer, or {noun}"
        each = ", each" if self.lengths else ""
        high = repr(self.high) if isinstance(self.high, int) else f"{self.high or 0:.6g}"
        if self.low is not None:
            text = (
                f"{noun}{each} from {self.low:g} to {high}"
                if self.high is not None
                else f"{noun}{each or ','} {self.low:g} or more"
            )
        elif self.above is not None:
            text = f"{noun}{each} above {self.above:g}" + (
                f" and at most {high}" if self.high is not None else ""
            )
        else:
            text = noun
        return text + (f" ({self.unit})" if self.unit else "")

    def check(self, value: Any) -> Any:
        """The value as the program uses it.

        Raises:
            ValueError: it is of the wrong type or out of range; the message states the allowed values.
        """
        if self.ceiling is not None and any(
            type(entry) is int and entry > self.ceiling
            for entry in (value if isinstance(value, list | tuple) else [value])
        ):
            raise ValueError(f"{said(value)}; {self.ceiling} is the most that can be meant")
        if self.parse:
            if isinstance(value, str):
                return _PARSERS[self.parse](value)
        elif self.is_list:
            return self._check_list(value)
        elif self.choices:
            if isinstance(value, str) and value in self.choices:
                return value
        elif self.kind is float:
            if type(value) in (int, float) and _is_finite(value) and self._in_range(value):
                return float(value)
        elif self.kind in (bool, str):
            if isinstance(value, str) and "\0" in value:
                raise ValueError(f"{said(value)} holds a NUL character, which no file's name can")
            if type(value) is self.kind:
                return value
        elif type(value) is int and self._in_range(value):
            return value
        raise ValueError(f"{said(value)}{self._hint(value)}; must be {self.expected()}")

    def _check_list(self, value: Any) -> tuple[Any, ...]:
        assert self.lengths is not None
        least, most = self.lengths
        listed = [value] if least == 1 and type(value) in (int, str) else value
        if isinstance(listed, list | tuple) and least <= len(listed) <= most:
            if self.entry:
                return tuple(self._check_entry(k, entry) for k, entry in enumerate(listed))
            if all(self._is_entry(entry) for entry in listed):
                return tuple(listed)
        raise ValueError(f"{said(value)}; must be {self.expected()}")

    def _check_entry(self, place: int, entry: Any) -> Any:
        assert self.entry is not None
        try:
            return self.entry(entry)
        except ValueError as error:
            raise ValueError(f"{said(entry)}, entry {place + 1}: {error}") from None

    def _is_entry(self, entry: Any) -> bool:
        if self.choices:
            return isinstance(entry, str) and entry in self.choices
        return type(entry) is int and self._in_range(entry)

    def _in_range(self, value: float) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
        )

    def _hint(self, value: Any) -> str:
        if isinstance(value, str) and not self.is_text:
            return ", a string"
        if (
            self.kind is int
            and isinstance(value, float)
            and math.isfinite(value)
            and abs(value) < 2**53
            and value == int(value)
        ):
            return f", not an integer (write {int(value)})"
        return ""


def parameter_specs() -> tuple[ParameterSpec, ...]:
    """The whole schema, in the order in which sections and keys are written."""
    table = []
    for section in dataclasses.fields(RunParameters):
        cls = get_type_hints(RunParameters)[section.name]
        hints = get_type_hints(cls)
        for one in dataclasses.fields(cls):
            table.append(ParameterSpec(section.name, one.name, hints[one.name], one.default, **one.metadata))
    return tuple(table)


def section_docs() -> dict[str, str]:
    """The sentence that describes each section."""
    hints = get_type_hints(RunParameters)
    return {s.name: (hints[s.name].__doc__ or "").strip() for s in dataclasses.fields(RunParameters)}


def group_name(text: str) -> str:
    """Canonical name of a gauge group: ``SU3``, ``su(3)`` and ``SU(3)`` give ``SU(3)``; ``U1`` gives
    ``U(1)``.

    Raises:
        ValueError: not U(1) and not SU(N) with N >= 2.
    """
    match = re.fullmatch(r"(SU|U)(?:\((\d{1,3})\)|(\d{1,3}))", text.strip().replace(" ", "").upper())
    if match:
        family, number = match[1], int(match[2] or match[3])
        if (family == "U" and number == 1) or (family == "SU" and number >= 2):
            return f"{family}({number})"
    raise ValueError(f'{said(text)} is not a gauge group; must be "U(1)" or "SU(N)" with N from 2')


def device_name(text: str) -> str:
    """The name of a device as `jali.Lattice` takes it, or nothing.

    Raises:
        ValueError: no device has such a name.
    """
    if text:
        try:
            parse_device(text)
        except DeviceError as error:
            raise ValueError(str(error)) from None
    return text


_PARSERS: dict[str, Callable[[str], str]] = {"group": group_name, "device": device_name}


def find_inconsistencies(parameters: RunParameters) -> list[tuple[str, str]]:
    """Values that are right alone but not together: pairs of the key to blame and what is wrong with it."""
    problems = []
    extents, grid = parameters.lattice.extents, parameters.lattice.grid
    if grid and len(grid) != len(extents):
        problems.append(
            (
                "lattice.grid",
                f"has {len(grid)} entries for a lattice of {len(extents)} directions {list(extents)}",
            )
        )
    for direction, (ranks, sites) in enumerate(zip(grid, extents, strict=False)):
        if ranks > sites:
            problems.append(
                (
                    "lattice.grid",
                    f"puts {counted(ranks, 'rank')} on the {counted(sites, 'site')} of direction {direction}; use at most {sites}",
                )
            )
    gauge = parameters.gauge
    if gauge.start == "file" and not gauge.start_file:
        problems.append(("gauge.start", 'is "file", so start_file must name a configuration'))
    if gauge.start_file and gauge.start != "file":
        problems.append(
            ("gauge.start_file", f'is given, but start is {toml_value(gauge.start)}; write start = "file"')
        )
    if math.prod(extents) > 2**62:
        problems.append(("lattice.extents", f"{list(extents)} has more than 2**62 sites"))
    run = parameters.run
    if run.save_every and len(extents) != 4:
        problems.append(
            (
                "run.save_every",
                f"is {run.save_every}, but configuration files hold lattices of four directions, this one has {len(extents)}; "
                "only the checkpoint holds its links (save_every = 0)",
            )
        )
    n = writers()[run.save_format].n
    if run.save_every and n is not None and gauge.group != f"SU({n})":
        others = [name for name, writer in writers().items() if writer.n is None]
        problems.append(
            (
                "run.save_format",
                f"{toml_value(run.save_format)} holds SU({n}) only, not {gauge.group}; use {' or '.join(map(toml_value, others))}",
            )
        )
    problems += _inconsistencies_of_hmc(parameters)
    measure = parameters.measure
    if measure.flow and measure.flow_time / measure.flow_step > 1e6:
        problems.append(
            (
                "measure.flow_step",
                f"{measure.flow_step:g} makes {measure.flow_time / measure.flow_step:.3g} steps up to flow_time = "
                f"{measure.flow_time:g}; a million are the most",
            )
        )
    if measure.flow and measure.flow_step > measure.flow_time:
        problems.append(
            ("measure.flow_step", f"{measure.flow_step:g} is longer than flow_time = {measure.flow_time:g}")
        )
    return problems


def _inconsistencies_of_hmc(parameters: RunParameters) -> list[tuple[str, str]]:
    hmc, update = parameters.hmc, parameters.update
    problems = []
    if update.algorithm != HMC:
        # They say what is simulated, or what the user waits for; other keys are only not used.
        for name in ("scalars", "terms", "tune_steps"):
            if getattr(hmc, name):
                problems.append(
                    (
                        f"hmc.{name}",
                        f'is given, but algorithm is {toml_value(update.algorithm)}; write algorithm = "{HMC}" under [update]',
                    )
                )
        return problems
    names = [one["name"] for one in hmc.scalars]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(("hmc.scalars", f"has {names.count(name)} scalars called {name}; names differ"))
    if parameters.gauge.group == "U(1)":
        for one in hmc.scalars:
            if family_of(one["kind"]) == "adjoint":
                problems.append(
                    (
                        "hmc.scalars",
                        f'has the adjoint scalar {one["name"]}, and adjoint fields of U(1) are neutral: write kind = "real"',
                    )
                )
    if not problems:
        problems += problems_of_scalars(hmc.terms, hmc.scalars, len(parameters.lattice.extents))
    levels = len(hmc.steps)
    if len(hmc.integrator) not in (1, levels):
        problems.append(
            (
                "hmc.integrator",
                f"has {len(hmc.integrator)} entries for {counted(levels, 'level')} (steps = {toml_value(hmc.steps)}); give one, or one for each",
            )
        )
    for k, term in enumerate(hmc.terms):
        if term["level"] >= levels:
            problems.append(
                (
                    "hmc.terms",
                    f"puts entry {k + 1}, {term['name'] or term['action']}, on level {term['level']}, and steps = "
                    f"{toml_value(hmc.steps)} has the levels 0 to {levels - 1}",
                )
            )
    if hmc.terms and parameters.gauge.beta and not any(term["action"] == GAUGE for term in hmc.terms):
        problems.append(
            (
                "hmc.terms",
                f'has no entry with action = "{GAUGE}", so beta = {parameters.gauge.beta:g} of [gauge] would mean nothing; add one, or write beta = 0',
            )
        )
    if hmc.tune_steps and update.thermalisation < LEAST_TO_TUNE:
        problems.append(
            (
                "hmc.tune_steps",
                f"finds the steps in thermalisation = {update.thermalisation} trajectories; it needs {LEAST_TO_TUNE} or more",
            )
        )
    return problems


def toml_value(value: Any) -> str:
    """A value as TOML writes it; floats in their shortest exact form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_escaped(c) for c in value) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(entry) for entry in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml_value(entry)}" for name, entry in value.items()) + "}"
    return repr(value) if isinstance(value, int | float) else str(value)


def said(value: Any) -> str:
    """A value as TOML writes it, for a message: however long, deep or large it is."""
    try:
        return shown(toml_value(value), 80)
    except (ValueError, RecursionError):
        return value_shown(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond floats
        return False


def _escaped(c: str) -> str:
    named = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    if c in named:
        return named[c]
    return f"\\u{ord(c):04X}" if ord(c) < 0x20 or ord(c) == 0x7F else c


def schema_markdown() -> str:
    """The parameter reference as Markdown: one table per section."""
    docs = section_docs()
    lines = []
    for section in dict.fromkeys(spec.section for spec in parameter_specs()):
        lines += [
            f"## `[{section}]`",
            "",
            docs[section],
            "",
            "| key | default | may be | meaning |",
            "|---|---|---|---|",
        ]
        for spec in parameter_specs():
            if spec.section == section:
                default = "required" if spec.default is REQUIRED else f"`{toml_value(spec.default)}`"
                expected = spec.expected().replace("|", "\\|")
                lines.append(f"| `{spec.name}` | {default} | {expected} | {spec.doc} |")
        lines.append("")
    return "\n".join(lines)
