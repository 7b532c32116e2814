"""Configurations as `jali measure` and `jali convert` take them: files of any format, or the checkpoint of a
run.

Links are always taken into float64, whatever the file holds. What a file says about its links is kept for
comparison with what they are.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jali import io
from jali.cli.parameters import parse_parameters
from jali.cli.run_directory import CHECKPOINT
from jali.cli.simulation import LINKS
from jali.comm import Communicator
from jali.devices import parse_device
from jali.errors import DeviceError, FileFormatError, ParameterError
from jali.gauge import SU, GaugeField
from jali.io.parallel import raised_alike, together
from jali.lattice import Lattice


@dataclass(frozen=True)
class Configuration:
    """A gauge field in float64 and where it comes from.

    `file` is None for the checkpoint of a run. `precision` and `rows` are those of the source; `metadata` can
    be written again.
    """

    path: str
    format: str
    U: GaugeField
    precision: int
    rows: int
    checksum: str | None
    file: io.ConfigurationFile | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    def mismatch(self, plaquette: float, link_trace: float) -> str | None:
        """What is wrong with the header, given what the links say; None if nothing is."""
        return None if self.file is None else self.file.header_mismatch(plaquette, link_trace)


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """`--lattice` and `--group`, for files that do not tell, and `--device`."""
    parser.add_argument(
        "--lattice", type=_extents, metavar="X,Y,Z,T", help="extents, for files that do not tell"
    )
    parser.add_argument("--group", metavar="SU2", help="gauge group, for files that do not tell")
    add_device_argument(parser)


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """`--device`, checked as far as that is possible without opening it."""
    parser.add_argument(
        "--device", type=_device, metavar="cuda", help="compute on this device: cpu, cuda, cuda:1 or hip"
    )


def load_configuration(
    path: str,
    lattice: Sequence[int] | None,
    group: str | None,
    ranks: Communicator,
    device: str | None = None,
) -> Configuration:
    """The configuration in a file, or in the checkpoint of a run directory (collective).

    Raises FileFormatError for damage, ParameterError where `lattice` and `group` make no sense or are
    missing, OSError; the same on all ranks.
    """
    with raised_alike():
        if os.path.isdir(path):
            return _from_run(path, ranks, device)
        return _from_file(path, lattice, group, ranks, device)


def _from_file(
    path: str,
    lattice: Sequence[int] | None,
    group: str | None,
    ranks: Communicator,
    device: str | None,
) -> Configuration:
    file = io.open_configuration(path, lattice=lattice, group=group, ranks=ranks)
    with together(ranks):
        whole = Lattice(*file.extents, communicator=ranks, device=device)
    U = GaugeField.from_file(file, lattice=whole)
    kind = file.checksum_kind
    return Configuration(path, file.format, U, file.precision, file.rows, kind, file, file.metadata)


def _from_run(path: str, ranks: Communicator, device: str | None) -> Configuration:
    inside = os.path.join(path, CHECKPOINT)
    with together(ranks):
        directory = inside if os.path.isdir(inside) else path
        if not os.path.exists(os.path.join(directory, "manifest.json")):
            raise FileFormatError(
                f"{path} is a directory, but neither a run nor a checkpoint (no manifest.json)"
            )
    checkpoint = io.open_checkpoint(directory, ranks=ranks)
    with together(ranks):
        info = checkpoint.fields.get(LINKS)
        if info is None:
            raise FileFormatError(f"{directory} holds no gauge field (fields: {sorted(checkpoint.fields)})")
        parameters = parse_parameters(str(checkpoint.state.get("parameters", "")), directory)
        lattice = Lattice(*checkpoint.lattice, communicator=ranks, device=device)
    n = info.element_shape[-1]
    box = io.Box(lattice.local_origin, lattice.local_extents)
    U = GaugeField(lattice, SU(n)).set_local_links(checkpoint.read(LINKS, box))
    metadata: dict[str, Any] = {
        "BETA": repr(parameters.gauge.beta),
        "SEQUENCE_NUMBER": checkpoint.state.get("sweep", 0),
        "SEED": parameters.run.seed,
        "STREAM": parameters.run.stream,
    }
    precision = 4 * info.dtype.itemsize
    return Configuration(
        path, "checkpoint", U, precision, n, "checkpoint", None, {k: str(v) for k, v in metadata.items()}
    )


def _extents(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+([,x]\d+){3}", text.replace(" ", "")):
        raise argparse.ArgumentTypeError(f"{text!r} should be four extents x,y,z,t, for example 4,4,4,8")
    return tuple(int(size) for size in re.split("[,x]", text.replace(" ", "")))


def _device(text: str) -> str:
    try:
        parse_device(text)
    except DeviceError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def require_four_dimensions(configuration: Configuration, what: str) -> None:
    """Raise ParameterError unless the lattice has four dimensions, as configuration files need."""
    lattice = configuration.U.lattice
    if lattice.ndim != 4:
        raise ParameterError(
            f"{configuration.path}: {what} hold four-dimensional lattices, this one is {lattice.extents}"
        )
