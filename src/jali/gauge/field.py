"""The gauge field: one SU(n) matrix per site and direction.

A `GaugeField` is a list of fields, one per direction, with the ways to start, copy, transform, read and write
it. What is measured on it and how it is updated is in the other modules of this package.
"""

from __future__ import annotations

import math
import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

import jali
from jali import graph_recorder, io
from jali.codegen.arithmetics import ARITHMETICS
from jali.codegen.directions import Direction
from jali.codegen.lines import trace_error
from jali.codegen.symbol import Symbol
from jali.codegen.types import SU, Element
from jali.errors import FileFormatError, LayoutError, ParameterError
from jali.files import checked_path, value_shown
from jali.gauge.groups import haar_random
from jali.gauge.open_edges import number_of_loops, where_linked
from jali.gauge.plaquettes import mean_link_trace, mean_plaquettes
from jali.io.array_formats import Outline
from jali.io.arrays import holds_arrays
from jali.io.ensemble import LINKS, links_of, newest_configuration
from jali.io.formats import format_named, writers
from jali.io.links import checked_metadata
from jali.io.parallel import together
from jali.lattice import Field, Lattice, Random
from jali.lattice.boundary import Boundary
from jali.lattice.field import WithoutOperators, as_array
from jali.lattice.overflow import raise_on_all_ranks
from jali.lattice.random import GAUGE_TRANSFORM, HOT_START
from jali.lattice.saving import OWN, description, endings, save_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

# The n of SU(n) for which the plaquette compiles in 14 s (g++ 12); it takes twice as long for n = 19.
LARGEST_GROUP = 16
START = (
    "start the gauge field with cold_start(), hot_start(seed), GaugeField.from_file(path), assign(other) or "
    "set_local_links(array), or assign to all its fields"
)

SAVED = "U"  # in files of arrays; of fields, with the number of the direction behind


