"""The lattice: global extents, how they are split over ranks, and where sites are in memory."""

from __future__ import annotations

import itertools
import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jali import _core, comm, devices, graph_recorder, settings, tape_recorder
from jali.amounts import counted
from jali.codegen import target
from jali.codegen.arithmetics import ARITHMETICS
from jali.codegen.directions import Direction, directions
from jali.codegen.storage_formats import wires
from jali.codegen.types import Element
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.lattice.base import LatticeBase
from jali.lattice.domain import ALL, Domain, as_domain
from jali.lattice.field import Field, wrapped
from jali.lattice.overflow import LeftCounts
from jali.lattice.rank_lock import RankLock
from jali.lattice.ratio import aligned, how_to_share
from jali.lattice.scalars import Scalar, variable
from jali.lattice.sums import PLAIN_SUMS, Sums, as_bins, as_site_function

if TYPE_CHECKING:
    from jali.lattice.scalar_arrays import ScalarArray
    from jali.lattice.sites import SiteFunction

_serials = itertools.count(1)
_ranks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_ranks_guard = threading.Lock()


def _of_rank(communicator: Any) -> tuple[Any, Any]:
    """What all lattices of a rank share: its threads, and the lock that is held while working with them or waiting
    for other ranks."""
    with _ranks_guard:
        if communicator not in _ranks:
            _ranks[communicator] = _core.ThreadPool(communicator.threads), RankLock()
        pool, lock = _ranks[communicator]
        return pool, lock


def _cache_tile(blocks: Sequence[int], real_bytes: int) -> list[int]:
    """Extents of the tiles in which blocks are visited, or nothing.

    A stencil reuses the slices before and after the present one, so three slices of a tile should fit the second-level cache.
    Counted for a gauge field of SU(3), the case that matters; the result changes no bit and gained 5 % at 12^4 and 16^4.
    """
    try:
        cache = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (ValueError, OSError):
        cache = 0
    wanted = (cache if cache > 0 else 1 << 20) / 3
    tile = list(blocks)
    site_bytes = 18 * len(tile) * real_bytes
    for axis in (len(tile) - 2, len(tile) - 3):
        while axis >= 1 and tile[axis] > 2 and math.prod(tile[:-1]) * site_bytes > wanted:
            tile[axis] = max(n for n in range(2, tile[axis]) if tile[axis] % n == 0 or n == 2)
    return tile if tile != list(blocks) else []


def _kind(layout: Any) -> Any:
    """What distinguishes the layouts of a lattice, and rows of arrays."""
    rows = isinstance(layout, _core.RowBlocks)
    return type(layout), layout.lanes, rows or layout.c_order, not rows and layout.checkerboard


MOST_EXTENT, MOST_SITES = (1 << 30) - 1, 1 << 62
"""Coordinates have 32 bits, and numbers of sites, which random numbers belong to, 64."""


MOST_SLICES = 1 << 18
"""Of several directions together: a sum that does not depend on the order takes a kilobyte wherever it is."""


# what a lattice keeps as long as it lives, since fields and kernels are prepared for it, and what makes one of another
_KEPT = {
    "extents": "Lattice(...)",
    **{name: f"Lattice(..., {name}=...)" for name in ("grid", "communicator", "halo_items", "halo_wire")},
    "partition": "Lattice(..., grid=...)",
    **dict.fromkeys(("pool", "lock"), "Lattice(..., communicator=...)"),
    "gpu": "Lattice(..., device=...)",
    "_lanes": "Lattice(..., lanes=...)",
    "serial": "Lattice(...)",
}


@dataclass(frozen=True)
class SiteRange:
    """A domain in one layout: positions begin..end-1, or a list of blocks with lane masks."""

    parities: int
    begin: int = 0
    end: int = 0
    blocks: np.ndarray | None = None
    masks: np.ndarray | None = None


