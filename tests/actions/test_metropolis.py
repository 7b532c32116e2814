"""Metropolis updates of fields of all elements: exact values, the same bits on any ranks, and what is refused."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import iv, ive
from scipy.stats import chi2

import jali
from jali import SU, Algebra, Complex, Field, Hermitian, Lattice, LayoutError, ParameterError, Real, Vector
from jali.actions import metropolis_sweep
from jali.actions.terms import Terms
from jali.gauge import GaugeField, stout_smear, wilson_action

COPIES = 1024
SWEEPS = 30  # before measurements, and with them


@jali.action
def rings(X: Any, phi: Any, *, kappa: Any, lam: Any) -> Any:
    """phi^4 on rings of sites in direction 0; sites of direction 1 are copies, which know nothing of each other."""
    size = phi[X].norm2()
    return size + lam * (size - 1) ** 2 - 2 * kappa * phi[X].dot(phi[X + X.directions()[0]]).real


@jali.action
def free_rings(X: Any, phi: Any, *, kappa: Any, far: Any) -> Any:
    """Free fields with a coupling to the next but one."""
    step = X.directions()[0]
    return phi[X] * (phi[X] - 2 * kappa * phi[X + step] - 2 * far * phi[X + step + step])


@jali.action
def chains(X: Any, n: Any, *, beta: Any) -> Any:
    """Unit vectors on rings, or unit quaternions, of which matrices of SU(2) are sqrt(2) times."""
    return -1.0 * beta * n[X].dot(n[X + X.directions()[0]]).real


def of_two(numbers: int, kappa: float, lam: float) -> list[float]:
    """<|phi|^2>, <|phi|^4> and <phi(0) . phi(1)> of a ring of two sites, each of so many real numbers: over directions the weight exp(4 kappa phi(0) . phi(1)) is a Bessel function, over
    lengths a sum, which converges as fast as any power of the step."""
    step = 0.01
    r = np.arange(0.5 * step, 4.5, step)
    size = r**2
    own = r ** (numbers - 1) * np.exp(-size - lam * (size - 1) ** 2)
    z = 4 * kappa * np.multiply.outer(r, r)
    order = numbers / 2 - 1
    weight = np.multiply.outer(own, own) * iv(order, z) * z**-order
    mean = lambda values: float(np.sum(weight * values) / np.sum(weight))  # noqa: E731
    along = iv(order + 1, z) / iv(order, z)
    return [mean(size[:, None]), mean(size[:, None] ** 2), mean(np.multiply.outer(r, r) * along)]


def of_modes(length: int, kappa: float, far: float) -> list[float]:
    """<|phi(k)|^2> of a free ring: S = sum_k (1 - 2 kappa cos k - 2 far cos 2 k) |phi(k)|^2."""
    k = 2 * np.pi * np.arange(length // 2 + 1) / length
    return list(0.5 / (1 - 2 * kappa * np.cos(k) - 2 * far * np.cos(2 * k)))


def of_edge(length: int, kappa: float, across: float) -> list[float]:
    """<phi(0)^2>, <phi(0) phi(1)> and <phi(0) phi(length - 1)> of a free ring whose field goes on across its edge with a factor: S = phi^T M phi, and the means are M^-1 / 2."""
    M = np.eye(length) - kappa * (np.eye(length, k=1) + np.eye(length, k=-1))
    M[0, -1] = M[-1, 0] = -kappa * across
    return list(0.5 * np.linalg.inv(M)[0, [0, 1, -1]])


def of_chain(components: int, beta: float, length: int) -> list[float]:
    """<n(0) . n(1)> on a ring: the transfer matrix has the eigenvalues I_(l + N/2 - 1)(beta) beta^(1 - N/2), as often as there are harmonics of the degree l."""

    def log_z(b: float) -> float:
        l = np.arange(14)  # noqa: E741
        often = np.array(
            [
                math.comb(k + components - 1, k) - (math.comb(k + components - 3, k - 2) if k > 1 else 0)
                for k in l
            ]
        )
        order = components / 2 - 1
        values = ive(l + order, b) * b**-order
        return float(
            np.log(np.sum(often * (values / values[0]) ** length)) + length * (np.log(values[0]) + b)
        )

    h = 1e-3
    slope = (8 * (log_z(beta + h) - log_z(beta - h)) - log_z(beta + 2 * h) + log_z(beta - 2 * h)) / (12 * h)
    return [slope / length]


class Case:
    """A field on copies of a ring, its action, what is measured on each copy, and the exact means."""

    def __init__(
        self,
        element: Any,
        length: int,
        action: jali.Action,
        measure: Callable[[np.ndarray], list[np.ndarray]],
        exact: list[float],
        seed: int,
        width: float,
        boundary: Any = None,
    ):
        self.element, self.length, self.action, self.measure = element, length, action, measure
        self.exact, self.seed, self.width, self.boundary = exact, seed, width, boundary

    def pulls(self) -> list[float]:
        """By how many standard deviations means are off; copies are independent."""
        phi = Field(Lattice(self.length, COPIES), self.element, boundary=self.boundary)
        is_sphere = self.action.fields == ("n",)
        phi[...] = start(phi, is_sphere)
        rng, found = jali.Random(self.seed), []
        for k in range(2 * SWEEPS):
            rate = metropolis_sweep(
                phi, self.action, rng, self.width, on_sphere=is_sphere and self.element != SU(2)
            )
            if k >= SWEEPS:
                found.append(self.measure(phi[...]))
        assert 0.2 < rate < 0.95
        of_copies = np.mean(found, axis=0)
        errors = of_copies.std(axis=1, ddof=1) / math.sqrt(COPIES)
        return list((of_copies.mean(axis=1) - self.exact) / errors)


def start(phi: Field, is_sphere: bool) -> np.ndarray:
    """Zeros, or ones: a rotation in which all have turned from one direction."""
    values = np.zeros(phi.shape)
    if is_sphere and phi.element == SU(2):
        return values + np.eye(2)
    if is_sphere:
        values[..., 0] = 1.0
    return values


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of values at sites (ring, copies, ...)."""
    return np.sum((a.conj() * b).real.reshape(*a.shape[:2], -1), axis=-1)


