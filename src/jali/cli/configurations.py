"""Configurations as `jali measure` and `jali convert` take them: files of any format that `GaugeField.from_file` reads, or
the checkpoint of a run.

Links are always converted to float64. The header's values of the links are kept for comparison with
the computed ones.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from jali import io
from jali.cli.file_kinds import CONFIGURATION, refuse_other_kinds
from jali.cli.markov_chain import run_metadata
from jali.cli.options import device_argument
from jali.cli.parameters import load_parameters, parse_parameters
from jali.cli.run_directory import PARAMETERS
from jali.codegen.arithmetics import ARITHMETICS
from jali.comm import Communicator
from jali.devices import device_names
from jali.errors import JaliError, ParameterError
from jali.files import checked_path, require_memory, shown, value_shown
from jali.gauge import SU, GaugeField
from jali.gauge.field import SAVED, array_of_links, read_links, require_header
from jali.io.arrays import holds_arrays
from jali.io.ensemble import checkpoint_folder, links_of
from jali.io.links import Expected
from jali.io.parallel import raised_alike, together
from jali.lattice import Lattice
from jali.lattice.saving import FIELDS, OWN

FAR_FROM_UNITARY = 1e-3
"""Root mean square deviation above which links are no rounded elements of the group: 32 bits leave some 1e-6."""


_DOUBLE = 16  # bytes of a complex number


@dataclass(frozen=True)
class Configuration:
    """A gauge field in float64 and its source.

    `file` is that of a format of configurations, and None for others and the checkpoint of a run. `precision` and `rows` are those of the source; `metadata` can
    be written again.
    """

    path: str
    format: str
    U: GaugeField
    precision: int
    rows: int
    checksum: str | None
    file: io.ConfigurationFile | None = None
    warnings: tuple[str, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    carries_checksum: bool = True
    """Whether the source has a checksum, compared or not."""

    def require_header(self, consequence: str = "") -> None:
        """Raises FileFormatError where the links do not match the header of their file."""
        if self.file is not None:
            require_header(self.file, self.U, consequence)


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """`--lattice` and `--group`, for files without them, `--ignore-checksum` and `--device`."""
    parser.add_argument(
        "--lattice", type=extents_argument, metavar="X,Y,Z,T", help="extents, for files that do not tell"
    )
    parser.add_argument("--group", metavar="SU2", help="gauge group, for files that do not tell")
    parser.add_argument(
        "--ignore-checksum",
        action="store_true",
        help="take the links as they are, for files whose checksum is known to be wrong",
    )
    add_device_argument(parser)


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """`--device`, checked as far as that is possible without opening it."""
    parser.add_argument(
        "--device", type=device_argument, metavar="cuda", help=f"compute on this device: {device_names('')}"
    )


def load_configuration(
    path: str,
    lattice: Sequence[int] | None,
    group: str | None,
    ranks: Communicator,
    device: str | None = None,
    verify: bool = True,
) -> Configuration:
    """The configuration in a file, or in the checkpoint of a run directory (collective); its header is not compared yet.

    Without `verify` checksums are not compared. Raises FileFormatError for damage, ParameterError where `lattice` and
    `group` make no sense or are missing and where the links do not fit into memory, OSError; the same on all ranks.
    """
    with raised_alike():
        with together(ranks):
            checked_path(path)
            expected = Expected.checked(lattice, group, None)
            folder = checkpoint_folder(path) if os.path.isdir(path) else None
            are_arrays = folder is None and holds_arrays(path)
            if folder is None:
                needed = "a gauge configuration (NERSC, ILDG, SciDAC, MILC, .npy, HDF5) or the folder of a run is needed"
                refuse_other_kinds(path, [CONFIGURATION], needed)
        if folder is not None:
            checkpoint = io.open_checkpoint(folder, ranks=ranks)
            if f"{SAVED}0" in checkpoint.fields:
                return _from_fields(path, checkpoint, expected, ranks, device, verify)
            return _from_run(path, checkpoint, ranks, device, verify)
        if are_arrays:
            return _from_arrays(path, expected, ranks, device, verify)
        return _from_file(path, lattice, group, ranks, device, verify)


@dataclass(frozen=True)
class Source:
    """What is to be measured: a file or a checkpoint, and the row of the manifest that leads to it, if one does."""

    path: str
    saved: io.SavedConfiguration | None = None
    in_means: bool = True


def sources_of(files: Sequence[str], ranks: Communicator, problems: list[Exception]) -> list[Source]:
    """The configurations behind the names on the command line. What cannot be read is added to the problems."""
    found: list[Source] = []
    for name in files:
        try:
            with raised_alike(), together(ranks):
                found += _saved_in(name) or [Source(name)]
        except (JaliError, OSError) as error:
            keep_fault(error, problems)
    return found


def _saved_in(name: str) -> list[Source]:
    """The ensemble of a run's folder; those of its thermalisation do not count for means."""
    if not os.path.isdir(checked_path(name)):
        return []
    saved = io.saved_configurations(name)
    if not saved:
        return []
    run = os.path.dirname(
        os.path.dirname(os.path.abspath(saved[0].path))
    )  # also where its `configurations` is named
    parameters = os.path.join(run, PARAMETERS)
    if not os.path.exists(parameters):
        return [Source(one.path, one) for one in saved]
    thermalisation = load_parameters(parameters).update.thermalisation
    return [Source(one.path, one, one.number > thermalisation) for one in saved]


