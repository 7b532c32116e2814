"""Solvers on devices: the bits of the host, few launches, and the host looks now and then."""

from __future__ import annotations

import numpy as np
import pytest
from fake_driver import TWO_DEVICES, use_fake_gpus

import jali
from jali import Complex, Field, Lattice, Real, Spinor
from jali.errors import RecordingError, SolverError
from jali.fermions import WilsonDirac
from jali.gauge import SU, GaugeField
from jali.lattice.algebra import inner
from jali.linops import SiteOperator
from jali.solvers import cg, repetitions


@jali.site_function
def helmholtz(X, out, phi, m2):
    """(m^2 - Laplace) phi."""
    total = (m2 + 2 * X.ndim) * phi[X]
    for mu in X.directions():
        total = total - phi[X + mu] - phi[X - mu]
    out[X] = total


def operator(m2):
    return lambda p, q: helmholtz(q, p, m2)


def random_field(lattice, element, **options):
    field = Field(lattice, element, **options)
    rng = np.random.default_rng(1)
    values = rng.normal(size=lattice.extents + element.numpy_shape)
    field[...] = values if element.type.kind == "real" else values + 1j * rng.normal(size=values.shape)
    return field


def graphs_of(monkeypatch):
    """The graphs that solves make from now on."""
    graphs, kept = [], repetitions.Repeated.__init__

    def keep(self, *arguments):
        kept(self, *arguments)
        graphs.append(self.graph)

    monkeypatch.setattr(repetitions.Repeated, "__init__", keep)
    return graphs


@pytest.mark.short(1)
@pytest.mark.parametrize("element", [Real(), Complex()], ids=str)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_histories_are_those_of_the_host(element, precision, device):
    tolerance = 1e-10 if precision == "float64" else 1e-5
    results = []
    for kind, check_interval in (("cpu", None), (device, None), (device, 1), (device, 3)):
        b = random_field(Lattice(6, 4, device=kind), element, precision=precision)
        found = cg(operator(0.1), b, rtol=tolerance, check_interval=check_interval)
        assert found.check_interval == (check_interval or repetitions.TOGETHER)
        results.append((found.history, found.residual, found.x[...].tolist()))
    assert all(other == results[0] for other in results[1:])


@pytest.mark.short(1)
@pytest.mark.parametrize("apart", [False, True])
def test_an_iteration_is_the_operator_and_four_launches(device, monkeypatch, apart):
    """What is computed of the inner product, the update of r, what is computed of that, the update of x and p. The inner product is
    one more where the operator does not give it."""
    graphs = graphs_of(monkeypatch)
    if apart:
        monkeypatch.setattr(WilsonDirac, "normal_inner", None)
    lattice = Lattice(4, 4, 2, 2, device=device)
    U = GaugeField(lattice, SU(2)).hot_start(seed=1)
    D = WilsonDirac(U, 0.3)
    b = random_field(lattice, Spinor(2))
    found = cg(D.normal, b, rtol=1e-08)
    assert found.residual < 1e-7
    graph = graphs[0]
    assert (
        graph.operations == repetitions.TOGETHER * (2 + 4 + apart) + 1
    )  # |r|^2 is carried to the next repetition


def test_operators_that_need_the_host_are_looked_at_in_every_iteration(device):
    lattice = Lattice(5, device=device)
    b = random_field(lattice, Real())

    def apply(p, q):
        helmholtz(q, p, 1.0 + 0 * float(p[0]))

    found = cg(apply, b)
    assert found.check_interval == 1
    assert found.residual < 1e-10
    with pytest.raises(RecordingError, match="is read or set from Python"):
        cg(apply, b, check_interval=2)


def test_mistakes_are_found_in_the_iteration_that_made_them(device):
    for m2 in (-0.3, -3.0):
        said = []
        for kind, check_interval in (("cpu", 1), (device, None)):
            b = random_field(Lattice(6, 4, device=kind), Real())
            with pytest.raises(SolverError, match="not positive definite") as caught:
                cg(operator(m2), b, check_interval=check_interval)
            said.append(str(caught.value))
        assert said[0] == said[1]


@TWO_DEVICES
@pytest.mark.ranks(2)
def test_devices_of_several_ranks_solve_in_graphs_too(monkeypatch):
    def run():
        found = cg(operator(0.2), random_field(Lattice(6, 4, device="cuda"), Complex()))
        return found.check_interval, found.history

    use_fake_gpus(monkeypatch, 2)
    alone = cg(operator(0.2), random_field(Lattice(6, 4), Complex())).history
    assert jali.virtual_ranks(2, run) == [(repetitions.TOGETHER, alone)] * 2


@pytest.mark.short(1)
def test_an_iteration_with_a_site_function_as_operator_has_no_launch_for_an_inner_product(
    device, monkeypatch
):
    graphs = graphs_of(monkeypatch)
    lattice = Lattice(6, 4, device=device)
    found = cg(SiteOperator(helmholtz, (6, 4), arguments=(0.5,)), random_field(lattice, Real()))
    assert found.residual < 1e-9
    assert [graph.operations for graph in graphs] == [repetitions.TOGETHER * (1 + 4) + 1]


@pytest.mark.short(2)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("storage", [None, "float32", "fixed16"])
def test_an_inner_product_of_the_last_kernel_has_the_bits_of_the_hosts(precision, storage, device):
    numbers = []
    for kind in ("cpu", device):
        lattice = Lattice(4, 2, 4, 2, device=kind)
        U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)
        D = WilsonDirac(U, 0.3)
        psi = random_field(lattice, Spinor(3), precision=precision, storage=storage)
        out, number = D.normal_inner(psi)
        assert number == inner(psi, out).real
        assert out[...].tobytes() == D.normal(psi)[...].tobytes()
        numbers.append(number)
    assert numbers[0] == numbers[1]


@TWO_DEVICES
@pytest.mark.ranks(2)
def test_devices_of_several_ranks_give_the_inner_product_too(monkeypatch):
    def run():
        psi = random_field(Lattice(4, 2, 4, 2, device="cuda"), Spinor(2))
        U = GaugeField(psi.lattice, SU(2)).hot_start(seed=1)
        out, number = WilsonDirac(U, 0.3).normal_inner(psi)
        return number, inner(psi, out).real, cg(WilsonDirac(U, 0.3).normal, psi, rtol=1e-8).history

    use_fake_gpus(monkeypatch, 2)
    (one, two, history), (again, *_) = jali.virtual_ranks(2, run)
    assert one == two == again
    U = GaugeField(Lattice(4, 2, 4, 2), SU(2)).hot_start(seed=1)
    assert cg(WilsonDirac(U, 0.3).normal, random_field(U.lattice, Spinor(2)), rtol=1e-8).history == history
