"""The Fredholm integral of the first kind, whose slices are spread over ranks.

d(k, x, z) = sum over y of G(k, x, y) m(k, y, z)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of
from jali.arrays import DistributedArray, Layout, Partition, communicator_of, layout_of
from jali.arrays.layout import C_ORDER, Shape
from jali.errors import ShapeError
from jali.linops.conversion import in_type, type_of
from jali.linops.operator import LinearOperator
from jali.linops.validation import positive


class Fredholm1(LinearOperator):
    """Products of matrices G(k), slice by slice.

    `G` has this rank's slices, in shape (slices, nx, ny); ranks may have different numbers of them, or none. The model has
    shape (all slices, ny, nz), the data (all slices, nx, nz), without nz where it is 1, both flat or not. Where all ranks have all of a vector, each
    multiplies its slices and one all-gather brings them together; where a vector is split along slices as G is, nothing is
    communicated.

    `saveGt` keeps the adjoint of G as well; without it the adjoint conjugates what is smaller. `usematmul` multiplies all
    slices by one call instead of one after the other. `dtype` converts G; by default it stays as it is. Collective, once: ranks
    exchange their shapes. Raises ShapeError where G has not three dimensions, or other matrices on other ranks; ParameterError
    where nz is not positive.
    """

    takes_stacks = False
    of_arrays = True

    def __init__(
        self,
        G: Any,
        nz: int = 1,
        saveGt: bool = False,
        usematmul: bool = True,
        base_comm: Any = None,
        dtype: Any = None,
    ) -> None:
        self.ranks = communicator_of(base_comm)
        namespace = namespace_of(G)
        G = in_type("kernels", G, dtype)
        self.G, self.nz, self.usematmul = G, positive("nz", nz), usematmul
        texts = self.ranks.gather_bytes(np.array(G.shape, np.int64).tobytes(), what="a kernel in slices")
        shapes = [tuple(map(int, np.frombuffer(text, np.int64))) for text in texts]
        if any(len(shape) != 3 for shape in shapes) or len({shape[1:] for shape in shapes}) > 1:
            raise ShapeError(
                f"kernels have shape (slices, nx, ny) with one nx and one ny, those of the ranks are {shapes}"
            )
        self.slices = tuple(shape[0] for shape in shapes)
        self.begin = sum(self.slices[: self.ranks.rank])
        nsl, (nx, ny) = sum(self.slices), shapes[0][1:]
        dims, dimsd = ((nsl, n) if self.nz == 1 else (nsl, n, self.nz) for n in (ny, nx))
        super().__init__(
            shape=(math.prod(dimsd), math.prod(dims)),
            dims=dims,
            dimsd=dimsd,
            dtype=type_of(G),
            base_comm=base_comm,
        )
        self.GT = namespace.contiguous(G.conj().swapaxes(1, 2)) if saveGt else None
        self._results: dict[tuple[Layout, bool], Layout] = {}

    def _matvec(self, x: DistributedArray) -> DistributedArray:
        return self._apply(x, self.dims, self.dimsd, self.products)

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        return self._apply(x, self.dimsd, self.dims, self.adjoint_products)

    def domain(self) -> Layout:
        """Models on all ranks."""
        return layout_of(self.ranks, self.shape[1], Partition.BROADCAST, flat_of=C_ORDER)

    def range_(self) -> Layout:
        """Data on all ranks."""
        return layout_of(self.ranks, self.shape[0], Partition.BROADCAST, flat_of=C_ORDER)

    def products(self, slices: Any) -> Any:
        """This rank's slices of the data, from those of a model of shape (slices, ny, any)."""
        return self._products(self.G, slices)

    def adjoint_products(self, slices: Any) -> Any:
        """This rank's slices of the adjoint, from those of data of shape (slices, nx, any)."""
        if self.GT is not None:
            return self._products(self.GT, slices)
        if self.dtype.kind != "c":
            return self._products(self.G.swapaxes(1, 2), slices)
        # G^H d is the conjugate of G^T conj(d), and d is the smaller one
        return self._products(self.G.swapaxes(1, 2), slices.conj()).conj()

    def _products(self, G: Any, slices: Any) -> Any:
        if self.usematmul or not len(G):
            return G @ slices
        return namespace_of(slices).xp.stack([g @ one for g, one in zip(G, slices, strict=True)])

    def _apply(self, x: DistributedArray, before: Shape, after: Shape, product: Any) -> DistributedArray:
        layout = self._layout_after(x.layout, before, after)
        namespace, local, mine = namespace_of(x.local), x.local, self.slices[self.ranks.rank]
        if not x.layout.scattered:
            local = local.reshape((before[0], -1))[self.begin : self.begin + mine]
        found = product(local.reshape((mine, before[1], self.nz)))
        found = namespace.contiguous(found).reshape((mine, after[1] * self.nz))
        if x.layout.scattered or self.ranks.size == 1:
            return DistributedArray.of(layout, found.reshape(layout.local_shape), x._base_comm)
        whole = namespace.empty_beside(found, (after[0], after[1] * self.nz))
        self.ranks.all_gather(found, whole, counts=self.slices)
        return DistributedArray.of(layout, whole.reshape(layout.local_shape), x._base_comm)

    def _layout_after(self, layout: Layout, before: Shape, after: Shape) -> Layout:
        key = layout, before is self.dims
        if key not in self._results:
            shapes = [(n, *before[1:]) for n in self.slices]
            flat = layout.ndim == 1
            if flat:
                local: list[Shape] = [(math.prod(shape),) for shape in shapes]
            else:
                local = list(shapes)
            if layout.communicator is not self.ranks or (not flat and layout.shape != before):
                raise ShapeError(f"{self!r} takes arrays of shape {before} of its own ranks, not {layout!r}")
            if layout.scattered and list(layout.local_shapes) != local:
                raise ShapeError(
                    f"{self!r}: x is on all ranks (Partition.BROADCAST), or split as its slices are, in parts {local}; this one has "
                    f"parts {layout.local_shapes}"
                )
            whole = (math.prod(after),) if flat else after
            if layout.scattered:
                parts = tuple((math.prod((n, *after[1:])),) if flat else (n, *after[1:]) for n in self.slices)
                self._results[key] = layout.with_(shape=whole, axes=(0,), local_shapes=parts)
            else:
                self._results[key] = layout.with_(shape=whole, axes=(0,))
        return self._results[key]
