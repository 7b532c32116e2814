"""Multi-dimensional convolution with a kernel whose frequencies are spread over ranks.

Data(t, s, v) come from a model(t, r, v) and a kernel G(f, s, r). It is F1^H I1^H K I F: the Fourier transform along time, of
which the first frequencies are kept, the Fredholm integral, and the way back (Wapenaar et al., Geophys. J. Int. 185 (2011)
1335). Each rank needs of the transformed model its own frequencies only, so that an application communicates once: the products
of all ranks are gathered.
"""

from __future__ import annotations

import math
from typing import Any

from jali.array_namespaces import is_complex, namespace_of
from jali.arrays import DistributedArray, Layout, Partition, layout_of
from jali.arrays.layout import C_ORDER, Shape
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown
from jali.linops.conversion import type_of
from jali.linops.fredholm import Fredholm1
from jali.linops.operator import LinearOperator

ENGINES = ("numpy", "scipy")


class MDC(LinearOperator):
    """Convolution along time with a kernel for each pair of positions, summed over r.

    - `G`: this rank's frequencies of the kernel, in shape (frequencies, ns, nr). All ranks together have `nfreq`, which begin
      at 0 and are nt // 2 + 1 or fewer.
    - `nt`: times of model and data; with `twosided` an odd number, and time 0 of the model is the middle one.
    - `nv`: how many virtual sources.
    - `dt`, `dr`: steps of time and of r: the kernel is multiplied by dt dr sqrt(nt), unless it is `prescaled`.
    - `conj`: take the conjugate of the kernel.
    - `fftengine`: "numpy" or "scipy".
    - `saveGt`, `usematmul`: see Fredholm1.

    All ranks have all of the model and of the data, flat or in shapes (nt, nr, nv) and (nt, ns, nv), nv left out where it is 1.
    They are real; the operator is that of a real matrix, so that complex ones give complex ones. Collective, once, as is
    Fredholm1. Raises ShapeError (a ValueError) where nt is even with `twosided`, and where ranks have other numbers of
    frequencies than `nfreq`; ParameterError for another engine.
    """

    takes_stacks = False
    of_arrays = True

    def __init__(
        self,
        G: Any,
        nt: int,
        nv: int,
        nfreq: int,
        dt: float = 1.0,
        dr: float = 1.0,
        twosided: bool = True,
        fftengine: str = "numpy",
        saveGt: bool = True,
        conj: bool = False,
        usematmul: bool = False,
        prescaled: bool = False,
        base_comm: Any = None,
    ) -> None:
        if twosided and nt % 2 == 0:
            raise ShapeError(f"nt must be an odd number when twosided=True, got nt={nt}")
        if fftengine not in ENGINES:
            raise ParameterError(f"fftengine is one of {', '.join(ENGINES)}, not {value_shown(fftengine)}")
        if not prescaled:
            G = G * float(dr * dt * math.sqrt(nt))
        if conj:
            G = G.conj()
        self.kernel = Fredholm1(G, nv, saveGt=saveGt, usematmul=usematmul, base_comm=base_comm)
        found, (ns, nr) = sum(self.kernel.slices), G.shape[1:]
        if found != nfreq or nfreq > nt // 2 + 1:
            raise ShapeError(
                f"ranks have {found} frequencies of the kernel, nfreq is {nfreq}; {nt} times have {nt // 2 + 1} frequencies, of which the "
                "first nfreq are used"
            )
        self.nt, self.nv, self.nfreq, self.twosided, self.fftengine = nt, nv, nfreq, twosided, fftengine
        dims, dimsd = ((nt, n) if nv == 1 else (nt, n, nv) for n in (nr, ns))
        super().__init__(
            shape=(math.prod(dimsd), math.prod(dims)),
            dims=dims,
            dimsd=dimsd,
            dtype=type_of(G.real),
            base_comm=base_comm,
        )

    def domain(self) -> Layout:
        """Models on all ranks."""
        return layout_of(self.kernel.ranks, self.shape[1], Partition.BROADCAST, flat_of=C_ORDER)

    def range_(self) -> Layout:
        """Data on all ranks."""
        return layout_of(self.kernel.ranks, self.shape[0], Partition.BROADCAST, flat_of=C_ORDER)

    def _matvec(self, x: DistributedArray) -> DistributedArray:
        return self._apply(x, self.dims, self.dimsd, adjoint=False)

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        return self._apply(x, self.dimsd, self.dims, adjoint=True)

    def _apply(self, x: DistributedArray, before: Shape, after: Shape, adjoint: bool) -> DistributedArray:
        if x.layout.scattered:
            raise ShapeError(
                f"{self!r} takes arrays that all ranks have (Partition.BROADCAST), not {x.layout!r}"
            )
        if x.ndim > 1 and x.global_shape != before:
            raise ShapeError(f"{self!r} takes arrays of shape {before}, or flat ones, not {x.global_shape}")
        namespace = namespace_of(x.local)
        traces = x.local.reshape((self.nt, before[1], self.nv))
        in_parts = is_complex(traces)
        if in_parts:  # a real matrix: both parts go through it beside each other
            traces = namespace.xp.concatenate([traces.real, traces.imag], 2)
        found = self._convolved(traces, after[1], adjoint)
        if in_parts:
            both = namespace.empty_beside(
                found, (self.nt, after[1], self.nv), self._widened(x.dtype, namespace)
            )
            both.real[...], both.imag[...] = found[:, :, : self.nv], found[:, :, self.nv :]
            found = both
        shape = (math.prod(after),) if x.ndim == 1 else after
        layout = x.layout.with_(shape=shape, axes=(0,))
        return DistributedArray.of(layout, namespace.contiguous(found).reshape(shape), x._base_comm)

    def _widened(self, dtype: Any, namespace: Any) -> Any:
        other = namespace.empty((1,), str(self.dtype)).dtype
        return namespace.xp.promote_types(dtype, other)

    def _convolved(self, traces: Any, rows: int, adjoint: bool) -> Any:
        """Real traces of shape (nt, positions, columns) to such of `rows` positions."""
        namespace, kernel = namespace_of(traces), self.kernel
        fft, shift = self._transforms(namespace), self.nt // 2
        if self.twosided and not adjoint:
            traces = namespace.xp.roll(traces, -shift, 0)
        # the factors of orthonormal transforms, and of frequencies that stand for two, meet their inverses on the way back
        mine = slice(kernel.begin, kernel.begin + kernel.slices[kernel.ranks.rank])
        spectrum = fft.rfft(traces, self.nt, 0)[mine]
        product = namespace.contiguous((kernel.adjoint_products if adjoint else kernel.products)(spectrum))
        whole = namespace.zeros_beside(product, (self.nt // 2 + 1, *product.shape[1:]))
        if kernel.ranks.size == 1:
            whole[: self.nfreq] = product
        else:
            kernel.ranks.all_gather(product, whole[: self.nfreq], counts=kernel.slices)
        found = fft.irfft(whole, self.nt, 0)
        dtype = self._widened(traces.dtype, namespace)
        if found.dtype != dtype:  # older NumPy transforms in double precision only
            found = namespace.astype(found, dtype)
        return namespace.xp.roll(found, shift, 0) if self.twosided and adjoint else found

    def _transforms(self, namespace: Any) -> Any:
        if self.fftengine == "scipy" and namespace.name == "numpy":
            import scipy.fft

            return scipy.fft
        return namespace.xp.fft
