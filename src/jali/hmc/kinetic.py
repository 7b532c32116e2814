"""Momenta of fields by what the fields hold: how they are drawn, what energy they have, and how they move the fields.

An entry belongs to a kind of element. Momenta of links and of `Algebra(n)` have the kinetic energy -tr P^2 = (1/2) sum_a (P^a)^2 in the basis with tr(T^a T^b) = -1/2 delta_ab, all others (1/2) |P|^2, of
complex numbers of both parts; with a mass m these are divided by m. Equations of motion are dU/dt = P U / m for links, dphi/dt = P / m for all others, and dP/dt = -F with the gradient F
of the action. Kernels take P, the field and numbers; the length of a move is the product of two numbers, so that one of them can change while the other is part of a recorded trajectory.
"""

from __future__ import annotations

from abc import ABC
from typing import Any

import jali
from jali.actions.gaussian import gaussian_algebra, gaussian_numbers
from jali.codegen.types import Algebra, Element
from jali.derivatives.functions import is_group
from jali.errors import ParameterError
from jali.gauge.open_edges import where_linked
from jali.lattice.field import Field
from jali.lattice.random import Random


class Kinetic(ABC):
    """Kernels of the momenta of one kind of field. Of a list of fields, such as the links, each has its own momenta: `mu` says which one a kernel is for, None: it is one field."""

    draw: Any
    """(P, phi, rng, root of the mass)"""
    energy: Any
    """(P, inverse mass, a sum)"""
    move: Any
    """(phi, P, length, times, inverse mass)"""
    directions: Any = None
    """(phi, rng): values alike in all directions; None where Gaussian numbers are values"""
    tangent: Any = None
    """(P, phi): momenta that forces have kicked, made tangent again; None where all are"""

    def momentum_element(self, element: Element) -> Element:
        """What momenta of such a field are."""
        return element


def kinetic_of(fields: list[Field], on_sphere: bool) -> Kinetic:
    """The entry for a field. Raises ParameterError for one that does not move."""
    element = fields[0].element
    if any(one.batch is not None for one in fields):
        raise ParameterError(
            f"{fields[0].name} has a batch, and a Hamiltonian is one number: members are simulations of their own"
        )
    if len(fields) > 1 and not is_group(element):
        raise ParameterError(
            f"{fields[0].name} is one of {len(fields)} fields in a list, as links are; name other fields one by one"
        )
    if element.type.kind not in ("real", "complex"):
        raise ParameterError(f"{fields[0].name} holds {element}, which has no momenta")
    if on_sphere:
        if element.type.kind != "real" or len(element.type.shape) != 1:
            raise ParameterError(
                f'on_sphere= names fields of real vectors, Vector(n, "real"), of length 1; {fields[0].name} holds {element}'
            )
        return OF_SPHERE
    by_codec = {"algebra": OF_ALGEBRA, "hermitian": OF_HERMITIAN}
    return OF_LINKS if is_group(element) else by_codec.get(element.codec, OF_NUMBERS)


def hot_start(phi: Field, rng: Random, on_sphere: bool = False) -> None:
    """Sets a field that holds no links to random values: as its momenta, Gaussian numbers of variance 1, or unit vectors in all directions alike."""
    kinetic = kinetic_of([phi], on_sphere)
    if kinetic.directions is not None:
        kinetic.directions(phi, rng)
    else:
        kinetic.draw(phi, phi, rng, 1.0)


@jali.site_function
def _draw_links(X: Any, P: Any, U: Any, rng: Any, root: Any) -> None:
    for mu in X.directions():
        n = P[mu][X].shape[0]
        drawn = root * gaussian_algebra(X, rng, n)
        P[mu][X] = where_linked(X, U, mu, drawn, 0.0 * drawn)


@jali.site_function
def _move_links(X: Any, U: Any, P: Any, length: Any, times: Any, inverse: Any) -> None:
    for mu in X.directions():
        U[mu][X] = (((length * times) * inverse) * P[mu][X]).exp() * U[mu][X]


@jali.site_function
def _energy_of_links(X: Any, P: Any, inverse: Any, total: Any) -> None:
    for mu in X.directions():
        total += inverse * P[mu][X].norm2()


