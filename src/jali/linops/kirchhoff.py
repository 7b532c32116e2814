"""Kirchhoff demigration, from reflectivity to seismic data, and its adjoint, migration.

    d(s, r, t) = w(t) * sum over x of m(x) delta(t - t_s(x) - t_r(x))

(Bleistein, Cohen and Stockwell, Mathematics of Multidimensional Seismic Imaging, Migration, and Inversion, 2001, without
amplitudes). Of the time of a source, an image point and a receiver in samples, tau = k + w with a whole k, samples k and k + 1
get m (1 - w) and m w; the adjoint gathers with the same weights. It is an operator of one rank, on arrays of NumPy, CuPy or
PyTorch: `VStack` of one per rank spreads sources over ranks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jali.array_namespaces import ArrayNamespace, dtype_of_numpy, namespace_of
from jali.arrays import DistributedArray, StackedDistributedArray
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown
from jali.linops.conversion import type_of

MODES = ("analytic", "byot")
KEPT = 1 << 30  # bytes of tables, 16 of each source, receiver and image point


class Kirchhoff:
    """Data of shape (sources, receivers, times) from an image of shape (len(x), len(z)).

    - `z`, `x`, `t`: coordinates of image points and times; times are regular, from 0.
    - `srcs`, `recs`: positions of sources and receivers, x in row 0, z in row 1.
    - `vel`: the velocity, a number, for `mode` "analytic".
    - `wav`, `wavcenter`: samples of the wavelet, and which of them is at time 0.
    - `mode`: "analytic", times are distances by the velocity; "byot", they are the tables `trav`.
    - `trav`: times from all sources, and from all receivers, to image points, in shapes (points, sources) and (points,
      receivers), with z the faster coordinate of points.
    - `keep`: at most so many bytes are kept of tables of samples and weights; those of further sources are computed at every
      application, which takes several times as long.

    `matvec` and `rmatvec`, and `@` and `.H`, take flat arrays or such of shapes `dims` and `dimsd`, real or complex. Raises
    ParameterError for distributed arrays, for another mode, for a velocity that is no positive number and for times that are negative or not finite;
    ShapeError for arrays of the wrong shape.
    """

    def __init__(
        self,
        z: Any,
        x: Any,
        t: Any,
        srcs: Any,
        recs: Any,
        vel: Any,
        wav: Any,
        wavcenter: int,
        mode: str = "analytic",
        trav: tuple[Any, Any] | None = None,
        dtype: Any = np.float64,
        *,
        keep: int = KEPT,
    ) -> None:
        z, x, t, srcs, recs = (np.asarray(values, np.float64) for values in (z, x, t, srcs, recs))
        for name, values in (("srcs", srcs), ("recs", recs)):
            if values.ndim != 2 or values.shape[0] != 2:
                raise ShapeError(f"{name} has x in row 0 and z in row 1, this one has shape {values.shape}")
        if t.ndim != 1 or len(t) < 2:
            raise ShapeError(f"t has two times or more, this one has shape {t.shape}")
        step = t[1] - t[0]
        if not (step > 0 and (abs(np.diff(t) - step) <= 0.01 * step).all()):
            raise ParameterError("times t rise in equal steps")
        if mode not in MODES:
            raise ParameterError(f"mode is one of {', '.join(MODES)}, not {value_shown(mode)}")
        points = len(x) * len(z)
        if mode == "analytic":
            if not isinstance(vel, int | float | np.number) or not vel > 0:
                raise ParameterError(
                    f"with mode='analytic' the velocity is a positive number, not {value_shown(vel)}"
                )
            times = [_distances(x, z, positions) / vel for positions in (srcs, recs)]
        else:
            if not isinstance(trav, tuple) or len(trav) != 2:
                raise ParameterError("with mode='byot' trav is a pair of tables, of sources and of receivers")
            times = [np.ascontiguousarray(np.asarray(table, np.float64).T) for table in trav]
            wanted = [(positions.shape[1], points) for positions in (srcs, recs)]
            if [table.shape for table in times] != wanted:
                raise ShapeError(
                    f"tables of times have shapes {[shape[::-1] for shape in wanted]}, these have {[table.shape[::-1] for table in times]}"
                )
        if not all(np.isfinite(table).all() and (table >= 0).all() for table in times):
            raise ParameterError("times are finite and not negative")
        self.dt, self.nt = float(t[1] - t[0]), len(t)
        self._from_sources, self._from_receivers = (table / self.dt for table in times)
        self.wavelet = Wavelet(np.asarray(wav), int(wavcenter), self.nt)
        self.dtype = dtype_of_numpy(dtype)
        if self.dtype.kind not in "fc":
            raise ParameterError(f"images and seismograms are real or complex numbers, not {self.dtype}")
        self.dims = len(x), len(z)
        self.dimsd = srcs.shape[1], recs.shape[1], self.nt
        self.shape = math.prod(self.dimsd), points
        self._most_kept = keep // (16 * max(1, recs.shape[1] * points))
        self._kept: dict[tuple[str, int], tuple[Any, Any]] = {}

    def __repr__(self) -> str:
        return f"<{self.shape[0]}x{self.shape[1]} Kirchhoff with dtype={self.dtype}>"

    def _table(self, source: int, like: Any) -> tuple[Any, Any]:
        """Of each receiver and point the sample, as an index of rows that are two longer, and the weight of the next."""
        namespace = namespace_of(like)
        if (namespace.name, source) in self._kept:
            return self._kept[namespace.name, source]
        samples = self._from_sources[source] + self._from_receivers
        whole = samples.astype(np.int64)
        samples -= whole
        whole[whole >= self.nt - 1] = self.nt  # behind the end: the last two samples of a row are thrown away
        whole += (np.arange(len(whole)) * (self.nt + 2))[:, None]
        found = whole.reshape(-1), samples.reshape(-1)
        if namespace.name != "numpy":
            found = namespace.from_host(found[0], like), namespace.from_host(found[1], like)
        if len(self._kept) < self._most_kept:
            self._kept[namespace.name, source] = found
        return found

    def matvec(self, m: Any) -> Any:
        """Data of an image. Raises ShapeError for other numbers of elements."""
        m = self._checked(m, self.shape[1])
        if type_of(m).kind == "c":
            return self.matvec(m.real) + 1j * self.matvec(m.imag)
        namespace, (sources, receivers, _) = namespace_of(m), self.dimsd
        xp = namespace.xp
        out = self._zeros(namespace, m, self.dimsd, np.result_type(self.dtype, type_of(m)))
        images = xp.broadcast_to(namespace.astype(m, np.float64), (receivers, self.shape[1])).reshape(-1)
        size = receivers * (self.nt + 2)
        for source in range(sources):
            sample, weight = self._table(source, m)
            traces = xp.bincount(sample, images, size)
            later = xp.bincount(sample, images * weight, size)
            traces -= later
            traces[1:] += later[:-1]
            out[source] = self.wavelet.convolve(traces.reshape((receivers, -1))[:, : self.nt])
        return out.reshape(-1)

    def rmatvec(self, d: Any) -> Any:
        """The image of data: of each point all samples at its times. Raises ShapeError for other numbers of elements."""
        d = self._checked(d, self.shape[0])
        if type_of(d).kind == "c":
            return self.rmatvec(d.real) + 1j * self.rmatvec(d.imag)
        namespace, (sources, receivers, _) = namespace_of(d), self.dimsd
        points, double = self.shape[1], np.dtype(np.float64)
        traces = self._zeros(namespace, d, (receivers, self.nt + 2), double)
        steps = self._zeros(namespace, d, (receivers * (self.nt + 2),), double)
        image = self._zeros(namespace, d, (points,), double)
        shots = d.reshape(self.dimsd)
        for source in range(sources):
            sample, weight = self._table(source, d)
            traces[:, : self.nt] = self.wavelet.correlate(shots[source])
            flat = traces.reshape(-1)
            steps[:-1] = flat[1:]
            steps[:-1] -= flat[:-1]
            values = steps.take(sample)
            values *= weight
            values += flat.take(sample)
            image += values.reshape((receivers, points)).sum(0)
        return namespace.astype(image, np.result_type(self.dtype, type_of(d)))

    def _zeros(
        self, namespace: ArrayNamespace, like: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Any:
        """Where `like` is."""
        if namespace.name == "numpy":
            return np.zeros(shape, dtype)
        return namespace.from_host(np.zeros(shape, dtype), like)

    def _checked(self, values: Any, elements: int) -> Any:
        if isinstance(values, DistributedArray | StackedDistributedArray):
            raise ParameterError(
                f"{self!r} is an operator of one rank, on plain arrays, not on a {type(values).__name__}: VStack of one of each rank "
                "takes and gives those"
            )
        if not hasattr(values, "shape"):
            values = np.asarray(values)
        if math.prod(values.shape) != elements:
            raise ShapeError(
                f"{self!r} takes {elements} elements, not an array of shape {tuple(values.shape)}"
            )
        return values.reshape(-1)

    def __matmul__(self, m: Any) -> Any:
        return self.matvec(m).reshape(self.dimsd if np.ndim(m) > 1 else -1)

    @property
    def H(self) -> Migration:
        """The adjoint."""
        return Migration(self)


class Migration:
    """The adjoint of a Kirchhoff operator."""

    def __init__(self, demigration: Kirchhoff) -> None:
        self.H = demigration
        self.shape, self.dtype = demigration.shape[::-1], demigration.dtype
        self.dims, self.dimsd = demigration.dimsd, demigration.dims
        self.matvec, self.rmatvec = demigration.rmatvec, demigration.matvec

    def __repr__(self) -> str:
        return f"<{self.shape[0]}x{self.shape[1]} Migration with dtype={self.dtype}>"

    def __matmul__(self, d: Any) -> Any:
        return self.matvec(d).reshape(self.dimsd if np.ndim(d) > 1 else -1)


class Wavelet:
    """Convolution of traces with a wavelet whose sample `center` is at time 0, and correlation, its adjoint."""

    def __init__(self, samples: np.ndarray, center: int, nt: int) -> None:
        if samples.ndim != 1 or not 0 <= center < len(samples):
            raise ShapeError(
                f"a wavelet has one dimension, and its center is one of its samples: shape {samples.shape}, center {center}"
            )
        if samples.dtype.kind == "c":
            raise ParameterError("a wavelet is real")
        self.center, self.nt = center, nt
        self.length = _fast_length(nt + len(samples) - 1)
        spectrum = np.fft.rfft(samples.astype(np.float64), self.length)[None]
        self._spectra: dict[str, Any] = {"numpy": spectrum}

    def _spectrum(self, like: Any) -> Any:
        namespace = namespace_of(like)
        if namespace.name not in self._spectra:
            self._spectra[namespace.name] = namespace.from_host(self._spectra["numpy"], like)
        return self._spectra[namespace.name]

    def convolve(self, traces: Any) -> Any:
        """Along the last axis."""
        fft = namespace_of(traces).xp.fft
        spectrum = fft.rfft(traces, self.length) * self._spectrum(traces)
        return fft.irfft(spectrum, self.length)[:, self.center : self.center + self.nt]

    def correlate(self, traces: Any) -> Any:
        """Along the last axis, in double precision."""
        namespace = namespace_of(traces)
        wide = namespace.from_host(np.zeros((len(traces), self.length)), traces)
        wide[:, self.center : self.center + self.nt] = traces
        spectrum = namespace.xp.fft.rfft(wide, self.length) * self._spectrum(traces).conj()
        return namespace.xp.fft.irfft(spectrum, self.length)[:, : self.nt]


def _distances(x: np.ndarray, z: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """From each position to all points: a row for each position."""
    across = x[None, :, None] - positions[0][:, None, None]
    down = z[None, None, :] - positions[1][:, None, None]
    return np.hypot(across, down).reshape((positions.shape[1], len(x) * len(z)))


def _fast_length(least: int) -> int:
    """The next number without prime factors above 5."""
    while True:
        rest = least
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return least
        least += 1
