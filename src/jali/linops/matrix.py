"""Products with a matrix whose blocks are spread over a grid of ranks.

Two layouts. "summa": A, X and Y = A X lie in blocks on a square grid. Where X has as many columns as A, or more, panels of A go
along rows of the grid and panels of X along its columns, those of the next step while those of this one are multiplied (SUMMA:
van de Geijn and Watts, Concurrency: Practice and Experience 9 (1997) 255). Where it has fewer, A stays where it is, and X and Y
move, which are smaller (Schatz, van de Geijn and Poulson, SIAM J. Sci. Comput. 38 (2016) C748). "block": A lies in blocks of
rows, X in blocks of columns, each of which all ranks of a row of the grid have; one all-gather, of the adjoint one all-reduce,
in that row.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of
from jali.arrays import DistributedArray, Layout, Partition, communicator_of, layout_of
from jali.arrays.layout import Shape, near_square
from jali.comm import Communicator
from jali.errors import LayoutError, ParameterError, ShapeError
from jali.files import value_shown
from jali.keywords import named
from jali.linops.conversion import in_type, type_of
from jali.linops.operator import LinearOperator
from jali.linops.validation import positive


def active_grid_comm(base_comm: Any, N: int, M: int) -> tuple[Any, int, int, int, bool]:
    """The largest square grid of ranks that an N by M matrix can occupy: (communicator, rank, row, column, True).

    Ranks are counted along rows. Those beyond it get (None, rank, rank, rank, False). The communicator is of the kind that was
    given, jali's or mpi4py's, and is made at the first call, which is collective.
    """
    ranks = communicator_of(base_comm)
    side = math.isqrt(ranks.size)
    row, column = divmod(ranks.rank, side)
    edge = min(N, M, side)
    is_active = row < edge and column < edge
    kept = ranks.kept.setdefault("square grids of ranks", {})
    is_mpi = hasattr(base_comm, "Get_attr")
    if (edge, is_mpi) not in kept:
        if is_mpi:
            from mpi4py import MPI

            part = base_comm.Split(0 if is_active else MPI.UNDEFINED, ranks.rank)
        else:
            part = ranks.split(0 if is_active else None, ranks.rank)
        kept[edge, is_mpi] = part
    if not is_active:
        return None, ranks.rank, ranks.rank, ranks.rank, False
    comm = kept[edge, is_mpi]
    return comm, comm.rank, row, column, True


def block_split(extent: int, parts: int) -> Shape:
    """Extents of blocks that are equal but for the last ones, which may be smaller or empty."""
    most = -(-extent // parts)
    return tuple(max(0, min(extent, (part + 1) * most) - part * most) for part in range(parts))


@named
def local_block_split(global_shape: Sequence[int], rank: int, base_comm: Any) -> tuple[slice, slice]:
    """Rows and columns of a matrix that a rank of a square grid has.

    Raises ShapeError (a ValueError) for a rank that does not exist, LayoutError for a number of ranks that is no square.
    """
    side = _side(base_comm.size)
    if isinstance(rank, bool) or not hasattr(rank, "__index__") or not 0 <= rank < base_comm.size:
        raise ShapeError(f"rank {value_shown(rank)} does not exist among {base_comm.size} ranks")
    found = []
    for extent, position in zip(global_shape, divmod(operator.index(rank), side), strict=True):
        parts = block_split(extent, side)
        begin = sum(parts[:position])
        found.append(slice(begin, begin + parts[position]))
    return found[0], found[1]


@named
def block_gather(x: DistributedArray, global_shape: Sequence[int], base_comm: Any) -> Any:
    """The whole matrix on every rank, from blocks on a square grid, one after the other in `x`. Collective.

    Raises LayoutError for a number of ranks that is no square, ShapeError where parts of `x` are no such blocks.
    """
    side = _side(base_comm.size)
    if x.ndim == 2:
        return x.asarray()
    blocks = [local_block_split(global_shape, rank, base_comm) for rank in range(side * side)]
    shapes = [(rows.stop - rows.start, columns.stop - columns.start) for rows, columns in blocks]
    if [math.prod(shape) for shape in x.local_shapes] != [n * m for n, m in shapes]:
        raise ShapeError(
            f"blocks of a {global_shape[0]} by {global_shape[1]} matrix on {side} by {side} ranks have shapes {shapes}, parts of x {x.local_shapes}"
        )
    flat = x.asarray()
    out = namespace_of(flat).empty_beside(flat, tuple(global_shape))
    begin = 0
    for block, (n, m) in zip(blocks, shapes, strict=True):
        out[block] = flat[begin : begin + n * m].reshape((n, m))
        begin += n * m
    return out


def MatrixMult(
    A: Any,
    M: int,
    saveAt: bool = False,
    base_comm: Any = None,
    kind: str = "summa",
    dtype: Any = None,
) -> SummaMatrixMult | BlockMatrixMult:
    """Y = A X for matrices X of M columns, of which `A` is this rank's block: see SummaMatrixMult (`kind` "summa") and
    BlockMatrixMult ("block").

    `saveAt` keeps the adjoint of A as well. `dtype` converts A; by default it stays as it is. Collective, once: ranks exchange
    their shapes. Raises ParameterError for another kind, and where M is not positive; ShapeError where blocks do not make a matrix,
    LayoutError where
    "summa" has a number of ranks that is no square.
    """
    kinds: dict[str, type[SummaMatrixMult] | type[BlockMatrixMult]] = {
        "summa": SummaMatrixMult,
        "block": BlockMatrixMult,
    }
    if kind not in kinds:
        raise ParameterError(f"kind is one of {', '.join(kinds)}, not {value_shown(kind)}")
    return kinds[kind](A, M, saveAt, base_comm, dtype)


class _MatrixProduct(LinearOperator):
    """What both kinds have: a grid of ranks, a block of A on each, and vectors that are matrices of M columns."""

    takes_stacks = False
    grid: tuple[int, int]

    def __init__(self, A: Any, M: int, saveAt: bool, base_comm: Any, dtype: Any) -> None:
        self.ranks = communicator_of(base_comm)
        self.M = positive("M", M)
        self.grid = self._grid_of(self.ranks.size)
        self.row, self.column = divmod(self.ranks.rank, self.grid[1])
        namespace = namespace_of(A)
        self.A = namespace.contiguous(in_type("matrices", A, dtype))
        texts = self.ranks.gather_bytes(np.array(A.shape, np.int64).tobytes(), what="a matrix in blocks")
        shapes = [tuple(map(int, np.frombuffer(text, np.int64))) for text in texts]
        if any(len(shape) != 2 for shape in shapes):
            raise ShapeError(
                f"blocks of a matrix have two dimensions, those of the ranks have shapes {shapes}"
            )
        self._set_extents(shapes)
        self._lines = _lines(self.ranks, self.grid)
        self.At = namespace.contiguous(self.A.conj().T) if saveAt else None
        self._forms: dict[Layout, tuple[Shape, Layout]] = {}

    def _grid_of(self, size: int) -> tuple[int, int]:
        raise NotImplementedError

    def _set_extents(self, shapes: list[Shape]) -> None:
        raise NotImplementedError

    def _begin(self, shape: tuple[int, int], dims: Any, dimsd: Any, base_comm: Any) -> None:
        super().__init__(shape=shape, dims=dims, dimsd=dimsd, dtype=type_of(self.A), base_comm=base_comm)

    def flat_order(self, space: Any, forward: bool) -> Any:
        return self.domain() if forward else self.range_()

    def _scattered(self, x: DistributedArray) -> None:
        if x.layout.partition is not Partition.SCATTER or x.communicator is not self.ranks:
            where = "" if x.communicator is self.ranks else ", of other ranks than the matrix"
            raise ShapeError(
                f"{self!r} takes an array of Partition.SCATTER, whose parts are blocks, not {x.layout!r}{where}"
            )


class SummaMatrixMult(_MatrixProduct):
    """Y = A X, all three in blocks on a square grid of ranks.

    Rank (r, c) has A[r, c] and X[r, c], by `local_block_split` or otherwise: rows of blocks of X are columns of blocks of A.
    `x` is the flat one whose parts are the blocks, one after the other, or a matrix of K by M that is split along both axes
    with this grid; the result has the same form. With M from K on, a step of each application is a broadcast in the row and one
    in the column, of the adjoint a broadcast in the row and a reduction in the column. With fewer columns an application is a
    transposition of the grid, an all-gather in the column and a reduce-scatter in the row; the adjoint is these the other way
    round.
    """

    def __init__(
        self, A: Any, M: int, saveAt: bool = False, base_comm: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(A, M, saveAt, base_comm, dtype)
        N, K = sum(self.rows), sum(self.columns)
        self._begin((N * self.M, K * self.M), (K, self.M), (N, self.M), base_comm)
        self._counts: dict[tuple[Shape, bool], np.ndarray] = {}

    def domain(self) -> Layout:
        """Flat blocks of X, whose columns are split as by `local_block_split`."""
        return self._flat(self.columns)

    def range_(self) -> Layout:
        """Flat blocks of Y."""
        return self._flat(self.rows)

    def _flat(self, rows: Shape) -> Layout:
        return self._blocks(rows, block_split(self.M, self.grid[1])).flat

    def _blocks(self, rows: Shape, columns: Shape, mask: Any = None) -> Layout:
        """Of matrices in blocks of these extents."""
        shapes = tuple((n, m) for n in rows for m in columns)
        return layout_of(
            self.ranks, (sum(rows), sum(columns)), Partition.SCATTER, (0, 1), grid=self.grid, local_shapes=shapes, mask=mask
        )  # fmt: skip

    def _grid_of(self, size: int) -> tuple[int, int]:
        return (_side(size),) * 2

    def _set_extents(self, shapes: list[Shape]) -> None:
        side = self.grid[0]
        self.rows = tuple(shapes[r * side][0] for r in range(side))
        self.columns = tuple(shapes[c][1] for c in range(side))
        if shapes != [(n, k) for n in self.rows for k in self.columns]:
            raise ShapeError(
                f"blocks of shapes {shapes} do not make a matrix on a grid of {side} by {side} ranks: those of a row have one height, "
                "those of a column one width"
            )

    def _matvec(self, x: DistributedArray) -> DistributedArray:
        columns, layout = self._form(x, self.columns, self.rows)
        namespace = namespace_of(x.local)
        mine = namespace.contiguous(x.local).reshape((self.columns[self.row], columns[self.column]))
        found = (self._moving_x if sum(self.columns) > self.M else self._summa)(mine, columns, namespace)
        return DistributedArray.of(layout, found.reshape(layout.local_shape), x._base_comm)

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        columns, layout = self._form(x, self.rows, self.columns)
        namespace = namespace_of(x.local)
        mine = namespace.contiguous(x.local).reshape((self.rows[self.row], columns[self.column]))
        found = (self._moving_y if sum(self.columns) > self.M else self._adjoint_summa)(
            mine, columns, namespace
        )
        return DistributedArray.of(layout, found.reshape(layout.local_shape), x._base_comm)

    def _summa(self, mine: Any, columns: Shape, namespace: Any) -> Any:
        side, (along, down) = self.grid[0], self._lines

        def begin(k: int) -> tuple[Any, Any, list[Any]]:
            a = self._panel(k, namespace)
            b = (
                mine
                if k == self.row
                else namespace.empty_beside(mine, (self.columns[k], columns[self.column]))
            )
            return a, b, [_broadcast(along, a, k), _broadcast(down, b, k)]

        found: Any = None
        ahead = begin(0)
        for k in range(side):
            a, b, requests = ahead
            if k + 1 < side:
                ahead = begin(k + 1)
            _finish(requests)
            found = a @ b if found is None else _add(found, a @ b)
        return found

    def _adjoint_summa(self, mine: Any, columns: Shape, namespace: Any) -> Any:
        side, (along, down) = self.grid[0], self._lines

        def begin(k: int) -> tuple[Any, list[Any]]:
            a = self._panel(k, namespace, adjoint=self.At is not None)
            return a, [_broadcast(along, a, k)]

        found: Any = None
        sums, kept = [], []
        ahead = begin(0)
        for k in range(side):
            a, requests = ahead
            if k + 1 < side:
                ahead = begin(k + 1)
            _finish(requests)
            part = namespace.contiguous((a if self.At is not None else a.conj().T) @ mine)
            out = namespace.empty_like(part) if k == self.row else None
            if k == self.row:
                found = out
            kept.append(part)
            sums.append(_reduce(down, part, out, k))
        _finish(sums)
        return found

    # Here blocks are transposed, so that those of several ranks lie one after the other in memory.

    def _moving_x(self, mine: Any, columns: Shape, namespace: Any) -> Any:
        """X[c, :] is sent to all ranks (., c); what A[r, c] makes of it is summed over c, and rank (r, m) keeps Y[r,
        m]."""
        along, down = self._lines
        block = self._mirrored(namespace.contiguous(mine.T), self.columns[self.column], columns, namespace)
        x = _all_gather(down, block, columns, namespace)
        part = namespace.contiguous(x @ self.A.T)
        return namespace.contiguous(_reduce_scatter(along, part, columns, self.column, namespace).T)

    def _moving_y(self, mine: Any, columns: Shape, namespace: Any) -> Any:
        """Y[r, :] is sent to all ranks (r, .); its product with the adjoint of A[r, c] is summed over r, and sent
        back."""
        along, down = self._lines
        y = _all_gather(along, namespace.contiguous(mine.T), columns, namespace)
        if self.At is not None:
            part = y @ self.At.T
        elif self.dtype.kind == "c":
            part = (y.conj() @ self.A).conj()
        else:
            part = y @ self.A
        block = _reduce_scatter(down, namespace.contiguous(part), columns, self.row, namespace)
        return namespace.contiguous(
            self._mirrored(block, self.columns[self.row], columns, namespace, back=True).T
        )

    def _mirrored(self, block: Any, width: int, columns: Shape, namespace: Any, back: bool = False) -> Any:
        """The transposed block of rank (c, r), which has `width` columns, while that rank takes this one's."""
        side = self.grid[0]
        if side == 1:
            return block
        if (columns, back) not in self._counts:
            counts = self._counts[columns, back] = np.zeros((side * side, side * side), np.int64)
            for r in range(side):
                for c in range(side):
                    size = columns[r] * self.columns[c] if back else columns[c] * self.columns[r]
                    counts[r * side + c, c * side + r] = size
        received = namespace.empty_beside(block, (columns[self.column if back else self.row], width))
        self.ranks.all_to_all(block.reshape(-1), received.reshape(-1), counts=self._counts[columns, back])
        return received

    def _panel(self, k: int, namespace: Any, adjoint: bool = False) -> Any:
        """Block (row, k) of A, or of its adjoint: this rank's, or where it will arrive."""
        if k == self.column:
            return self.At if adjoint else self.A
        shape = (self.rows[self.row], self.columns[k])
        return namespace.empty_beside(self.A, shape[::-1] if adjoint else shape)

    def _form(self, x: DistributedArray, before: Shape, after: Shape) -> tuple[Shape, Layout]:
        """Widths of the blocks of x, and the layout of the product."""
        layout = x.layout
        if layout not in self._forms:
            self._scattered(x)
            side, shapes = self.grid[0], layout.local_shapes
            of = layout.flat_of if isinstance(layout.flat_of, Layout) else layout
            if of.ndim == 2 and of.axes == (0, 1) and of.grid == self.grid:
                columns = tuple(shape[1] for shape in of.local_shapes[:side])
            else:
                sizes = [math.prod(shape) for shape in shapes]
                first = next((r for r, n in enumerate(before) if n), 0)
                columns = tuple(
                    sizes[first * side + c] // before[first] if before[first] else m
                    for c, m in enumerate(block_split(self.M, side))
                )
            blocks, flat = self._blocks(before, columns, layout.mask), x.ndim == 1
            wanted = blocks.flat if flat else blocks
            fits = sum(columns) == self.M and layout.shape == wanted.shape and layout.boxes == wanted.boxes
            if not fits or not layout.is_order_of(wanted):
                raise ShapeError(
                    f"{self!r}: parts of shapes {shapes} are not the blocks of a matrix with {self.M} columns whose rows are split "
                    f"as {before}, on a grid of {side} by {side} ranks, as those of {blocks!r}; x is {layout!r}"
                )
            out = self._blocks(after, columns, layout.mask)
            out = out.flat if flat else out
            self._forms[layout] = columns, out
        return self._forms[layout]