class OfLinks(Kinetic):
    """Links of SU(n) and U(1): momenta in the algebra."""

    draw, move, energy = _draw_links, _move_links, _energy_of_links

    def momentum_element(self, element: Element) -> Element:
        """The algebra of the group."""
        return Algebra(element.type.shape[0])


@jali.site_function
def _draw_numbers(X: Any, P: Any, phi: Any, rng: Any, root: Any) -> None:
    P[X] = root * gaussian_numbers(X, rng, P[X])


@jali.site_function
def _draw_hermitian(X: Any, P: Any, phi: Any, rng: Any, root: Any) -> None:
    P[X] = root * gaussian_numbers(X, rng, P[X]).hermitian()


@jali.site_function
def _draw_algebra(X: Any, P: Any, phi: Any, rng: Any, root: Any) -> None:
    P[X] = root * gaussian_algebra(X, rng, P[X].shape[0])


@jali.site_function
def _move_numbers(X: Any, phi: Any, P: Any, length: Any, times: Any, inverse: Any) -> None:
    phi[X] = phi[X] + ((length * times) * inverse) * P[X]


@jali.site_function
def _energy_of_numbers(X: Any, P: Any, inverse: Any, total: Any) -> None:
    total += (0.5 * inverse) * P[X].norm2()


@jali.site_function
def _energy_of_algebra(X: Any, P: Any, inverse: Any, total: Any) -> None:
    total += inverse * P[X].norm2()


class OfNumbers(Kinetic):
    """Real and complex numbers, vectors, matrices and spinors."""

    draw, move, energy = _draw_numbers, _move_numbers, _energy_of_numbers


class OfHermitian(OfNumbers):
    """Hermitian matrices."""

    draw = _draw_hermitian


class OfAlgebra(OfNumbers):
    """Matrices of the algebra, such as an adjoint scalar."""

    draw, energy = _draw_algebra, _energy_of_algebra


@jali.site_function
def _draw_directions(X: Any, n: Any, rng: Any) -> None:
    drawn = gaussian_numbers(X, rng, n[X])
    n[X] = (1.0 / jali.sqrt(drawn.norm2())) * drawn


@jali.site_function
def _draw_tangents(X: Any, P: Any, n: Any, rng: Any, root: Any) -> None:
    drawn = root * gaussian_numbers(X, rng, P[X])
    P[X] = drawn - n[X].dot(drawn) * n[X]


@jali.site_function
def _move_on_sphere(X: Any, n: Any, P: Any, length: Any, times: Any, inverse: Any) -> None:
    """Along a great circle, over the angle |P| times the length: exact, so that n stays of length 1 and P tangent to rounding."""
    speed = jali.sqrt(P[X].norm2())
    rest = speed < 1e-30
    angle = ((length * times) * inverse) * speed
    along = (1.0 / jali.where(rest, 1.0, speed)) * P[X]
    there, momentum = (
        jali.cos(angle) * n[X] + jali.sin(angle) * along,
        jali.cos(angle) * P[X] - (speed * jali.sin(angle)) * n[X],
    )
    n[X] = there
    P[X] = momentum


@jali.site_function
def _make_tangent(X: Any, P: Any, n: Any) -> None:
    P[X] = P[X] - n[X].dot(P[X]) * n[X]


class OfSphere(OfNumbers):
    """Real vectors of length 1: O(n) models. Momenta are tangent, and the field moves along great circles. S. Duane, A. Kennedy, B. Pendleton and D. Roweth,
    Phys. Lett. B 195 (1987) 216, with the geodesic flow of S. Byrne and M. Girolami, Scand. J. Statist. 40 (2013) 825, arXiv:1301.6064."""

    draw, move, directions, tangent = _draw_tangents, _move_on_sphere, _draw_directions, _make_tangent


OF_LINKS, OF_NUMBERS, OF_HERMITIAN, OF_ALGEBRA, OF_SPHERE = (
    OfLinks(),
    OfNumbers(),
    OfHermitian(),
    OfAlgebra(),
    OfSphere(),
)
