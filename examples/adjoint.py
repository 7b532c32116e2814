"""Least squares with a linear operator of one's own: a picture that was moved, out of focus and noisy is made sharp.

Each site sees a trail of sites before it, whose length is a field, and rows beside it: one site function. `jali.adjoint` derives its adjoint,
which takes each weight from the site that used it. More is not needed for least squares: LSQR stops where what is left of the data is as
large as the noise. `python adjoint.py adjoint.png` draws.
"""

import argparse

import numpy as np

import jali
from jali.linops import SiteOperator, dottest
from jali.solvers import lsqr

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("picture", nargs="?", metavar="FILE")
parser.add_argument("--size", type=int, default=96, help="of the picture, whose sites are between 0 and 1")
parser.add_argument("--noise", type=float, default=0.003, help="of a site")
options = parser.parse_args()

TRAIL = 8
TERMS = [(k, m, c) for k in range(TRAIL) for m, c in ((-1, 0.25), (0, 0.5), (1, 0.25))]


def weight(length, k):
    return jali.exp(-k / length) / (length + 0.5)  # a sum of about 1


@jali.site_function
def blur(X, out, x, length):
    mu, nu = X.directions()
    out[X] = sum(c * weight(length[X], k) * x[X - k * mu + m * nu] for k, m, c in TERMS)


@jali.site_function
def blur_adjoint(X, y, x, length):
    """What `jali.adjoint(blur, "x")` derives, by hand."""
    mu, nu = X.directions()
    sites = [(X + k * mu - m * nu, k, c) for k, m, c in TERMS]
    x[X] = sum(c * weight(length[Y], k) * y[Y] for Y, k, c in sites)


@jali.site_function
def misfit(X, x, data, length, total):
    mu, nu = X.directions()
    seen = sum(c * weight(length[X], k) * x[X - k * mu + m * nu] for k, m, c in TERMS)
    total += 0.5 * (seen - data[X]) ** 2


n = options.size
lattice = jali.Lattice(n, n)
x, y, image, noise = (lattice.field(jali.Real(), boundary="open") for _ in range(4))  # dark beyond the edges
length = lattice.field(jali.Real())
i, j = np.meshgrid(*2 * [np.linspace(-1, 1, n)], indexing="ij")
length[...] = 2 + (i * j + j) / 2
image[...] = 0.8 * (np.hypot(i + 0.35, j + 0.4) < 0.35) + 0.9 * (abs(j - 0.5) < 0.3) * (np.floor(6 * i) % 2)
rng = np.random.default_rng(1)
noise[...] = options.noise * rng.normal(size=image.shape)


def say(text):
    if lattice.rank == 0:
        print(text)


def difference(a, b):
    return float(np.sqrt((a - b).norm2() / b.norm2()))


# The adjoint: by the dot test, and beside the one that is written by hand.
A = SiteOperator(blur, lattice.extents, arguments=(length,))
y[...] = rng.normal(size=y.shape)
left, right = y.inner(A @ image), (A.H @ y).inner(image)
say(f"<y, A x> = {left:.9f}, and <A' y, x> differs from it by {abs(right / left - 1):.0e}")
assert abs(right / left - 1) < 1e-12
assert dottest(A, rtol=1e-12)
by_hand = x.like()
jali.adjoint(blur, "x")(y, x, length)
blur_adjoint(y, by_hand, length)
say(f"A' y written by hand differs by {difference(x, by_hand):.0e}")
assert difference(x, by_hand) < 1e-13

# The gradient of |A x - data|^2 / 2 is A' (A x - data).
data = (A @ image + noise).field()
x[...] = 0.5
jali.gradient(misfit, "x")(y, x, data, length)
by_adjoint = A.H @ (A @ x - data).field()
say(f"the gradient of |A x - data|^2 / 2 differs from A' (A x - data) by {difference(y, by_adjoint):.0e}")
assert difference(y, by_adjoint) < 1e-12

found = lsqr(A, data, atol=0, btol=float(np.sqrt(noise.norm2() / data.norm2())))
before, after = difference(data, image), difference(found.x, image)
say(f"error of the picture: {before:.4f}, after {found.iterations} iterations of LSQR {after:.4f}")
assert after < before / 3

pictures = {"before": image[...], "seen": data[...], "found": found.x[...]}
if options.picture and lattice.rank == 0:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(7.2, 2.6), layout="constrained")
    for axis, (title, picture) in zip(panels, pictures.items(), strict=True):
        axis.imshow(picture.T, cmap="gray", vmin=0, vmax=1)
        axis.set(title=title, xticks=[], yticks=[])
    figure.savefig(options.picture)