def keep_fault(error: Exception, problems: list[Exception]) -> None:
    """Record the fault of one source, so that the others are measured; only what all ranks know."""
    if not getattr(error, "on_every_rank", False):
        raise error
    problems.append(error)


def warn(configuration: Configuration, unitarity_deviation: float, ranks: Communicator) -> list[str]:
    """Warn on standard error of oddities of a configuration that do not prevent its use; returns the warnings."""
    found = list(configuration.warnings)
    if not unitarity_deviation < FAR_FROM_UNITARY:
        found.append(
            f"{configuration.path}: the links are far from unitary (rms deviation {unitarity_deviation:.1e}, in the group "
            "it is 0): is it another group, precision or byte order, or no gauge field?"
        )
    if ranks.rank == 0:
        for text in found:
            print(f"jali: warning: {text}", file=sys.stderr, flush=True)
    return found


def _from_file(
    path: str,
    lattice: Sequence[int] | None,
    group: str | None,
    ranks: Communicator,
    device: str | None,
    verify: bool,
) -> Configuration:
    file = io.open_configuration(path, lattice=lattice, group=group, ranks=ranks)
    with together(ranks):
        _require_memory(path, file.extents, file.group_size**2 * _DOUBLE, ranks)
        whole = Lattice(*file.extents, communicator=ranks, device=device)
    U = GaugeField(whole, SU(file.group_size))
    read_links(file, U, verify)
    kind = file.checksum_kind if verify else None
    return Configuration(
        path,
        file.format,
        U,
        file.precision,
        file.rows,
        kind,
        file,
        file.warnings,
        file.metadata,
        file.checksum_kind is not None,
    )


def _from_arrays(
    path: str, expected: Expected, ranks: Communicator, device: str | None, verify: bool
) -> Configuration:
    """Links in `.npy` or HDF5, of jali or of others."""
    file = io.open_arrays(path, verify=verify, ranks=ranks)
    with together(ranks):
        outline = array_of_links(file)
        assert outline.dtype is not None
        extents, n, precision = outline.shape[1:-2], outline.shape[-1], 4 * outline.dtype.itemsize
        expected.agree(path, "its array", lattice=extents, n=n, precision=precision)
        _require_planes(path, extents)
        _require_memory(path, extents, n * n * _DOUBLE, ranks)
        whole = Lattice(*extents, communicator=ranks, device=device)
    U = GaugeField.from_file(file, lattice=whole, verify=verify)
    carries = "checksum" in outline.metadata
    kind = "jali" if carries and verify else None
    return Configuration(path, file.format, U, min(precision, 64), n, kind, carries_checksum=carries)


def _from_fields(
    path: str,
    checkpoint: io.Checkpoint,
    expected: Expected,
    ranks: Communicator,
    device: str | None,
    verify: bool,
) -> Configuration:
    """Links in jali's own format, a field for each direction."""
    extents = checkpoint.lattice
    with together(ranks):
        _require_planes(path, extents)
        _require_memory(path, extents, checkpoint.fields[f"{SAVED}0"].record_bytes, ranks)
        whole = Lattice(*extents, communicator=ranks, device=device)
    U = GaugeField.from_file(checkpoint, lattice=whole, verify=verify)
    metadata = checkpoint.state[FIELDS][f"{SAVED}0"]  # made sense to what has read it
    precision = ARITHMETICS[metadata["precision"]].bits
    with together(ranks):
        expected.agree(path, "its manifest", lattice=extents, n=U.n, precision=precision)
    return Configuration(path, OWN, U, precision, U.n, OWN if verify else None)


def _require_planes(path: str, extents: Sequence[int]) -> None:
    """Raises ParameterError for lattices without plaquettes."""
    if len(extents) < 2:
        raise ParameterError(f"{shown(path)}: a lattice of {len(extents)} dimension has no plaquettes")


def _require_memory(path: str, extents: Sequence[int], link_bytes: int, ranks: Communicator) -> None:
    """Raises ParameterError where the links do not fit twice: as read, and as fields."""
    size = 2 * math.prod(extents) * len(extents) * link_bytes // ranks.size
    require_memory(f"{shown(path)}: the links of a lattice {' x '.join(map(str, extents))}", size)


def _from_run(
    path: str, checkpoint: io.Checkpoint, ranks: Communicator, device: str | None, verify: bool
) -> Configuration:
    with together(ranks):
        info = links_of(checkpoint)
        parameters = parse_parameters(str(checkpoint.state.get("parameters", "")), checkpoint.path)
        _require_memory(path, checkpoint.lattice, info.element_shape[-1] ** 2 * _DOUBLE, ranks)
        lattice = Lattice(*checkpoint.lattice, communicator=ranks, device=device)
    U = GaugeField.from_file(checkpoint, lattice=lattice, verify=verify)
    metadata = run_metadata(parameters, int(checkpoint.state.get("sweep", 0)))
    precision = 4 * info.dtype.itemsize
    kind = "checkpoint" if verify else None
    return Configuration(path, "checkpoint", U, precision, U.n, kind, metadata=metadata)


def extents_argument(text: str) -> tuple[int, ...]:
    """Four extents of a lattice."""
    if not re.fullmatch(r"[0-9]{1,9}([,x][0-9]{1,9}){3}", text.replace(" ", "")):
        raise argparse.ArgumentTypeError(
            f"{value_shown(text)} should be four extents x,y,z,t, for example 4,4,4,8"
        )
    return tuple(int(size) for size in re.split("[,x]", text.replace(" ", "")))
