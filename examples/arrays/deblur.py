"""A picture that was moved, out of focus and noisy is made sharp: by an operator of one's own on arrays of NumPy, and by jali's on distributed arrays.

The blur A is a convolution along both axes. Where it is inverted, more noise than picture comes back. So

    lsqr, to the noise   stops where |A x - y| is as large as the noise
    cgls, differences    finds the x with the least |A x - y|^2 + mu |D x|^2, D x the differences of neighbours
    gcr, differences     solves the normal equations of that
    cgls, on ranks       does it with operators of `jali.linops`, on arrays that are split over all ranks
    cgls, few edges      divides differences by what they were, again and again, which keeps edges sharp

Each line prints |x - picture| / |picture|. `--picture FILE` draws the picture before, blurred, and after.
"""

import argparse

import numpy as np

from jali import comm
from jali.arrays import DistributedArray
from jali.linops import FirstDerivative, NonStationaryConvolve1D, StackedVStack
from jali.solvers import cgls, gcr, lsqr

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--size", type=int, default=80, help="of the picture")
parser.add_argument("--noise", type=float, default=0.005, help="of a pixel; the picture is between 0 and 1")
parser.add_argument("--mu", type=float, default=5e-4)
parser.add_argument("--picture", metavar="FILE")
arguments = parser.parse_args()
n, mu = arguments.size, arguments.mu
dims = (n, n)

# A ring, bars and a slope.
X, Y = np.meshgrid(np.linspace(-1, 1, n), np.linspace(-1, 1, n))
radius = np.hypot(X + 0.35, Y + 0.35)
image = 0.8 * (radius < 0.35) - 0.5 * (radius < 0.15) + 0.3 * (abs(Y - 0.6) < 0.25) * (X + 1)
image += 0.9 * (abs(X - 0.55) < 0.25) * (abs(Y + 0.4) < 0.35) * (np.floor(12 * (X + 1)) % 2)
image = image.ravel()

# Out of focus in both directions, and moved to the right: the adjoint moves to the left.
k = np.arange(-6, 7)
focus = np.exp(-((k / 1.5) ** 2))
moved = np.convolve(focus, np.where(k >= 0, 0.8**k, 0.0), mode="same")
FILTERS = focus / focus.sum(), moved / moved.sum()


class Blurred:
    """The blur of flat arrays, by a matrix that acts on columns and one that acts on rows."""

    def __init__(self):
        i = np.arange(n)[:, None] - np.arange(n)
        self.down, self.along = (np.where(abs(i) <= 6, h[np.clip(i, -6, 6) + 6], 0.0) for h in FILTERS)

    def matvec(self, x):
        return (self.down @ x.reshape(dims) @ self.along.T).ravel()

    def rmatvec(self, y):
        return (self.down.T @ y.reshape(dims) @ self.along).ravel()


class WithDifferences:
    """A x, and sqrt(mu) times weighted differences of neighbours in both directions: a list of three vectors."""

    def __init__(self, A, weights=(1.0, 1.0)):
        self.A, self.factors = A, [np.sqrt(mu) * w for w in weights]

    def matvec(self, x):
        return [self.A.matvec(x), *(f * d for f, d in zip(self.factors, differences(x), strict=True))]

    def rmatvec(self, ys):
        out = self.A.rmatvec(ys[0]).reshape(dims)
        for axis, (factor, y) in enumerate(zip(self.factors, ys[1:], strict=True)):
            wide = np.pad(factor * y, [(1, 1) if one == axis else (0, 0) for one in (0, 1)])
            out = out - np.diff(wide, axis=axis)
        return out.ravel()


class Normal:
    """S^T S, of an operator S."""

    def __init__(self, S):
        self.S = S

    def matvec(self, x):
        return self.S.rmatvec(self.S.matvec(x))


def differences(x):
    return [np.diff(x.reshape(dims), axis=axis) for axis in (0, 1)]


A = Blurred()
S = WithDifferences(A)
noise = arguments.noise * np.random.default_rng(1).normal(size=image.size)
y = A.matvec(image) + noise
data = [y, *(0 * d for d in differences(y))]

found = {"blurred": y}
found["lsqr, all of it"] = lsqr(A, y, atol=0, btol=0, maxiter=300).x
found["lsqr, to the noise"] = lsqr(A, y, atol=0, btol=np.linalg.norm(noise) / np.linalg.norm(y)).x
found["cgls, differences"] = cgls(S, data, rtol=1e-9).x
found["gcr, differences"] = gcr(Normal(S), A.rmatvec(y), rtol=1e-9, restart=40).x

blur = NonStationaryConvolve1D(dims, FILTERS[1][None], [n // 2], axis=1)
blur = blur @ NonStationaryConvolve1D(dims, FILTERS[0][None], [n // 2], axis=0)
steps = [mu**0.5 * FirstDerivative(dims, kind="forward", axis=axis) for axis in (0, 1)]
stack = StackedVStack([blur, *steps])
parts = stack @ DistributedArray.to_dist(image)
for part, value in zip(parts, (y, 0 * y, 0 * y), strict=True):
    part[:] = DistributedArray.to_dist(value).local
found["cgls, on ranks"] = cgls(stack, parts, rtol=1e-9).x.asarray()

x = found["cgls, differences"]
for _ in range(12):
    weights = [1 / np.sqrt(abs(d) / 0.1 + 1e-3) for d in differences(x)]
    x = cgls(WithDifferences(A, weights), data, x, rtol=1e-6).x
found["cgls, few edges"] = x

error = {name: np.linalg.norm(one - image) / np.linalg.norm(image) for name, one in found.items()}
if comm.current().rank == 0:
    for name, one in error.items():
        print(f"{name:20s} error {one:.4f}")
    assert error["cgls, few edges"] < error["cgls, differences"] < error["blurred"] < error["lsqr, all of it"]
for name in ("gcr, differences", "cgls, on ranks"):
    assert np.allclose(found[name], found["cgls, differences"], rtol=0, atol=1e-5)

if arguments.picture and comm.current().rank == 0:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 4, figsize=(8.4, 2.4), layout="constrained")
    shown = {"before": image, "blurred": y} | {k: found[k] for k in ("cgls, differences", "cgls, few edges")}
    for axis, (name, one) in zip(panels, shown.items(), strict=True):
        axis.imshow(one.reshape(dims), cmap="gray", vmin=0, vmax=1)
        axis.set(title=name, xticks=[], yticks=[])
    figure.savefig(arguments.picture)