def sizes(phi: np.ndarray) -> list[np.ndarray]:
    size = dot(phi, phi)
    return [size.mean(axis=0), (size**2).mean(axis=0), dot(phi[:1], phi[1:])[0]]


def modes(phi: np.ndarray) -> list[np.ndarray]:
    power = np.abs(np.fft.fft(phi, axis=0)) ** 2 / len(phi)
    return list(power[: len(phi) // 2 + 1])


def from_the_edge(phi: np.ndarray) -> list[np.ndarray]:
    return [phi[0] * phi[k] for k in (0, 1, -1)]


def bonds(n: np.ndarray) -> list[np.ndarray]:
    scale = n.shape[-1] if n.ndim == 4 else 1
    return [dot(n, np.roll(n, -1, axis=0)).mean(axis=0) / scale]


def two(element: Any, kappa: float, lam: float, seed: int, width: float) -> Case:
    exact = of_two(element.stored_reals, kappa, lam)
    return Case(element, 2, rings(kappa=kappa, lam=lam), sizes, exact, seed, width)


def chain(element: Any, beta: float, length: int, seed: int, width: float) -> Case:
    components = 4 if element == SU(2) else element.stored_reals
    S = chains(beta=beta / (2 if element == SU(2) else 1))  # Re tr U^dagger V = 2 n . m
    return Case(element, length, S, bonds, of_chain(components, beta, length), seed, width)


# Seeds were written before the first run and stay.
CASES = {
    "phi^4, real": two(Real(), 0.2, 0.5, 201, 0.8),
    "phi^4, complex": two(Complex(), 0.15, 0.3, 202, 0.7),
    "phi^4, Algebra(2)": two(Algebra(2), 0.2, 0.4, 203, 0.7),
    "phi^4, Hermitian(2)": two(Hermitian(2), 0.1, 0.3, 204, 0.5),
    "free, next neighbours": Case(
        Real(), 7, free_rings(kappa=0.25, far=-0.1), modes, of_modes(7, 0.25, -0.1), 205, 1.0
    ),
    "O(3) chain": chain(Vector(3, "real"), 1.3, 5, 206, 1.8),
    "SU(2) chain": chain(SU(2), 1.5, 3, 207, 0.8),
}
LONG = {
    "phi^4, Vector(2)": two(Vector(2), 0.2, 0.5, 211, 0.5),
    "phi^4, Vector(3, real)": two(Vector(3, "real"), 0.1, 1.0, 212, 0.6),
    "phi^4, Matrix(2)": two(jali.Matrix(2), 0.1, 0.2, 213, 0.4),
    "phi^4, Spinor(1)": two(jali.Spinor(1), 0.1, 0.2, 214, 0.4),
    "phi^4, Algebra(3)": two(Algebra(3), 0.1, 0.2, 215, 0.5),
    "phi^4, Hermitian(3)": two(Hermitian(3), 0.1, 0.1, 216, 0.4),
    "free, open": Case(
        Real(), 4, rings(kappa=0.4, lam=0.0), from_the_edge, of_edge(4, 0.4, 0.0), 217, 1.0, {0: "open"}
    ),
    "free, antiperiodic": Case(
        Real(),
        3,
        rings(kappa=0.4, lam=0.0),
        from_the_edge,
        of_edge(3, 0.4, -1.0),
        218,
        1.0,
        {0: "antiperiodic"},
    ),
    "O(2) chain": chain(Vector(2, "real"), 2.0, 4, 221, 2.0),
    "O(4) chain": chain(Vector(4, "real"), 2.0, 5, 222, 1.5),
    "O(3) chain, whole sphere": chain(Vector(3, "real"), 0.7, 2, 223, math.pi),
}


def compare(cases: dict[str, Case]) -> None:
    """One chi-square over all values."""
    pulls = {f"{name}, value {k}": x for name, case in cases.items() for k, x in enumerate(case.pulls())}
    p = float(chi2.sf(sum(x**2 for x in pulls.values()), len(pulls)))
    assert 1e-3 < p < 0.999, f"p = {p:.3g}: " + ", ".join(f"{name} {x:+.1f}" for name, x in pulls.items())


def test_means_are_exact() -> None:
    compare(CASES)


@pytest.mark.full
def test_means_of_fields_of_other_elements_are_exact() -> None:
    compare(LONG)


# ---- ranks ---------------------------------------------------------------------------------------------------


@jali.action
def crossed(X: Any, phi: Any, chi: Any, n: Any, *, lam: Any) -> Any:
    """Terms of four sites and of three fields, whose values at one site reach others across corners."""
    mu, nu = X.directions()
    square = phi[X] * phi[X + mu] * phi[X + nu] * phi[X + mu + nu]
    bond = n[X].dot(n[X + mu] + n[X + nu])
    return (
        phi[X] ** 4
        + lam * square
        - chi[X].norm2() * bond
        + (chi[X] - chi[X + nu]).norm2()
        + 0.5 * chi[X].norm2() ** 2
    )


def history(ranks: int = 1) -> list[Any]:
    """Acceptances and fields, exactly."""
    lattice = Lattice(6, 8)
    numbers = np.random.default_rng(3)
    phi, chi, n = (Field(lattice, e) for e in (Real(), Algebra(2), Vector(3, "real")))
    phi[...], n[...] = numbers.normal(size=phi.shape), np.array([0.0, 0.6, 0.8])
    chi[...] = 0.0
    S, rng, found = crossed(lam=0.5), jali.Random(5), []
    for _ in range(2):
        found.append(metropolis_sweep(phi, S, rng, 0.7, 2, fields={"chi": chi, "n": n}))
        found.append(metropolis_sweep(chi, S, rng, 0.7, 2, fields={"phi": phi, "n": n}))
        found.append(metropolis_sweep(n, S, rng, 1.2, 2, fields={"phi": phi, "chi": chi}, on_sphere=True))
    return [*found, *(hashlib.sha256(one[...].tobytes()).hexdigest() for one in (phi, chi, n))]


@pytest.mark.lanes
def test_sweeps_have_the_same_bits_on_1_to_4_ranks() -> None:
    alone = history()
    assert all(0.1 < rate < 1 for rate in alone[:6])
    for ranks in (2, 3, 4):
        assert jali.virtual_ranks(ranks, history) == [alone] * ranks


def test_values_of_one_colour_share_no_term() -> None:
    """Two phi of a square, across its corners, too; a value that no other one shares a term with is on all sites."""
    lattice = Lattice(6, 8)
    phi, chi, n = (Field(lattice, e) for e in (Real(), Algebra(2), Vector(3, "real")))
    fields = {"phi": phi, "chi": chi, "n": n}

    def colours(name: str) -> np.ndarray:
        terms, number = Terms.of(crossed(lam=0.5), name, fields), Field(lattice, Real())
        for k, (_, colour) in enumerate(terms.parts(fields[name])):
            mark[colour](number, float(k))
        return number[...]

    corner = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    for name, apart in (("phi", corner), ("chi", [(0, 1)]), ("n", [(0, 1), (1, 0)])):
        number = colours(name)
        assert all((number != np.roll(number, step, (0, 1))).all() for step in apart)
        assert len(np.unique(number)) == (4 if name == "phi" else 2)

    @jali.action
    def alone(X: Any, phi: Any) -> Any:
        return phi[X] ** 2

    assert [colour for _, colour in Terms.of(alone(), "phi", fields).parts(phi)] == [jali.ALL]


@jali.site_function
def mark(X: Any, number: Any, value: Any) -> None:
    number[X] = value


# ---- widths, and what is refused -----------------------------------------------------------------------------


def test_small_changes_are_accepted_and_vectors_keep_their_length() -> None:
    n = Field(Lattice(6, 8), Vector(3, "real"))
    n[...] = np.array([0.0, 0.6, 0.8])
    rng = jali.Random(1)
    assert metropolis_sweep(n, chains(beta=2.0), rng, 1e-3, on_sphere=True) > 0.99
    assert metropolis_sweep(n, chains(beta=20.0), rng, math.pi, on_sphere=True) < 0.1
    assert metropolis_sweep(n, chains(beta=0.0), rng, math.pi, on_sphere=True) == 1.0
    assert np.abs(np.linalg.norm(n[...], axis=-1) - 1).max() < 1e-15 * 4


def refused(
    call: Callable[[Any, Any], Any], element: Any = None, error: Any = ParameterError, **how: Any
) -> str:
    phi = Field(Lattice(4, 4), element or Real(), **how)
    phi[...] = np.ones(phi.shape, phi[...].dtype)
    with pytest.raises(error) as caught:
        call(phi, jali.Random(1))
    return str(caught.value)


def as_given(wrong: Any) -> Any:
    """What a user may give, whatever the annotations say."""
    return wrong


S = rings(kappa=0.1, lam=0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda phi, rng: metropolis_sweep(phi, S, rng, 0.0), "needs a positive width and at least one hit, not 0.0"),
        (lambda phi, rng: metropolis_sweep(phi, S, rng, hits=0), "at least one hit, not 0.3 and 0"),
        (lambda phi, rng: metropolis_sweep(phi, S, rng, hits=1001), "proposes 1 to 1000 times per value, not 1001"),
        (lambda phi, rng: metropolis_sweep(phi, S, rng, on_sphere=True), 'is for real vectors, Vector(n, "real")'),
        (lambda phi, rng: metropolis_sweep(phi, S, rng, fields={"chi": phi}), "depends on phi: the fields besides"),
        (lambda phi, rng: metropolis_sweep(phi, S, rng, fields=as_given([phi])), 'by their names, fields={"chi": chi}, not'),
        (lambda phi, rng: metropolis_sweep(phi, crossed(lam=1.0), rng), "besides the field that is updated are given"),
        (lambda phi, rng: metropolis_sweep(phi, as_given(5.7), rng), "metropolis_sweep: action is an Action, not 5.7"),
        (lambda phi, rng: metropolis_sweep(as_given([phi]), S, rng), "metropolis_sweep: phi is a Field, not"),
        (
            lambda phi, rng: metropolis_sweep(phi, wilson_action(1.0).on(lambda U: stout_smear(U, 0.1)), rng),
            "needs several calls, such as smearing), so no variable can be updated alone: use jali.hmc",
        ),
    ],
)  # fmt: skip
def test_calls_that_make_no_sense_are_refused(call: Any, message: str) -> None:
    assert message in refused(call)