class Lattice(LatticeBase):
    """A periodic box of sites, 1 to 8 dimensions, split over the ranks of a communicator.

    `Lattice(16, 16, 16, 32)` chooses its split; `grid=(1, 1, 2, 2)` gives the number of ranks in each direction. Any extents
    and any number of ranks work as long as every rank has a site. `lanes` limits the number of vector lanes `halo_items=False`
    sends whole fields only (for tests and comparisons; neither changes a bit of any result). `halo_wire` names the storage
    format in which halo items travel, such as `"float16"`: fewer bytes, but results then depend on the ranks, as with no other
    option of jali. `device` is where its fields are stored and its kernels run: see `jali.devices`. Raises LayoutError for
    impossible extents and grids, DeviceError for devices that cannot be used.
    """

    def __init__(
        self,
        *extents: int | Sequence[int],
        grid: Sequence[int] | None = None,
        communicator: Any = None,
        lanes: int | None = None,
        halo_items: bool = True,
        halo_wire: str = "",
        device: str | None = None,
    ):
        flat = (
            tuple(extents[0])
            if len(extents) == 1 and isinstance(extents[0], Sequence | np.ndarray)
            else extents
        )
        if not 1 <= len(flat) <= 8:
            raise LayoutError(f"a lattice has 1 to 8 dimensions, not {len(flat)}")
        for n in flat:
            if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
                raise LayoutError(f"lattice extents are positive whole numbers, not {value_shown(n)}")
        if lanes is not None and (not isinstance(lanes, int) or isinstance(lanes, bool) or lanes < 1):
            raise LayoutError(
                f"lanes is the most vector lanes to use, a positive whole number, not {value_shown(lanes)}"
            )
        if communicator is not None and not isinstance(communicator, comm.Communicator):
            raise ParameterError(
                f"the communicator is a jali.comm.Communicator, such as jali.comm.current(), not {value_shown(communicator)}"
            )
        graph_recorder.refuse("a lattice is made", "make it before")
        self.extents: tuple[int, ...] = tuple(int(n) for n in flat)  # type: ignore[arg-type]
        if max(self.extents) > MOST_EXTENT or math.prod(self.extents) > MOST_SITES:
            raise LayoutError(
                f"lattice {value_shown(self.extents)} is too large: extents are at most {MOST_EXTENT}, and sites are numbered "
                "below 2**62"
            )
        self.serial = next(_serials)
        self.communicator = comm.current() if communicator is None else communicator
        self.pool, self.lock = _of_rank(self.communicator)
        self.gpu = devices.open_device(device, self.communicator)
        self._lanes = lanes
        self.halo_items = halo_items
        if not isinstance(halo_wire, str) or (halo_wire and halo_wire not in wires()):
            raise LayoutError(
                f"halo items do not travel as {value_shown(halo_wire)}; formats that hold them: {', '.join(wires())}, or '' for "
                "what loses nothing"
            )
        self.halo_wire = halo_wire
        size = self.communicator.size
        if grid is None:
            self.grid = tuple(_core.choose_grid(list(self.extents), size, self._wanted_lanes("float64")))
        else:
            if not isinstance(grid, Sequence | np.ndarray) or not all(
                isinstance(g, int | np.integer) and g > 0 for g in grid
            ):
                raise LayoutError(
                    f"a rank grid is a positive whole number per direction, such as {(1,) * (len(flat) - 1) + (size,)}, not {value_shown(grid)}"
                )
            self.grid = tuple(int(g) for g in grid)
        self.partition = _core.Partition(list(self.extents), list(self.grid))
        if self.partition.nranks != size:
            raise LayoutError(
                f"the rank grid {self.grid} has {counted(self.partition.nranks, 'rank')}, but {size} are running"
            )
        self._relatives = weakref.WeakValueDictionary(
            {self.extents: self}
        )  # those that `like` has made, by extents
        self.left = LeftCounts()  # of sites that could not be stored
        self._layouts: dict[int, Any] = {}
        self.aligned: dict[
            tuple[int, int], bool
        ] = {}  # whether ranks own the same part of another lattice (`ratio.py`)
        self._array_layouts: dict[bool, Any] = {}
        self._rows: dict[int, Any] = {}
        self._slices: dict[Any, np.ndarray] = {}
        self._sites: dict[Any, SiteRange] = {}
        self._site_tables: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"Lattice({', '.join(map(str, self.extents))})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises LayoutError for what a lattice keeps."""
        if name in _KEPT and hasattr(self, name):
            raise LayoutError(f"{self} keeps its {name}; {_KEPT[name]} makes another lattice")
        object.__setattr__(self, name, value)

    def like(self, *extents: int | Sequence[int]) -> Lattice:
        """The coarser or finer lattice of these extents on the same ranks and devices, each rank with the same part of it.

        The same extents give the same lattice from any lattice of the hierarchy; its own extents give this lattice itself.
        Kernels and `block_sums` read the two together. Raises LayoutError where extents are not multiples of each other, or
        ranks cannot own the same part: then the message gives the grid that this lattice needs.
        """
        gpu = self.gpu
        flat: tuple[Any, ...] = extents
        if len(extents) == 1 and isinstance(extents[0], Sequence | np.ndarray):
            flat = tuple(extents[0])
        if len(flat) != self.ndim or not all(
            isinstance(n, int | np.integer) and n > 0 and (n % m == 0 or m % n == 0)
            for n, m in zip(flat, self.extents, strict=True)
        ):
            raise LayoutError(
                f"a lattice like {self} has extents that are multiples of its own or divide them, not "
                f"{value_shown(extents[0] if len(extents) == 1 else extents)}"
            )
        made = self._relatives.get(tuple(map(int, flat)))
        if made is self:
            return self
        if made is None and all(g <= n for g, n in zip(self.grid, flat, strict=True)):
            made = Lattice(
                *flat,
                grid=self.grid,
                communicator=self.communicator,
                lanes=self._lanes,
                halo_items=self.halo_items,
                halo_wire=self.halo_wire,
                device="cpu" if gpu is None else f"{gpu.kind}:{gpu.ordinal}",
            )
        if made is None or not aligned(self, made):
            raise LayoutError(
                f"ranks cannot own the same part of {self}, whose grid is {self.grid}, and of a lattice {flat}: {how_to_share(self, flat)}"
            )
        made._relatives = self._relatives
        self._relatives[made.extents] = made
        return made

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.extents)

    @property
    def volume(self) -> int:
        """Number of sites of the whole lattice."""
        return int(np.prod(self.extents, dtype=np.int64))

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions, to index lists of fields and shift sites."""
        return directions(self.ndim)

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return int(self.communicator.rank)

    @property
    def local_origin(self) -> tuple[int, ...]:
        """Global coordinates of the first site of this rank."""
        return tuple(self.partition.origin(self.rank))

    @property
    def local_extents(self) -> tuple[int, ...]:
        """Extents of this rank's box."""
        return tuple(self.partition.extents(self.rank))

    def windings_of_readers(self, offset: Sequence[int]) -> tuple[int, ...]:
        """How often a read at `offset` that takes its value from this rank's box, from another rank, crosses the boundary of the
        lattice in each direction: 1, 0 or -1."""
        here = self.partition.coordinates(self.rank)
        return tuple(
            int(step > 0 and at == 0) - int(step < 0 and at == ranks - 1)
            for step, at, ranks in zip(offset, here, self.grid, strict=True)
        )

    def field(self, element: Element, **options: Any) -> Field:
        """A field of zeros on this lattice; see `Field`."""
        return Field(self, element, **options)

    def wrap(
        self,
        array: Any,
        element: Element | None = None,
        precision: str | None = None,
        boundary: Any = None,
        name: str = "",
        stream: Any = None,
        over: Domain = ALL,
        batch: int | None = None,
    ) -> Field:
        """A field whose values are those of a C-ordered array, without a copy: what is written to one is in the other.

        On a lattice of the host it is a NumPy array or what shares its memory with one (a tensor of PyTorch on the CPU, a
        buffer); on that of a device an array of CuPy or PyTorch or a `jali.comm.DeviceArray` there. A read-only array is a
        field that cannot be written.

        `array` has the shape `(*local_extents, *element.numpy_shape)`, this rank's box, the first index being the first
        direction. Without `element` the number of trailing indices decides: none a number, one a `Vector`, two a `Matrix`.
        Computing is in `precision`, by default that of the array. Site functions give the same bits on it as on a field of
        jali's own, which is better laid out for vectors: scalars are about as fast, matrices are slower. Where ranks need each
        other's sites they exchange them at every call, since changes of the array are not detected.

        On a device jali works on a stream of its own. Its calls wait for earlier work on the stream of the array's owner, which
        continues when they are done; the host does not wait. The owner's stream is `stream` (a handle, or a stream of CuPy or
        PyTorch), by default the one that the array names, or the default stream.

        Over one colour, `EVEN` or `ODD`, the array holds these sites only: site `(x, ..., y, z)` of this rank's box is
        `array[x, ..., y, z // 2]`, so each rank's box has an even extent in the last direction. Kernels find its sites one by one, which
        takes several times as long as on a field.

        With a `batch` the members stand behind the sites, as in `f[...]`: the shape is `(*local_extents, batch, *element.numpy_shape)`.

        Every rank wraps an array of its own. Raises LayoutError for arrays that do not fit, and on all ranks ParameterError where
        types, elements, boundaries, colours or batches differ between them.
        """
        return wrapped(self, array, element, precision, boundary, name, stream, over, batch)

    def sum(
        self,
        function: SiteFunction,
        *arguments: Any,
        over: Domain = ALL,
        per: Direction | int | Sequence[Direction | int] | None = None,
        bins: int | dict[str, int] | None = None,
        fast: bool = False,
        wait: bool = True,
        **named: Any,
    ) -> Any:
        """Sums over sites: the parameters of `function` that get no argument and have no default are sums (`total += value`).

        Arguments may be given by name; `over`, `per`, `bins`, `fast` and `wait` are those of this method.

        Returns a number, complex number or array for one sum, a tuple for several; with `per`, arrays with one entry per slice
        orthogonal to that direction, or with an index for each of several (`per=(mu, nu)`). The result is the same to the last
        bit for any ranks, threads and order; `fast=True` gives that up (plain double sums). With `wait=False` numbers are
        returned as `jali.Scalar`s, arrays as `jali.ScalarArray`s, which stay on the device until they are read (where devices of several
        ranks cannot add them, the host waits anyway).

        A sum with labels (`counts[label] += value`, a whole number for each site) is an array with `bins` entries, `bins={"counts": 10}`
        where they are not all alike. Raises ParameterError on all ranks if labels are not among these.
        """
        function, over = as_site_function(function, "lattice.sum"), as_domain(over, "over=")
        if graph_recorder.recorders and tape_recorder.recorders:  # a Total has a number that stays, too
            wait = wait and (graph_recorder.current() is None or tape_recorder.current() is None)
        if per is None and bins is None and wait and not fast:  # called thousands of times by solvers
            return function.run(over, arguments, self, PLAIN_SUMS, named)
        axes = None if per is None else self._axes(per)
        return function.run(
            over,
            arguments,
            self,
            Sums(axes, fast, wait, True, None if bins is None else as_bins(bins)),
            named,
        )

    def reduce(
        self,
        function: SiteFunction,
        *arguments: Any,
        over: Domain = ALL,
        per: Direction | int | Sequence[Direction | int] | None = None,
        bins: int | dict[str, int] | None = None,
        fast: bool = False,
        wait: bool = True,
        **named: Any,
    ) -> Any:
        """Maxima, minima and sums over sites: the parameters of `function` that get no argument and have no default take `high.max(value)`, `low.min(value)` or
        `total += value`.

        Everything else is as in `sum`, which is for functions that only sum. Maxima and minima are of real numbers (a float) and whole
        ones (an int; as a `Scalar` a float64); NaN wins, as in NumPy, and -0.0 is less than 0.0. Raises ParameterError on all ranks for
        those of no sites: a colour that a lattice, or a slice of it, does not have.
        """
        function, over = as_site_function(function, "lattice.reduce"), as_domain(over, "over=")
        axes = None if per is None else self._axes(per)
        return function.run(
            over,
            arguments,
            self,
            Sums(axes, fast, wait, False, bins if bins is None else as_bins(bins)),
            named,
        )

    def scalar(self, value: float | complex) -> Scalar:
        """A `jali.Scalar` where this lattice computes, which can be assigned: a number that graphs carry from one repetition to the next."""
        with self.lock:
            return variable(self.gpu, value)

    def scalars(self, values: Any) -> ScalarArray:
        """A `jali.ScalarArray` of these numbers, a vector or matrix, where this lattice computes, which can be assigned as `scalar` can.

        Raises ParameterError for what is no array of numbers, ShapeError for other shapes than those of 1 to 64 rows and columns.
        """
        from jali.lattice.scalar_arrays import variable_array

        with self.lock:
            return variable_array(self.gpu, values)

    def _axes(self, per: Any) -> tuple[int, ...]:
        """The numbers of the directions whose slices are summed. Raises LayoutError."""
        several = isinstance(per, Sequence | np.ndarray) and not isinstance(per, str)
        axes = []
        for one in per if several else (per,):
            axis = one.axis if isinstance(one, Direction) else one
            if not isinstance(axis, int | np.integer) or isinstance(axis, bool) or not 0 <= axis < self.ndim:
                raise LayoutError(
                    f"sums per slice of direction {value_shown(one)}, which a lattice of {self.ndim} dimensions does not have"
                )
            axes.append(int(axis))
        if not axes or len(set(axes)) < len(axes):
            raise LayoutError(
                f"sums per slice of directions {tuple(axes)}: one direction, or several that differ, such as per=(0, 1)"
            )
        if several and (slices := math.prod(self.extents[axis] for axis in axes)) > MOST_SLICES:
            raise LayoutError(
                f"sums per slice of directions {tuple(axes)} are {slices} sums, at most {MOST_SLICES} are possible; leave a direction "
                "out, or write the values to a field"
            )
        return tuple(axes)

    # ---- layouts and domains ---------------------------------------------------------------------

    def _wanted_lanes(self, precision: str) -> int:
        if self.gpu is not None:
            return 1  # a thread computes a site
        lanes = target.host().lanes(precision)
        return lanes if self._lanes is None else min(lanes, self._lanes)

    def layout(self, precision: str) -> Any:
        """The core's layout for fields of this precision."""
        with self.lock:
            return self._layout(precision)

    def _layout(self, precision: str) -> Any:
        lanes = 1 if self.gpu is not None else self._wanted_lanes(precision)
        if lanes not in self._layouts and self.gpu is not None:
            self._layouts[lanes] = _core.Layout(
                self.partition, self.rank, 1, self._device_tile(), gpu=self.gpu
            )
        if lanes not in self._layouts:
            layout = _core.Layout(self.partition, self.rank, lanes)
            tile = _cache_tile(layout.block_extents, layout.lanes * ARITHMETICS[precision].bytes)
            if tile:
                layout = _core.Layout(self.partition, self.rank, lanes, tile)
            self._layouts[lanes] = layout
        return self._layouts[lanes]

    def array_layout(self, one_colour: bool = False) -> Any:
        """The core's layout for C-ordered arrays of this rank's box, or of its sites of one colour."""
        with self.lock:
            if one_colour not in self._array_layouts:
                made = _core.Layout.c_ordered(self.partition, self.rank, self.gpu, one_colour)
                self._array_layouts[one_colour] = made
            return self._array_layouts[one_colour]

    def rows(self, precision: str) -> Any:
        """What kernels visit where all fields are arrays: pieces of rows, no longer than the row needs."""
        wanted = self._wanted_lanes(precision)
        lanes = min(wanted, 1 << (self.local_extents[-1] - 1).bit_length())
        layout = self.array_layout()
        with self.lock:
            if lanes not in self._rows:
                self._rows[lanes] = _core.RowBlocks(layout, lanes)
            return self._rows[lanes]

    def site_table(
        self, blocks: Any, layout: Any, offset: tuple[int, ...], windings: bool, made: Callable[[], Any]
    ) -> Any:
        """A table of sites between two layouts of this lattice. Kept as neighbour tables of a layout are: `made` takes some
        fifty times as long as a kernel that uses it, and every wrapped array requests the same ones."""
        key = (_kind(blocks), _kind(layout), offset, windings)
        with self.lock:
            if key not in self._site_tables:
                self._site_tables[key] = made()
            return self._site_tables[key]

    def _device_tile(self) -> list[int]:
        """Extents of the tiles in which a device's sites are stored: the sites of a block of threads share neighbours."""
        text = settings.current().device_tile or "8,4,4,2"
        wanted = [int(n) if n.isdecimal() else 0 for n in text.split(",")]
        if min(wanted) < 1:
            raise ParameterError(f"device_tile={text} should be extents of at least 1, such as 8,4,4,2")
        return [
            min(n, e) for n, e in zip([*wanted, 2, 2, 2, 2][: self.ndim], self.local_extents, strict=True)
        ]

    def sites_of(
        self, domain: Domain, shift: tuple[int, ...], layout: Any, stencil: bool = True
    ) -> SiteRange:
        """A domain, moved by `shift`, in a layout or rows of arrays; `stencil`: neighbours are read, so their order matters."""
        key = (domain, shift, _kind(layout), stencil)
        with self.lock:
            if key not in self._sites:
                self._sites[key] = self._find_sites(domain, shift, layout, stencil)
            return self._sites[key]

    def _find_sites(self, domain: Domain, shift: tuple[int, ...], layout: Any, stencil: bool) -> SiteRange:
        if isinstance(layout, _core.RowBlocks):
            return self._find_in_rows(domain, shift, layout)
        if domain.colouring is None and domain.parities == 3:
            if self.gpu is not None and stencil and not layout.c_order:
                return SiteRange(3, 0, 0, layout.tile_by_tile())
            return SiteRange(3, 0, layout.nblocks)
        odd_wrap = any(s and n % 2 for s, n in zip(shift, self.extents, strict=True))
        if domain.colouring is None and not odd_wrap and not layout.c_order:
            parities = domain.parities if sum(shift) % 2 == 0 else 3 - domain.parities
            even = layout.even_blocks
            return (
                SiteRange(parities, 0, even) if parities == 1 else SiteRange(parities, even, layout.nblocks)
            )
        inside = self._inside(domain, [c - s for c, s in zip(self._coordinates(layout), shift, strict=True)])
        return self._listed(inside, layout)

    def _find_in_rows(self, domain: Domain, shift: tuple[int, ...], rows: Any) -> SiteRange:
        if domain is ALL and rows.filled:
            return SiteRange(3, 0, rows.nblocks)
        inside = np.arange(rows.lanes) < rows.inside()[:, None]
        if domain is not ALL:
            moved = [c - s for c, s in zip(self._coordinates(rows), shift, strict=True)]
            inside &= self._inside(domain, moved)
        return self._listed(inside, rows)

    def _listed(self, inside: np.ndarray, layout: Any) -> SiteRange:
        """Blocks and masks of the sites `[block][lane]` that are inside a domain."""
        bits = (inside.astype(np.uint32) << np.arange(layout.lanes, dtype=np.uint32)).sum(
            axis=1, dtype=np.uint32
        )
        blocks = np.flatnonzero(bits).astype(np.int32)
        masks = np.ascontiguousarray(bits[blocks])
        if len(blocks) == 0:
            return SiteRange(3, 0, 0)
        full = np.uint32((1 << layout.lanes) - 1)
        return SiteRange(3, 0, 0, blocks, None if bool(np.all(masks == full)) else masks)

    def _coordinates(self, layout: Any) -> list[np.ndarray]:
        """Global coordinates `[block][lane]` in each direction."""
        return [layout.site_coordinates(d).astype(np.int64) for d in range(self.ndim)]

    def _inside(self, domain: Domain, coordinates: list[np.ndarray]) -> np.ndarray:
        wrapped = [c % n for c, n in zip(coordinates, self.extents, strict=True)]
        if domain.colouring is not None:
            return np.equal(domain.colouring.evaluate(wrapped), domain.colour)
        return np.not_equal((1 << sum(wrapped) % 2) & domain.parities, 0)

    def meets(self, domain: Domain, shift: tuple[int, ...], offset: tuple[int, ...]) -> bool:
        """Whether some site of the (shifted) domain, moved by `offset`, is in it again and is another site."""
        moved = tuple(o % n for o, n in zip(offset, self.extents, strict=True))
        if not any(moved):
            return False
        if domain.colouring is None and domain.parities == 3:
            return True
        if domain.colouring is None and not any(
            o and n % 2 for o, n in zip(moved, self.extents, strict=True)
        ):
            return sum(moved) % 2 == 0
        layout = self.layout("float64")
        here = self._coordinates(layout)
        there = [c + o for c, o in zip(here, offset, strict=True)]
        found = np.array([int(np.any(self._inside(domain, here) & self._inside(domain, there)))], np.int64)
        with graph_recorder.suspended():  # the agreement of ranks about a call is not part of it
            return bool(self.communicator.all_reduce_sum(found)[0])

    def occupied(self, domain: Domain, per: tuple[int, ...]) -> np.ndarray:
        """Whether the domain has sites in each slice of these directions, `[slice]`, or anywhere (of none: `[1]`). Collective for
        colourings."""
        kept = [self.extents[axis] for axis in per]
        nslices = math.prod(kept)
        if domain.colouring is None:
            if (
                domain.parities == 3 or self.volume > nslices
            ):  # sites of a slice that are neighbours have both parities
                return np.full(nslices, True)
            return (1 << np.indices(kept or [1]).sum(axis=0).ravel() % 2) & domain.parities != 0
        layout = self.layout("float64")
        slices = self.slices_of(per, layout)[self._inside(domain, self._coordinates(layout))]
        found = np.bincount(slices, minlength=nslices)
        with graph_recorder.suspended():
            return np.not_equal(self.communicator.all_reduce_sum(found), 0)

    def why_meets(self, domain: Domain, offset: tuple[int, ...], all_offsets: list[tuple[int, ...]]) -> str:
        """What to run instead where `meets` holds; `all_offsets` are those at which the program reads what it writes."""
        if domain.colouring is not None:
            return f"The offset joins sites of {domain}: choose colours that separate them, or write to another field"
        odd = [axis for axis, (o, n) in enumerate(zip(offset, self.extents, strict=True)) if o and n % 2]
        if odd:
            extents = ", ".join(f"{self.extents[axis]} in direction {axis}" for axis in odd)
            return (
                f"Extents are odd ({extents}), so sites that meet across the edge have the same parity, and EVEN and ODD do not "
                "separate them: use a jali.Colouring with three colours, or write to another field"
            )
        even = next((o for o in all_offsets if any(o) and sum(o) % 2 == 0), None)
        if domain.parities == 3 and even is None:
            return "Run it over EVEN and ODD separately, or write to another field"
        return (
            f"The offset {even or offset} joins sites of one parity, which EVEN and ODD do not separate: use a jali.Colouring that "
            "does, or write to another field"
        )

    def slices_of(self, axes: tuple[int, ...], layout: Any) -> np.ndarray:
        """The slice of every `[block][lane]`, int32: global coordinates in these directions, the last one fastest."""
        key = (axes, _kind(layout))
        with self.lock:
            if key not in self._slices:
                slices = np.zeros((), np.int32)
                for axis in axes:
                    extent = np.int32(self.extents[axis])
                    # lanes beyond the end of a row add nothing
                    slices = slices * extent + layout.site_coordinates(axis) % extent
                self._slices[key] = np.ascontiguousarray(
                    np.broadcast_to(slices, layout.site_coordinates(0).shape)
                )
            return self._slices[key]