class GaugeField(WithoutOperators):
    """Links U_mu(x) of a lattice gauge theory; `U[mu]` is the field of one direction.

    `group` is `SU(n)`, with SU(1) for U(1). `boundary` is that of every direction's field: see `jali.Field`;
    beside periodic lattices `"open"` makes sense: the boundary conditions of Luscher and Schaefer, see
    `docs/gauge-theory.md`. A gauge
    field has no links until it is started (`cold_start`, `hot_start`, `from_file`, or links of one's own): reading
    them before is an `UnsetError`. `storage` names how links are kept in memory, as in `jali.Field`: `"float32-12"`
    keeps two rows of an SU(3) matrix; boundaries stay with the field.
    """

    def __init__(
        self,
        lattice: Lattice,
        group: Element,
        precision: str = "float64",
        boundary: Any = None,
        storage: str | None = None,
    ):
        if not isinstance(lattice, Lattice):
            raise LayoutError(
                f"a gauge field lives on a Lattice, not on {value_shown(lattice)}: GaugeField(lattice, SU(3))"
            )
        if not isinstance(group, Element):
            raise LayoutError(
                f"a gauge field holds SU(n) matrices: the group is SU(3) or the like, not {value_shown(group)}"
            )
        shape = group.type.shape
        if group != SU(shape[0] if shape else 1):
            raise LayoutError(f"a gauge field holds SU(n) matrices (SU(1) for phases), not {group}")
        if shape and shape[0] > LARGEST_GROUP:
            raise LayoutError(
                f"gauge fields go up to SU({LARGEST_GROUP}), not SU({shape[0]}): products are written out for all components, "
                "and kernels would take minutes to compile"
            )
        self.lattice = lattice
        self.group = group
        self.fields = [
            Field(lattice, group, precision=precision, storage=storage, boundary=boundary, name=f"U[{mu}]")
            for mu in range(lattice.ndim)
        ]
        self.precision = self.fields[0].precision
        for field in self.fields:
            field.set_by = START
        if any(lattice.extents[axis] < 2 for axis in self.open):
            raise LayoutError(
                f"an open direction of a gauge field has two sites or more; the lattice is {lattice.extents}, open in "
                f"{self.open}"
            )
        self._workspace: dict[tuple[str, Element], Field] = {}

    def __repr__(self) -> str:
        unset = "" if all(field.is_set for field in self.fields) else ", never started"
        return f"<{self.group} gauge field on {self.lattice}, {self.precision}{unset}>"

    def __getitem__(self, mu: Any) -> Field:
        if isinstance(mu, Symbol):
            raise trace_error(
                "a gauge field is used in a site function but is not one of its arguments; pass it as one, and read U[mu][X]"
            )
        if not isinstance(mu, int | np.integer | Direction | slice):
            raise LayoutError(
                f"the links of one direction are U[mu], mu a direction or its number, not {value_shown(mu)}"
            )
        if not isinstance(mu, slice) and not -len(self.fields) <= int(mu) < len(self.fields):
            raise IndexError(f"direction {mu} does not exist; {self!r} has {len(self.fields)}, from 0")
        found: Any = self.fields[mu]  # of a slice, several
        return found

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def n(self) -> int:
        """The n of SU(n)."""
        return int(self.group.type.shape[0])

    @property
    def open(self) -> tuple[int, ...]:
        """The directions, by number, in which the boundary is open."""
        return self.fields[0].boundary.open

    @property
    def volume(self) -> int:
        """The volume in lattice units: the product of the extents, of open directions less one."""
        return number_of_loops(self, {})

    @property
    def links(self) -> int:
        """Number of links of the whole lattice. None leads across an open edge."""
        volume, extents = self.lattice.volume, self.lattice.extents
        return volume * self.lattice.ndim - sum(volume // extents[axis] for axis in self.open)

    def workspace(self, name: str, element: Element) -> Field:
        """A field on the same lattice that is reused between calls; its values belong to the last caller."""
        key = (name, element)
        if key not in self._workspace:
            self._workspace[key] = self.fields[0].like(element=element, storage=None, name=name)
        return self._workspace[key]

    # ---- starts ----------------------------------------------------------------------------------

    def cold_start(self) -> GaugeField:
        """All links one. Returns self."""
        for field in self.fields:
            _set_unit(field)
        return self

    def hot_start(self, seed: int | Random = 0) -> GaugeField:
        """All links independent and Haar-distributed, from a seed or a source of random numbers. Returns
        self.

        A seed names numbers that nothing else draws, not even a `Random` with the same seed.
        """
        rng = _source(seed, HOT_START)
        for field in self.fields:
            _set_haar(field, rng)
        return self

    def like(self) -> GaugeField:
        """A gauge field, not started, with the same lattice, group, precision, boundary and storage."""
        first = self.fields[0]
        with graph_recorder.suspended():  # it has no values that a repetition could find changed
            return GaugeField(
                self.lattice, self.group, self.precision, first.boundary, first.stored.format.name
            )

    def copy(self) -> GaugeField:
        """A gauge field with the same links."""
        return self.like().assign(self)

    def assign(self, other: GaugeField) -> GaugeField:
        """Copies the links of another gauge field on the same lattice, of any precision. Returns self."""
        if not isinstance(other, GaugeField):
            raise LayoutError(f"a gauge field is assigned, not a {type(other).__name__}")
        for mine, theirs in zip(self.fields, other.fields, strict=True):
            mine.assign(theirs)
        return self

    # ---- the group -------------------------------------------------------------------------------

    def reunitarise(self) -> GaugeField:
        """Removes the rounding that many updates leave: rows orthonormal, determinant one. Returns self."""
        for mu, field in zip(self.lattice.directions, self.fields, strict=True):
            _reunitarise(field, mu)
        return self

    def unitarity_deviation(self) -> float:
        """Root mean square over all links of |U^dagger U - 1|^2 + |det U - 1|^2 (the latter for n >= 2)."""
        return math.sqrt(self.lattice.sum(_deviation, self) / self.links)

    def gauge_transform(self, g: Field) -> GaugeField:
        """U_mu(x) -> g(x) U_mu(x) g(x + mu)^dagger with a field g of SU(n) matrices. Returns self."""
        if not isinstance(g, Field):
            raise LayoutError(f"a gauge transformation is a field of {self.group}, not {value_shown(g)}")
        if g.element != self.group:
            raise LayoutError(
                f"a gauge transformation of {self.group} links is a field of {self.group}, not of {g.element}"
            )
        _transform(self, g)
        return self

    def random_gauge_transform(self, seed: int | Random = 0) -> GaugeField:
        """A gauge transformation with independent Haar-distributed g(x). Returns self."""
        g = Field(self.lattice, self.group, precision=self.precision, name="gauge transformation")
        _set_haar(g, _source(seed, GAUGE_TRANSFORM))
        return self.gauge_transform(g)

    # ---- arrays and files ------------------------------------------------------------------------

    def local_links(self) -> np.ndarray:
        """This rank's links as `(lt, lz, ly, lx, 4, n, n)`: last direction first, as files have them."""
        d = self.lattice.ndim
        links = np.stack([field.local() for field in self.fields], axis=d)
        return np.ascontiguousarray(links.transpose(*reversed(range(d)), d, d + 1, d + 2))

    def set_local_links(self, links: Any) -> GaugeField:
        """Sets this rank's links from an array as `local_links` returns it. Every rank calls it. Returns
        self.
        """
        array = as_array(links, "set_local_links")
        d, n = self.lattice.ndim, self.n
        wanted = (*reversed(self.lattice.local_extents), d, n, n)
        if array.shape != wanted:
            raise LayoutError(f"this rank's links have shape {wanted}, the array {array.shape}")
        for mu, field in enumerate(self.fields):
            field.set_local(np.take(array, mu, axis=d).transpose(*reversed(range(d)), d, d + 1))
        return self

    @classmethod
    def from_file(
        cls,
        source: str | os.PathLike[str] | io.ConfigurationFile | io.Checkpoint | io.ArrayFile,
        *,
        lattice: Lattice | None = None,
        group: Element | None = None,
        precision: str = "float64",
        verify: bool = True,
    ) -> GaugeField:
        """The configuration in a NERSC, ILDG, SciDAC or MILC file or one of `save`, or the newest of a run, whose folder is named.

        For a run this is its last saved configuration (`save_every`) or, if it saves none, its checkpoint. What
        `jali.io.open_configuration`, `open_checkpoint` or `open_arrays` has opened is taken, too. Every rank reads its own
        part; checksums are verified unless `verify` is False. Plaquette and link trace are always compared with the header,
        where it has them. `lattice` and `group` are needed where the file lacks them, and must agree with it otherwise.
        `precision` is that of the field, not of the file. Raises FileFormatError for damaged files, ParameterError and
        LayoutError where the arguments contradict the file; warns of descriptions in it that cannot be read but are not needed.
        """
        if not isinstance(lattice, Lattice | None):
            raise ParameterError(f"the lattice of a configuration is a Lattice, not {value_shown(lattice)}")
        if group is not None and (not isinstance(group, Element) or len(group.type.shape) != 2):
            raise ParameterError(f"the group of a configuration is SU(n), not {value_shown(group)}")
        file: io.ConfigurationFile | io.Checkpoint | io.ArrayFile
        if isinstance(source, io.ConfigurationFile | io.Checkpoint | io.ArrayFile):
            file = source
        elif not isinstance(source, str | os.PathLike):
            raise ParameterError(
                f"a configuration is read from a path or an open file, not from {value_shown(source)}"
            )
        else:
            file = opened(
                source,
                jali.comm.current() if lattice is None else lattice.communicator,
                verify,
                lattice=None if lattice is None else lattice.extents,
                group=None if group is None else int(group.type.shape[0]),
            )
            if isinstance(file, io.ConfigurationFile):
                for text in file.warnings:
                    warnings.warn(text, stacklevel=2)
        if isinstance(file, io.ArrayFile):
            return cls._from_array(file, lattice, group, precision, verify)
        if isinstance(file, io.Checkpoint) and f"{SAVED}0" in file.fields:
            return cls._from_fields(file, lattice, group, precision, verify)
        if isinstance(file, io.Checkpoint):
            extents, n = file.lattice, links_of(file).element_shape[-1]
        else:
            extents, n = tuple(file.extents), file.group_size
        if lattice is None:
            lattice = Lattice(*extents)
        found = SU(n)
        _agree(file.path, extents, found, lattice, group)
        U = cls(lattice, found, precision)
        if isinstance(file, io.Checkpoint):
            box = io.Box(lattice.local_origin, lattice.local_extents)
            return U.set_local_links(file.read(LINKS, box, verify=verify))
        read_links(file, U, verify)
        require_header(file, U)
        return U

    @classmethod
    def _from_array(
        cls,
        file: io.ArrayFile,
        lattice: Lattice | None,
        group: Element | None,
        precision: str,
        verify: bool,
    ) -> GaugeField:
        """The links in an array `(direction, *extents, n, n)`, of jali or of others."""
        outline = array_of_links(file)
        shape, d = outline.shape, len(outline.shape) - 3
        lattice = Lattice(*shape[1:-2]) if lattice is None else lattice
        _agree(file.path, shape[1:-2], SU(shape[-1]), lattice, group)
        box = io.Box((0, *lattice.local_origin), (d, *lattice.local_extents))
        boundary = None
        if outline.metadata:
            try:
                words = list(outline.metadata["boundary"])
                boundary = Boundary.from_words(words, SU(shape[-1]))
                if len(words) != d:
                    raise LayoutError(f"{words} for {d} directions")
            except (KeyError, TypeError, LayoutError) as error:
                raise FileFormatError(
                    f"{file.path}: what it says of its boundary makes no sense: {error!r}"
                ) from None
        U = cls(lattice, SU(shape[-1]), precision, boundary)
        links = file.read(outline.name, box, verify=verify)
        with together(lattice.communicator):
            for mu, field in enumerate(U.fields):
                field.set_local(links[mu])
        return U

    @classmethod
    def _from_fields(
        cls,
        checkpoint: io.Checkpoint,
        lattice: Lattice | None,
        group: Element | None,
        precision: str,
        verify: bool,
    ) -> GaugeField:
        """The links in a file of jali's own format, a field for each direction."""
        U = None
        for mu in range(len(checkpoint.lattice)):
            field = jali.load(
                checkpoint.path,
                lattice if U is None else U.lattice,
                name=f"{SAVED}{mu}",
                element=group,
                precision=precision,
                verify=verify,
            )
            U = cls(field.lattice, field.element, precision, field.boundary) if U is None else U
            U.fields[mu].assign(field)
        assert U is not None
        return U

    def save(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,
        *,
        precision: int | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Writes the links; every rank writes its own part.

        `format` is `"ildg"` (any n), `"nersc"` (SU(3)) or another format of configurations that jali writes, for four
        dimensions; or, for any, one of `Field.save`: `"npy"` or `"hdf5"`, one array of shape `(direction, *extents, n, n)`,
        called U in HDF5, or `"jali"`, fields U0, U1, ... as they are stored. Without it the name decides, by its end (`.npy`,
        `.h5`, `.hdf5`, `.jali`, `.nersc`, `.ildg`, `.lime`) or its beginning (`nersc.`, `ildg.`), and any other is an ILDG
        file.

        `precision` is 32 or 64 bits per real, by default that of the field. Plaquette and link trace go into the
        header of configurations; so does `metadata`, which the other formats lack. Only the other formats keep the boundary.
        Raises ParameterError, LayoutError and OSError, the same on all ranks.
        """
        if not isinstance(path, str | os.PathLike):
            raise ParameterError(f"a configuration is written to a path, not to {value_shown(path)}")
        if format is None:
            format = link_format_named(path) or "ildg"
        if not isinstance(format, str) or format not in link_formats():
            raise ParameterError(
                f"the format is {' or '.join(map(repr, link_formats()))}, not {value_shown(format)}"
            )
        if precision is not None and (not isinstance(precision, int) or precision not in (32, 64)):
            raise ParameterError(f"the precision of a file is 32 or 64, not {value_shown(precision)}")
        if format not in writers():
            self._save_fields(path, format, precision, metadata)
            return
        lattice = self.lattice
        require_configuration(self)
        checked_metadata(metadata)  # before anything is computed
        writers()[format].write(
            path,
            self.local_links(),
            io.Box(lattice.local_origin, lattice.local_extents),
            lattice.extents,
            precision=precision or ARITHMETICS[self.precision].bits,
            plaquette=mean_plaquettes(self)[0],
            link_trace=mean_link_trace(self),
            metadata=metadata,
            ranks=lattice.communicator,
        )

    def _save_fields(
        self, path: str | os.PathLike[str], format: str, precision: int | None, metadata: Any
    ) -> None:
        """Writes the links as fields, or as an array of all."""
        if checked_metadata(metadata):
            raise ParameterError(
                f"metadata goes into files of configurations; the format {value_shown(format)} has no place for it"
            )
        first, lattice = self.fields[0], self.lattice
        wanted = f"float{precision}" if precision else self.precision
        if wanted != self.precision:
            other = GaugeField(lattice, self.group, wanted, first.boundary).assign(self)
            raise_on_all_ranks(
                lattice.communicator, [one for field in other.fields for one in field.counts()]
            )
            other._save_fields(path, format, None, None)
        elif format == OWN:
            save_fields(path, format, {f"{SAVED}{mu}": field for mu, field in enumerate(self.fields)})
        else:
            with together(lattice.communicator):
                links = np.stack([field.local() for field in self.fields])
            box = io.Box((0, *lattice.local_origin), (lattice.ndim, *lattice.local_extents))
            metadata = {SAVED: {**description(first), "links": 1}}
            extents = (lattice.ndim, *lattice.extents)
            io.write_arrays(path, format, extents, box, {SAVED: links}, metadata, ranks=lattice.communicator)


def read_links(file: io.ConfigurationFile, U: GaugeField, verify: bool) -> None:
    """Takes the links of a configuration file into a gauge field of its lattice and group (collective)."""
    lattice = U.lattice
    box = io.Box(lattice.local_origin, lattice.local_extents)
    U.set_local_links(file.read(box, verify=verify))


def require_header(file: io.ConfigurationFile, U: GaugeField, consequence: str = "") -> None:
    """Raises FileFormatError where plaquette or link trace of the links of a file differ from its header's.

    NERSC checksums do not depend on the order of the links: this detects two exchanged extents.
    """
    found = (
        math.nan if file.plaquette is None else mean_plaquettes(U)[0],
        math.nan if file.link_trace is None else mean_link_trace(U),
    )
    mismatch = file.header_mismatch(*found, precision=ARITHMETICS[U.precision].bits)
    if mismatch:
        raise FileFormatError(f"header mismatch: {mismatch}{consequence}")


def link_formats() -> tuple[str, ...]:
    """Names of the formats that links are written in: those of configurations, then those of fields."""
    return tuple(dict.fromkeys((*writers(), *endings().values())))


def link_format_named(path: str | os.PathLike[str]) -> str | None:
    """The one of `link_formats` that matches the name of a file; None where none does."""
    ending = os.path.splitext(os.fsdecode(path))[1].lower()
    return endings().get(ending) or format_named(path)


def require_configuration(U: GaugeField) -> None:
    """Raises LayoutError for a gauge field that files of configurations have no place for: other than four dimensions, a boundary."""
    lattice, conditions = U.lattice, U[0].boundary.conditions
    if lattice.ndim != 4:
        raise LayoutError(
            f"configuration files hold four-dimensional lattices, this one has {lattice.ndim}; .npy, .h5 and .jali hold any"
        )
    if any(condition != "periodic" for condition in conditions):
        raise LayoutError(
            f"configuration files have no place for a boundary, and this gauge field has {conditions}: its plaquette is not that "
            f"of the links in the file. .npy, .h5 and .jali keep it; GaugeField(lattice, {U.group}).assign(U) has the same "
            "links without it"
        )


def array_of_links(file: io.ArrayFile) -> Outline:
    """The array `(direction, *extents, n, n)` of a file that is a gauge field. Raises FileFormatError where there is none."""
    if len(file.arrays) != 1 and SAVED not in file.arrays:
        raise FileFormatError(f"{file.path} holds no gauge field (arrays: {sorted(file.arrays)})")
    outline = file.arrays[SAVED] if SAVED in file.arrays else next(iter(file.arrays.values()))
    shape, d = outline.shape, len(outline.shape) - 3
    if d < 1 or shape[0] != d or shape[-2] != shape[-1] or outline.dtype is None or outline.dtype.kind != "c":
        raise FileFormatError(
            f"{file.path}: an array {shape} of {outline.dtype}; links are complex numbers (direction, sites..., n, n)"
        )
    return outline


def opened(
    path: str | os.PathLike[str], ranks: Any, verify: bool, **known: Any
) -> io.ConfigurationFile | io.Checkpoint | io.ArrayFile:
    """What has a path: a file of a configuration, or the newest one of a run, as it was saved (collective)."""
    with together(ranks):
        name = checked_path(path)
        newest = newest_configuration(name) if os.path.isdir(name) else None
        are_arrays = newest is None and holds_arrays(name)
    if ranks.broadcast_bytes(b"arrays" if are_arrays else b"", 0):
        return io.open_arrays(name, verify=verify, ranks=ranks)
    if isinstance(newest, str):
        return io.open_checkpoint(newest, ranks=ranks)
    file = io.open_configuration(name if newest is None else newest.path, ranks=ranks, **known)
    with together(ranks):
        mismatch = newest.mismatch(file) if newest else None
        if mismatch:
            raise FileFormatError(mismatch)
    return file


def _agree(
    path: str, extents: tuple[int, ...], found: Element, lattice: Lattice, group: Element | None
) -> None:
    """Raises LayoutError where a file holds other links than the requested ones."""
    if extents != lattice.extents:
        raise LayoutError(f"{path} holds a lattice {extents}, not {lattice.extents}")
    if group is not None and group != found:
        raise LayoutError(f"{path} holds {found} links, not {group}")


def _source(seed: Any, purpose: str) -> Random:
    """Random numbers from a seed, for a purpose of their own, or the source itself."""
    return seed if isinstance(seed, Random) else Random.reserved(purpose, seed)


@jali.site_function
def _set_unit(X: Any, u: Any) -> None:
    u[X] = jali.identity(u[X].shape[0])


@jali.site_function
def _set_haar(X: Any, u: Any, rng: Any) -> None:
    u[X] = haar_random(X, rng, u[X].shape[0])


@jali.site_function
def _reunitarise(X: Any, u: Any, mu: Any) -> None:
    u[X] = where_linked(X, u, mu, u[X].reunitarise(), u[X])


@jali.site_function
def _transform(X: Any, U: Any, g: Any) -> None:
    for mu in X.directions():
        U[mu][X] = g[X] * U[mu][X] * g[X + mu].dagger()


@jali.site_function
def _deviation(X: Any, U: Any, total: Any) -> None:
    for mu in X.directions():
        u = U[mu][X]
        n = u.shape[0]
        total += where_linked(X, U, mu, (u.dagger() * u - jali.identity(n)).norm2(), 0.0)
        if n > 1:
            total += where_linked(X, U, mu, (u.det() - 1.0).norm2(), 0.0)
