"""Poisson's equation by relaxation: Jacobi, red-black Gauss-Seidel on two half fields, and four colours for a nine-point stencil.

The potential of a quadrupole of four charges in an earthed box, -laplacian u = rho. Sites of one colour do not read each other, so each
colour is solved for at once: overrelaxed, u <- u + omega (its solution - u), with omega = 2 / (1 + sin(pi / (n + 1))) (D. Young, Trans.
Amer. Math. Soc. 76 (1954) 92). The nine-point stencil reads diagonal neighbours, and needs four colours (L. Adams, R. LeVeque and D. Young,
SIAM J. Numer. Anal. 25 (1988) 1156). Sine waves are its modes, so the solution is known. `--picture red_black.png` draws.
"""

import argparse

import numpy as np

import jali

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--extent", type=int, default=64, help="of the box, even")
parser.add_argument("--tolerance", type=float, default=1e-8, help="of the residual, relative to the charges")
parser.add_argument("--picture", metavar="FILE")
arguments = parser.parse_args()


def around(X, u):
    return sum(u[X + mu] + u[X - mu] for mu in X.directions())


def diagonal(X, u):
    mu, nu = X.directions()
    return sum(u[X + i * mu + j * nu] for i in (1, -1) for j in (1, -1))


@jali.site_function
def relax(X, u, others, rho, omega):
    u[X] = (1 - omega) * u[X] + omega * (rho[X] + around(X, others)) / 4


@jali.site_function
def relax_nine(X, u, rho, omega):
    u[X] = (1 - omega) * u[X] + omega * (6 * rho[X] + 4 * around(X, u) + diagonal(X, u)) / 20


@jali.site_function
def defect(X, u, others, rho, total):
    total += (rho[X] - 4 * u[X] + around(X, others)).norm2()


@jali.site_function
def defect_nine(X, u, rho, total):
    total += (rho[X] - (20 * u[X] - 4 * around(X, u) - diagonal(X, u)) / 6).norm2()


def relaxed(step, sweeps, *defects):
    """Repeats a step of so many sweeps until the residual is small: residuals, relative to the charges, by the number of sweeps."""
    history, residual = {}, 1.0
    while residual > arguments.tolerance:
        for _ in range(10):
            step()
        residual = np.sqrt(sum(lattice.sum(*one) for one in defects) / rho.norm2())
        history[10 * sweeps * (len(history) + 1)] = residual
    return history


def exact(eigenvalue):
    """The solution by sine transforms: k = pi m / (n + 1), of which the stencil has the eigenvalue of cos(k_x), cos(k_y)."""
    k = np.pi * np.arange(1, n + 1) / (n + 1)
    sines = np.sqrt(2 / (n + 1)) * np.sin(np.outer(k, np.arange(1, n + 1)))
    return sines @ (sines @ rho[...] @ sines / eigenvalue(np.cos(k)[:, None], np.cos(k)[None, :])) @ sines


n = arguments.extent
lattice = jali.Lattice(n, n)
omega = 2 / (1 + np.sin(np.pi / (n + 1)))
u, new, nine, rho = (lattice.field(jali.Real(), boundary="open") for _ in range(4))  # zero beyond the edges
near, far = n // 4, n - 1 - n // 4
rho[[near, far, near, far], [near, far, far, near]] = [1.0, 1.0, -1.0, -1.0]
(even, odd), (rho_even, rho_odd) = u.split(), rho.split()  # half of the memory each
four = jali.Colouring(4, lambda x: x[0] % 2 + 2 * (x[1] % 2))


def jacobi_twice():
    relax(new, u, rho, 1.0)
    relax(u, new, rho, 1.0)


def red_black():
    relax(even, odd, rho_even, omega)  # over the even sites, since they are those of its fields
    relax(odd, even, rho_odd, omega)


def four_colours():
    for colour in four:
        relax_nine[colour](nine, rho, omega)


histories = {
    "Jacobi": relaxed(jacobi_twice, 2, (defect, u, u, rho)),
    "red-black": relaxed(red_black, 1, (defect, even, odd, rho_even), (defect, odd, even, rho_odd)),
    "four colours": relaxed(four_colours, 1, (defect_nine, nine, rho)),
}
potential = jali.join(even, odd)
five_points = exact(lambda cx, cy: 4 - 2 * cx - 2 * cy)
nine_points = exact(lambda cx, cy: (20 - 8 * cx - 8 * cy - 4 * cx * cy) / 6)
solutions = (u, five_points), (potential, five_points), (nine, nine_points)
for (name, history), (solution, known) in zip(histories.items(), solutions, strict=True):
    difference = np.max(np.abs(solution[...] - known)) / np.max(np.abs(known))
    sweeps, residual = list(history.items())[-1]
    if lattice.rank == 0:
        print(f"{name:13}{sweeps:6} sweeps, residual {residual:.1e}, relative difference {difference:.1e}")
    if difference > arguments.tolerance * n**2:
        raise SystemExit(f"{name} found another potential")
if arguments.picture:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.0), layout="constrained")
    left.imshow(potential, cmap="RdBu")  # every rank looks, one of them saves
    for name, history in histories.items():
        right.loglog(list(history), list(history.values()), label=name)
    right.set(title="residual", xlabel="sweeps")
    right.legend()
    if lattice.rank == 0:
        figure.savefig(arguments.picture)