class BlockMatrixMult(_MatrixProduct):
    """Y = A X, A in blocks of rows, X and Y in blocks of columns.

    On a grid of g by h ranks, where h is the square root of their number, or the factor next above it, rank (r, c) has block c
    of the rows of A, and block r of the columns of X, the same for all c. `x` is a flat one whose parts are these blocks, one
    after the other: it has all elements h times, and the mask `[rank % h ...]` lets dot products and norms count them once. The
    operator's shape counts copies, and so do `todense`, `eigs` and `trace`: it is the operator that computes each copy of Y from the
    same copy of X. One all-gather among h ranks; of the adjoint one all-reduce.
    """

    def __init__(
        self, A: Any, M: int, saveAt: bool = False, base_comm: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(A, M, saveAt, base_comm, dtype)
        self.copies, wide = self.grid[1], self.grid[1] * self.M
        self._begin((sum(self.rows) * wide, self.K * wide), None, None, base_comm)

    def domain(self) -> Layout:
        """Flat blocks of columns of X, as equal as they can be but for the last ones."""
        return self._flat(self.K)

    def range_(self) -> Layout:
        """Flat blocks of columns of Y."""
        return self._flat(sum(self.rows))

    def _flat(self, rows: int) -> Layout:
        many, across = self.grid
        mask = tuple(rank % across for rank in range(self.ranks.size))
        return self._blocks(rows, block_split(self.M, many), mask).flat

    def _blocks(self, rows: int, columns: Shape, mask: Any) -> Layout:
        """Of matrices in blocks of columns of these widths, each as often as there are ranks in a row."""
        shapes = tuple((rows, m) for m in columns for _ in range(self.grid[1]))
        width = sum(m for _, m in shapes)
        return layout_of(self.ranks, (rows, width), Partition.SCATTER, 1, local_shapes=shapes, mask=mask)

    def _grid_of(self, size: int) -> tuple[int, int]:
        large, small = near_square(size, 2)
        return small, large

    def _set_extents(self, shapes: list[Shape]) -> None:
        many, across = self.grid
        self.rows = tuple(shape[0] for shape in shapes[:across])
        self.K = shapes[0][1]
        if shapes != [(n, self.K) for n in self.rows] * many:
            raise ShapeError(
                f"blocks of rows of shapes {shapes} do not make a matrix: all have one width, and ranks of a column of the grid of "
                f"{many} by {across} the same block"
            )

    def _matvec(self, x: DistributedArray) -> DistributedArray:
        columns, layout = self._form(x, self.K, sum(self.rows))
        namespace = namespace_of(x.local)
        part = namespace.contiguous(self.A @ x.local.reshape((self.K, columns[self.row])))
        found = namespace.empty_beside(part, (sum(self.rows), columns[self.row]))
        self._lines[0].all_gather(part, found, counts=self.rows)
        return DistributedArray.of(layout, found.reshape(-1), x._base_comm)

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        columns, layout = self._form(x, sum(self.rows), self.K)
        namespace = namespace_of(x.local)
        begin = sum(self.rows[: self.column])
        mine = x.local.reshape((sum(self.rows), columns[self.row]))[begin : begin + self.rows[self.column]]
        part = namespace.contiguous((self.A.conj().T if self.At is None else self.At) @ mine)
        self._lines[0].all_reduce(part, part)
        return DistributedArray.of(layout, part.reshape(-1), x._base_comm)

    def _form(self, x: DistributedArray, before: int, after: int) -> tuple[Shape, Layout]:
        """Widths of the blocks of x, and the layout of the product."""
        layout = x.layout
        if layout not in self._forms:
            self._scattered(x)
            many, across = self.grid
            sizes = [math.prod(shape) for shape in layout.local_shapes]
            columns = tuple(
                sizes[r * across] // before if before else m for r, m in enumerate(block_split(self.M, many))
            )
            wanted = self._blocks(before, columns, layout.mask).flat
            fits = x.ndim == 1 and sum(columns) == self.M and layout.local_shapes == wanted.local_shapes
            if not fits or not layout.is_order_of(wanted):
                raise ShapeError(
                    f"{self!r}: parts of shapes {layout.local_shapes} are not flat blocks of columns of a {before} by {self.M} matrix, "
                    f"each on all {across} ranks of a row of {many}, as those of {wanted!r}; x is {layout!r}"
                )
            out = self._blocks(after, columns, layout.mask).flat
            self._forms[layout] = columns, out
        return self._forms[layout]


def _side(size: int) -> int:
    side = math.isqrt(size)
    if side * side != size:
        raise LayoutError(
            f"{size} ranks do not make a square grid: active_grid_comm gives the largest that does, and kind='block' takes any number"
        )
    return side


def _lines(ranks: Communicator, grid: tuple[int, int]) -> tuple[Communicator, Communicator]:
    """The ranks in this one's row of a grid, and in its column. The first use of a grid is collective."""
    kept = ranks.kept.setdefault("lines of grids of ranks", {})
    if grid not in kept:
        row, column = divmod(ranks.rank, grid[1])
        kept[grid] = ranks.split(row, column), ranks.split(column, row)
    found: tuple[Communicator, Communicator] = kept[grid]
    return found


def _add(total: Any, part: Any) -> Any:
    total += part
    return total


def _broadcast(ranks: Communicator, panel: Any, root: int) -> Any:
    return ranks.broadcast(panel, root, blocking=False) if ranks.size > 1 else None


def _reduce(ranks: Communicator, part: Any, out: Any, root: int) -> Any:
    if ranks.size == 1:
        out[...] = part
        return None
    return ranks.reduce(part, out, root=root, blocking=False)


def _all_gather(ranks: Communicator, part: Any, counts: Shape, namespace: Any) -> Any:
    if ranks.size == 1:
        return part
    whole = namespace.empty_beside(part, (sum(counts), part.shape[1]))
    ranks.all_gather(part, whole, counts=counts)
    return whole


def _reduce_scatter(ranks: Communicator, part: Any, counts: Shape, position: int, namespace: Any) -> Any:
    if ranks.size == 1:
        return part
    found = namespace.empty_beside(part, (counts[position], part.shape[1]))
    ranks.reduce_scatter(part, found, counts=counts)
    return found


def _finish(requests: list[Any]) -> None:
    for request in requests:
        if request is not None:
            request.wait()