def test_fields_that_cannot_be_updated_are_refused() -> None:
    def use(phi: Field, rng: jali.Random) -> None:
        metropolis_sweep(phi, S, rng)

    def turn(phi: Field, rng: jali.Random) -> None:
        metropolis_sweep(phi, chains(beta=1.0), rng, on_sphere=True)

    def turn_far(phi: Field, rng: jali.Random) -> None:
        metropolis_sweep(phi, chains(beta=1.0), rng, 3.2, on_sphere=True)

    assert "holds Integer, for which there is no proposal" in refused(use, jali.Integer())
    assert "has a batch of 3; it takes one value" in refused(use, error=LayoutError, batch=3)
    assert "lives on EVEN; it takes one value" in refused(use, error=LayoutError, over=jali.EVEN)
    assert "differs from 1 by 0.732: divide by the lengths" in refused(turn, Vector(3, "real"))
    assert 'is for real vectors, Vector(n, "real") with n from 2' in refused(turn, Vector(1, "real"))
    assert "at most pi, not 3.2" in refused(turn_far, Vector(2, "real"))
    links = GaugeField(Lattice(4, 4), SU(2)).cold_start()
    with pytest.raises(ParameterError, match="metropolis_sweep: phi is a Field, not"):
        metropolis_sweep(as_given(links), wilson_action(1.0), jali.Random(1))
    for extents in ((1, 4), (2, 4)):
        phi = Field(Lattice(*extents), Real())
        phi[...] = 0.0
        with pytest.raises(LayoutError, match="a term of the action has one variable twice"):
            metropolis_sweep(phi, free_rings(kappa=0.1, far=0.1), jali.Random(1))
