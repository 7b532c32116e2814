"""Full-waveform inversion: echoes show a body that is hidden in the ground, by the gradient of a thousand time steps.

(1 / c^2) (d^2 u / dt^2 + d du / dt) = laplacian u + s, with u = 0 at the surface, and damping d that grows towards the other edges. Sources and
a row of receivers lie under the surface. The misfit is 1/2 sum (u - data)^2 over receivers and steps. `jali.Tape` records the steps and
runs them backwards: the gradient of the misfit with respect to the speed at every site, for the price of some forward runs. In a tenth of the
memory it has the same bits. `python fwi.py fwi.png` draws what L-BFGS makes of it.
"""

import argparse

import numpy as np
from scipy.optimize import minimize

import jali

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("picture", nargs="?", metavar="FILE")
parser.add_argument(
    "--extents", type=int, nargs=2, default=[90, 60], help="of a row, and from the surface down"
)
parser.add_argument("--steps", type=int, default=1000, help="of the gradient that is tested")
parser.add_argument("--iterations", type=int, default=20, help="of the inversion")
options = parser.parse_args()

ROW, SPONGE = 2, 15  # of sources and receivers; sites at an edge that damp
lattice = jali.Lattice(*options.extents)
width, depth = lattice.extents
sources = np.array([width // 5, width // 2, width - 1 - width // 5])  # all at once: the members of a batch
i, j = np.indices(lattice.extents)
body = np.hypot((i / width - 0.45) / 0.155, (j / depth - 0.34) / 0.1) < 1
layers = 0.3 + 0.15 * j / depth  # c dt / h, at most 1 / sqrt(2)
truth = layers + 0.05 * body


@jali.site_function
def step(X, u, old, speed, s, sources):  # the new field takes the place of the old one
    x, y = X.coordinate(0), X.coordinate(1)
    edge = jali.minimum(jali.minimum(x, X.extent(0) - 1 - x), X.extent(1) - 1 - y)
    d = 0.1 * jali.maximum(1 - edge / SPONGE, 0.0) ** 2
    laplacian = sum(u[X + mu] + u[X - mu] for mu in X.directions()) - 2 * X.ndim * u[X]
    source = jali.where((x == sources[X.member]) & (y == ROW), s, 0.0)
    old[X] = (2 * u[X] - (1 - d) * old[X] + speed[X] ** 2 * (laplacian + source)) / (1 + d)


@jali.site_function
def difference(X, u, data, total):
    total += jali.where(X.coordinate(1) == ROW, 0.5 * (u[X] - data[X.coordinate(0), X.member]) ** 2, 0.0)


def waves(speed, steps, loop=range):
    """The waves of all sources after each step."""
    u = speed.like(boundary="open", batch=len(sources))
    old = u.like()
    for n in loop(steps):
        t = 0.06 * n - 2.0
        step(u, old, speed, (1 - 2 * t * t) * np.exp(-t * t), sources)
        u, old = old, u
        yield u


def misfit(speed, data, loop=range):
    pairs = zip(waves(speed, len(data), loop), data, strict=True)
    return sum(lattice.sum(difference, u, row).sum() for u, row in pairs)


def gradient(speed, data, memory=None):
    """The misfit, its gradient with respect to the speed, and the tape."""
    with jali.Tape(speed, memory=memory) as tape:
        found = misfit(speed, data, tape.steps)
    (g,) = tape.gradient(found)
    return found.value, g[...], tape


def speed_of(values):
    speed = lattice.field(jali.Real())
    speed[...] = values
    return speed


def say(text):
    if lattice.rank == 0:
        print(text, flush=True)


# The gradient through all steps: in a tenth of the memory, and against differences.
data = np.array([u[:, ROW] for u in waves(speed_of(truth), options.steps)])
value, g, tape = gradient(speed_of(layers), data)
_, again, small = gradient(speed_of(layers), data, memory=tape.peak / 10)
say(f"{options.steps} steps: misfit {value:.9f}, its gradient {np.linalg.norm(g):.9f}")
same, share = np.array_equal(g, again), small.peak / tape.peak
say(f"by a tape that keeps {share:.4f} of what this one keeps: {'the same' if same else 'other'} bits")
assert same
assert share <= 0.1
rest = []
for h in 1e-4, 5e-5:
    changed = misfit(speed_of(layers + h * body), data)
    rest.append(abs(changed - value - h * np.vdot(g, body)))
slope = np.log2(rest[0] / rest[1])
say(f"Taylor test: what the gradient does not explain falls as the change to the power {slope:.2f}")
assert abs(slope - 2) < 0.1

# The inversion: by the steps in which echoes arrive, with the first rows known and nothing slower than the layers.
data = data[: 4 * depth]
first = misfit(speed_of(layers), data)


def relative(x):
    found, g, _ = gradient(speed_of(x.reshape(lattice.extents)), data)
    return found / first, g.ravel() / first


history = [1.0]
found = minimize(
    relative,
    layers.ravel(),
    jac=True,
    method="L-BFGS-B",
    bounds=[(c, c + 0.1 * (y > 2 * ROW)) for c, y in zip(layers.ravel(), j.ravel(), strict=True)],
    callback=lambda intermediate_result: history.append(intermediate_result.fun),
    options={"maxiter": options.iterations},
).x.reshape(lattice.extents)
for k, one in enumerate(history):
    say(f"iteration {k:2d}: misfit {one:.6f} of the first")
error = np.linalg.norm(found - truth) / np.linalg.norm(layers - truth)
say(f"error of the speed: {error:.4f} of that of the layers alone")
assert history[-1] < 0.1
assert error < 0.8

if options.picture and lattice.rank == 0:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(9, 2.4), layout="constrained", sharey=True)
    for axis, (title, c) in zip(
        panels, {"true": truth, "start": layers, "found": found}.items(), strict=True
    ):
        image = axis.imshow(c.T, vmin=truth.min(), vmax=truth.max())
        axis.set(title=title, xticks=[], yticks=[])
    figure.colorbar(image, ax=panels, label="c dt / h")
    figure.savefig(options.picture)
