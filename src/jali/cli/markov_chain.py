"""The Markov chain of `jali run`: links, scalars, random numbers, the number of the last sweep and the state of the update.

One sweep after another follows from these alone, so they are what a checkpoint keeps. Does not depend
on tables, progress or signals. Every method is called by all ranks.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jali import io
from jali.amounts import counted
from jali.cli.scalars import (
    check_kept_scalars,
    kept_scalars,
    make_scalars,
    measure_scalar,
    read_scalars,
    start_scalars,
)
from jali.cli.schema import RunParameters
from jali.cli.update_kinds import update_kind
from jali.cli.updates import Rows
from jali.codegen.arithmetics import ARITHMETICS
from jali.comm import Communicator
from jali.errors import FileFormatError, JaliError, LayoutError, ParameterError
from jali.files import require_memory, shown
from jali.gauge import (
    SU,
    GaugeField,
    link_trace,
    measure_field_strength,
    plaquette,
    plaquettes,
    polyakov_loop,
    topological_charge,
)
from jali.gauge.actions import ACTIONS
from jali.gauge.field import opened
from jali.gauge.flow import Flow
from jali.gauge.heatbath import needs_creutz
from jali.hmc.checks import Check
from jali.io.ensemble import CONFIGURATIONS, LINKS, checksum_text, configuration_name
from jali.io.parallel import raised_alike, together
from jali.lattice import Lattice, Random
from jali.lattice.random import CHAIN

# Energy density and charge are recorded at this many flow times, equally spaced, and at time 0.
FLOW_POINTS = 10
MOST_FLOW_STEPS = 1_000_000


class MarkovChain:
    """A chain of gauge configurations, and of scalars where there are some. Made by `start` or `restore`."""

    def __init__(self, parameters: RunParameters, ranks: Communicator) -> None:
        self.parameters = parameters
        self._ranks = ranks
        with together(ranks):
            lattice = make_lattice(parameters, ranks)
            self.action = ACTIONS[parameters.gauge.action].make(parameters.gauge.beta)
            n, precision = group_order(parameters), parameters.run.precision
            self.U = GaugeField(lattice, SU(n), precision=precision)
            self.scalars = make_scalars(parameters.hmc.scalars, lattice, n, precision)
            self.update = update_kind(parameters)(parameters, self.action, self.U, self.scalars)
        self.rng = Random.reserved(CHAIN, parameters.run.seed, parameters.run.stream)
        self.sweep = 0

    @classmethod
    def start(cls, parameters: RunParameters, ranks: Communicator) -> MarkovChain:
        """The chain before its first sweep, started cold, hot or from a file.

        Raises LayoutError, FileFormatError (also where a file's links do not agree with its header), OSError.
        """
        chain = cls(parameters, ranks)
        gauge = parameters.gauge
        if gauge.start == "file":
            chain._read_links(gauge.start_file)
        elif gauge.start == "hot":
            chain.U.hot_start(chain.rng)
        else:
            chain.U.cold_start()
        start_scalars(chain.scalars, parameters.hmc.scalars, chain.rng)
        with raised_alike():
            chain.update.check()
        return chain

    @classmethod
    def restore(
        cls, parameters: RunParameters, ranks: Communicator, checkpoint: io.Checkpoint
    ) -> MarkovChain:
        """The chain as a checkpoint holds it, bit for bit. Raises LayoutError, FileFormatError, OSError."""
        chain = cls(parameters, ranks)
        lattice, U = chain.U.lattice, chain.U
        found = checkpoint.fields.get(LINKS)
        wanted = (lattice.ndim, U.n, U.n)
        with together(ranks):
            if checkpoint.lattice != lattice.extents or found is None or found.element_shape != wanted:
                raise FileFormatError(
                    f"{checkpoint.path} holds {sorted(checkpoint.fields)} on a lattice {checkpoint.lattice}, "
                    f"not the links of {parameters.gauge.group} on {lattice.extents}"
                )
            check_kept_scalars(checkpoint, chain.scalars, parameters.hmc.scalars)
            _refuse_other_numbers(parameters, checkpoint)
        with raised_alike():
            U.set_local_links(checkpoint.read(LINKS, chain._box))
            read_scalars(checkpoint, chain.scalars, chain._box)
        with together(ranks):
            chain.rng = Random.from_state(checkpoint.rng)
            chain.sweep = int(checkpoint.state["sweep"])
            try:
                chain.update.restore(checkpoint.state.get("update", {}), chain.sweep)
            except (KeyError, TypeError, ValueError) as error:
                raise FileFormatError(
                    f"{checkpoint.path}: its state of {parameters.update.algorithm} is not one: {error!r}"
                ) from None
        return chain

    @property
    def finished(self) -> bool:
        """Whether all sweeps of the parameters are done."""
        return self.sweep >= total_sweeps(self.parameters)

    def check_physics(self) -> list[Check]:
        """Checks actions, forces and trajectories at the links as they are, which stay so. Raises ParameterError for what fails."""
        with raised_alike():
            return self.update.check_physics()

    def advance(self) -> Rows:
        """One sweep; returns rows of the tables that the update has."""
        self.sweep += 1
        return self.update.advance(self.sweep, self.rng)

    def is_due(self, interval: int) -> bool:
        """Whether what happens every `interval` sweeps happens after this one; never for 0."""
        return interval > 0 and self.sweep % interval == 0

    def measure(self) -> tuple[float | None, ...]:
        """A row of history.csv: sweep, three plaquettes (nan where there are none), real and imaginary Polyakov loop.

        Raises JaliError if the links have become something else than numbers.
        """
        mean, spatial, temporal = plaquettes(self.U)
        with together(self._ranks):
            if not math.isfinite(mean):
                raise JaliError(
                    f"the plaquette is {mean} after sweep {self.sweep}: the links are no longer numbers"
                )
        if not self.parameters.measure.polyakov:
            return self.sweep, mean, spatial, temporal, None, None
        loop = polyakov_loop(self.U)
        return self.sweep, mean, spatial, temporal, loop.real, loop.imag

    def measure_scalars(self) -> list[tuple[float, ...]]:
        """Rows of scalars.csv: sweep, number of the scalar, means of |phi|^2, |phi|^4 and the hopping term.

        Raises JaliError if a scalar has become something else than numbers.
        """
        rows: list[tuple[float, ...]] = []
        for k, one in enumerate(self.parameters.hmc.scalars):
            found = measure_scalar(one, self.U, self.scalars[one["name"]])
            with together(self._ranks):
                if not all(map(math.isfinite, found)):
                    raise JaliError(
                        f"the mean of |{one['name']}|^2 is {found.phi2} after sweep {self.sweep}: the scalar {one['name']} is no longer numbers"
                    )
            rows.append((self.sweep, k, *found))
        return rows

    def measure_flow(self) -> list[tuple[float, ...]]:
        """Rows of flow.csv: sweep, flow time, energy densities (clover, plaquette), t^2 E and charge along the flow."""
        measure = self.parameters.measure
        points = flow_profile(self.U, measure.flow_time, measure.flow_step)
        return [(self.sweep, *point) for point in points]

    def save(self, path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
        """Write a checkpoint, `state` included. Raises OSError; an older checkpoint is then still valid."""
        with raised_alike():
            io.write_checkpoint(
                path,
                self.U.lattice.extents,
                self._box,
                {LINKS: self.U.local_links(), **kept_scalars(self.scalars)},
                rng=self.rng.state,
                state={**state, "sweep": self.sweep, "update": self.update.state},
                ranks=self._ranks,
            )

    def save_configuration(self, directory: Path) -> tuple[int | float | str, ...]:
        """Write the links into the folder of a run; returns the row of its manifest.

        A file of that name is there where a run that was stopped is made again, and is replaced then. Raises
        FileFormatError where it holds other links, OSError.
        """
        U, format = self.U, self.parameters.run.save_format
        name = configuration_name(self.sweep, format)
        path = directory / CONFIGURATIONS / name
        mean, trace = plaquette(U), link_trace(U)
        with together(self._ranks):
            if self._ranks.rank == 0 and path.exists():
                mismatch = io.open_configuration(path).header_mismatch(mean, trace)
                if mismatch:
                    raise FileFormatError(
                        f"{mismatch}: this is not the configuration of sweep {self.sweep} of this run, which has its "
                        "name; move the file away and resume the run"
                    )
        with raised_alike():
            U.save(path, format, metadata=run_metadata(self.parameters, self.sweep))
            file = io.open_configuration(path, ranks=self._ranks)
        return self.sweep, name, format, mean, checksum_text(file)

    @property
    def _box(self) -> io.Box:
        lattice = self.U.lattice
        return io.Box(lattice.local_origin, lattice.local_extents)

    def _read_links(self, path: str) -> None:
        U, ranks = self.U, self._ranks
        known = {"lattice": U.lattice.extents, "group": U.n} if U.lattice.ndim == 4 else {}
        with raised_alike():
            file = opened(path, ranks, verify=True, **known)
            found = GaugeField.from_file(file, lattice=U.lattice, group=U.group)
        with together(ranks):
            if any(condition != "periodic" for condition in found[0].boundary.conditions):
                raise LayoutError(
                    f"{shown(path)} holds links with the boundary {found[0].boundary.conditions}; those of a run are periodic"
                )
        if isinstance(file, io.ConfigurationFile) and ranks.rank == 0:
            for text in file.warnings:
                print(f"jali: warning: {text}", file=sys.stderr, flush=True)
        # Links from files with fewer digits are in the group to those digits only.
        U.assign(found.reunitarise())


def _refuse_other_numbers(parameters: RunParameters, checkpoint: io.Checkpoint) -> None:
    """Raise FileFormatError where the chain of an earlier version of jali would continue with other numbers than
    there.

    Those states do not have their version. Since then Gaussians in float32 have longer tails, and Creutz's heat bath
    keeps its digits at small beta.
    """
    if "purpose" in checkpoint.rng:
        return
    n, ndim = group_order(parameters), len(parameters.lattice.extents)
    size = parameters.gauge.beta / n * math.sqrt(2 * (ndim - 1) * n)  # of staples of random links
    creutz = parameters.update.algorithm == "heatbath" and n > 1 and needs_creutz(n, size)
    if ARITHMETICS[parameters.run.precision].bits == 32 or creutz:
        raise FileFormatError(
            f"{checkpoint.path} is of an earlier version of jali, whose updates in float32 and at small beta drew other numbers; "
            "its chain cannot be continued exactly. Begin another run from its links: jali convert DIR FILE.ildg, then "
            'start = "file"'
        )


def flow_profile(U: GaugeField, until: float, step: float) -> list[tuple[float, float, float, float, float]]:
    """(t, E, E of plaquettes, t^2 E, charge) along the gradient flow at time 0 and ten times up to `until`.

    The step is made a little shorter where that is needed to reach `until` exactly. E is the clover energy
    density in lattice units. The charge is nan where none is defined (see `jali.gauge.topological_charge`).
    """
    steps = flow_steps(until, step)
    flow = Flow(U, until / steps)
    rows, done = [], 0
    for k in range(FLOW_POINTS + 1):
        wanted = round(k * steps / FLOW_POINTS)
        if k > 0 and wanted == done:
            continue
        flow.advance(wanted - done)
        done = wanted
        found = measure_field_strength(flow.field)
        charge = found.charge
        if U.lattice.ndim == 2 and U.n == 1:
            charge = topological_charge(flow.field)
        t = until * done / steps
        rows.append((t, found.energy, found.energy_plaquette, t * t * found.energy, charge))
    return rows


def flow_steps(until: float, step: float) -> int:
    """Steps of the flow. Raises ParameterError for impractically many."""
    count = until / step
    if not count <= MOST_FLOW_STEPS:
        raise ParameterError(
            f"a flow up to {until:g} in steps of {step:g} has {count:.3g} steps; {MOST_FLOW_STEPS} are the most"
        )
    return max(1, math.ceil(count - 1e-9))


def run_metadata(parameters: RunParameters, sweep: int) -> dict[str, str]:
    """The metadata of a configuration's header about its run."""
    return {
        "BETA": repr(parameters.gauge.beta),
        "ACTION": parameters.gauge.action,
        "SEQUENCE_NUMBER": str(sweep),
        "SEED": str(parameters.run.seed),
        "STREAM": str(parameters.run.stream),
    }


def total_sweeps(parameters: RunParameters) -> int:
    """Sweeps of the whole run, thermalisation included."""
    return parameters.update.thermalisation + parameters.update.sweeps


def group_order(parameters: RunParameters) -> int:
    """The n of SU(n); 1 for U(1)."""
    group = parameters.gauge.group
    return int(group[group.index("(") + 1 : -1])


def make_lattice(parameters: RunParameters, ranks: Communicator) -> Lattice:
    """The lattice, with the split and the device of the parameters. Raises LayoutError, DeviceError."""
    extents, grid = parameters.lattice.extents, parameters.lattice.grid
    if grid and math.prod(grid) != ranks.size:
        raise LayoutError(
            f"lattice.grid = {list(grid)} is a grid of {counted(math.prod(grid), 'rank')}, but {ranks.size} are running; "
            f"start {math.prod(grid)} (-n {math.prod(grid)}) or let jali choose with --set lattice.grid=[]"
        )
    size = math.prod(extents) * len(extents) * group_order(parameters) ** 2
    require_memory(
        f"the links of {' x '.join(map(str, extents))}",
        size * 2 * ARITHMETICS[parameters.run.precision].bytes // ranks.size,
    )
    return Lattice(*extents, grid=grid or None, communicator=ranks, device=parameters.run.device or None)
