"""The gauge field: starts, copies, arrays, files, gauge transformations."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gauge_reference import GROUPS, as_array, near_unity, warm

import jali
from jali.errors import FileFormatError, JaliError, LayoutError, ParameterError, UnsetError
from jali.gauge import (
    SU,
    Algebra,
    GaugeField,
    link_trace,
    metropolis_sweep,
    overrelaxation_sweep,
    plaquette,
    plaquettes,
    polyakov_loop,
    stout_smear,
    sweep,
    wilson_action,
    wilson_flow,
)
from jali.gauge.groups import gaussian_algebra, project
from jali.io import Box, open_arrays, open_configuration, write_ildg

pytestmark = pytest.mark.lanes


@pytest.mark.parametrize("n", GROUPS)
def test_a_cold_start_has_all_traces_one(n: int) -> None:
    U = GaugeField(jali.Lattice(4, 3, 2, 4), SU(n)).cold_start()
    assert plaquettes(U) == (1.0, 1.0, 1.0)
    assert link_trace(U) == 1.0
    assert polyakov_loop(U) == 1.0
    assert U.unitarity_deviation() == 0.0


@pytest.mark.parametrize("n", GROUPS)
def test_a_hot_start_is_in_the_group_and_depends_on_seed_alone(n: int) -> None:
    lattice = jali.Lattice(4, 3, 6)
    U = GaugeField(lattice, SU(n)).hot_start(seed=5)
    links = as_array(U)
    assert U.unitarity_deviation() < 3e-15
    if n > 1:
        np.testing.assert_allclose(np.linalg.det(links), 1, atol=1e-14)
    again = GaugeField(lattice, SU(n)).hot_start(seed=5)
    other = GaugeField(lattice, SU(n)).hot_start(seed=6)
    assert np.array_equal(links, as_array(again))
    assert np.abs(links - as_array(other)).max() > 0.1


@pytest.mark.parametrize("n", GROUPS)
def test_a_hot_start_and_a_source_with_the_same_seed_share_no_numbers(n: int) -> None:
    """Momenta or noise of Random(1) must not be the links again; nor a gauge transformation those of either."""

    @jali.site_function
    def noise(X, out, rng):
        out[X] = rng.gaussian(X)

    lattice = jali.Lattice(8, 8, 8, 8)
    rng, fields = jali.Random(1), []
    for _ in range(4):
        out = jali.Field(lattice, jali.Real())
        noise(out, rng)
        fields.append(out[...].ravel())
    links = as_array(GaugeField(lattice, SU(n)).hot_start(seed=1))
    transformed = as_array(GaugeField(lattice, SU(n)).cold_start().random_gauge_transform(1))
    numbers = [
        part.ravel()
        for field in (*links, transformed[0])
        for part in (field[..., 0, 0].real, field[..., 0, 0].imag)
    ]
    correlation = np.corrcoef(np.array(fields + numbers))
    assert np.abs(correlation - np.eye(len(correlation))).max() < 5 / math.sqrt(lattice.volume)


@pytest.mark.parametrize("bad", [1.5, "1", None, -1, True])
def test_what_is_no_seed_and_no_source_is_refused(bad: object) -> None:
    U = GaugeField(jali.Lattice(4, 4), SU(2))
    with pytest.raises(ParameterError, match="seed is a whole number"):
        U.hot_start(bad)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="seed is a whole number"):
        U.cold_start().random_gauge_transform(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [*GROUPS, 4])
def test_a_hot_start_has_the_moments_of_the_haar_measure(n: int) -> None:
    links = as_array(GaugeField(jali.Lattice(32, 32, 32), SU(n)).hot_start(seed=3)).reshape(-1, n, n)
    traces = np.trace(links, axis1=-2, axis2=-1)
    count = len(links)

    def check(values: np.ndarray, exact: float) -> None:
        error = values.std() / math.sqrt(count)
        assert abs(values.mean() - exact) < 4 * error + 1e-12

    check(traces.real, 0.0)
    check(np.abs(traces) ** 2, 1.0)  # <|chi|^2> = 1 for every irreducible representation
    # <|tr U|^4> counts invariants of V x V x V* x V*: 2 for n >= 3, Catalan's 2 for SU(2), 1 for a phase
    check(np.abs(traces) ** 4, 1.0 if n == 1 else 2.0)
    # tr U^2 = chi_symmetric - chi_antisymmetric; the antisymmetric one is trivial for SU(2)
    squares = np.trace(links @ links, axis1=-2, axis2=-1)
    check(squares.real, -1.0 if n == 2 else 0.0)
    # all components alike, none correlated with another
    check(np.abs(links[:, 0, -1]) ** 2, 1 / n)
    check((links[:, 0, 0] ** 2).real, 1 / 4 - 1 / 4 if n != 2 else 0.0)
    if n > 1:
        check((links[:, 0, 0].conj() * links[:, 0, 1]).real, 0.0)
    # n-ality: <(tr U)^n> = 1 for SU(n), n = 2, 3: the determinant is invariant
    check((traces**n).real, 1.0 if n > 1 else 0.0)


@pytest.mark.short(2)
@pytest.mark.parametrize("n", [*GROUPS, 4])
def test_gaussian_algebra_elements_have_unit_components(n: int) -> None:
    lattice = jali.Lattice(64, 64)
    A = jali.Field(lattice, Algebra(n))

    @jali.site_function
    def draw(X, A, rng):
        A[X] = gaussian_algebra(X, rng, n)

    draw(A, jali.Random(4))
    values = A.local().reshape(-1, n, n)
    np.testing.assert_allclose(values, -values.conj().swapaxes(-1, -2), atol=0)
    squares = -2 * np.trace(values @ values, axis1=-2, axis2=-1).real
    components = max(1, n * n - 1)
    error = math.sqrt(2 * components / len(values))
    assert abs(squares.mean() - components) < 4 * error
    assert squares.var() == pytest.approx(2 * components, rel=0.15)
    if n > 1:
        np.testing.assert_allclose(np.trace(values, axis1=-2, axis2=-1), 0, atol=1e-14)
        # every diagonal entry is i times a Gaussian of variance (1 - 1/n) / 2
        variance = (values[:, range(n), range(n)].imag ** 2).mean(axis=0)
        np.testing.assert_allclose(variance, (1 - 1 / n) / 2, rtol=0.12)


@pytest.mark.short(2)
@pytest.mark.parametrize("n", [*GROUPS, 4])
def test_projection_to_the_group_is_covariant_and_keeps_the_group(n: int) -> None:
    lattice = jali.Lattice(4, 4)
    M, g, h, out = (jali.Field(lattice, jali.Matrix(n)) for _ in range(4))
    values = near_unity((4, 4), n, 1, 0.5) + 0.3 * near_unity((4, 4), n, 2, 2.0)
    M[...] = values
    g[...], h[...] = near_unity((4, 4), n, 5, 3.0), near_unity((4, 4), n, 6, 3.0)
    g_values, h_values = g.local(), h.local()

    @jali.site_function
    def run(X, out, M):
        out[X] = project(M[X])

    run(out, M)
    V = out.local()
    np.testing.assert_allclose(V @ V.conj().swapaxes(-1, -2), np.broadcast_to(np.eye(n), V.shape), atol=1e-13)
    if n > 1:
        np.testing.assert_allclose(np.linalg.det(V), 1, atol=1e-13)
    M[...] = g_values @ values @ h_values
    run(out, M)
    np.testing.assert_allclose(out.local(), g_values @ V @ h_values, atol=1e-12)
    M[...] = 0.2 * V
    run(out, M)
    np.testing.assert_allclose(out.local(), V, atol=1e-13)


def test_projection_survives_badly_conditioned_matrices() -> None:
    lattice = jali.Lattice(2, 2)
    M, out = jali.Field(lattice, jali.Matrix(3)), jali.Field(lattice, jali.Matrix(3))
    u, v = near_unity((2, 2), 3, 1, 2.0), near_unity((2, 2), 3, 2, 2.0)
    M[...] = u @ np.diag([1.0, 0.5, 1e-3]) @ v

    @jali.site_function
    def run(X, out, M):
        out[X] = project(M[X])

    run(out, M)
    np.testing.assert_allclose(out.local(), u @ v, atol=1e-10)


def test_reunitarise_repairs_noisy_links() -> None:
    U = warm((4, 4, 4), 3)
    clean = as_array(U)
    for field in U.fields:
        field[...] = field.local() * (1 + 1e-6)
    assert U.unitarity_deviation() > 1e-6
    U.reunitarise()
    assert U.unitarity_deviation() < 3e-15
    np.testing.assert_allclose(as_array(U), clean, atol=1e-14)


def test_copy_is_independent_and_assign_converts_precision() -> None:
    U = warm((4, 4), 3)
    V = U.copy()
    U.cold_start()
    assert plaquette(U) == 1.0
    assert plaquette(V) < 0.99
    single = GaugeField(U.lattice, SU(3), precision="float32").assign(V)
    np.testing.assert_allclose(as_array(single), as_array(V), atol=1e-6)
    assert as_array(single).dtype == np.complex64


def test_local_links_have_the_order_of_files() -> None:
    U = warm((2, 3, 4, 5), 2)
    links = U.local_links()
    assert links.shape == (5, 4, 3, 2, 4, 2, 2)
    assert np.array_equal(links[4, 3, 2, 1, 2], U[2][1, 2, 3, 4])
    V = GaugeField(U.lattice, SU(2)).set_local_links(links)
    assert np.array_equal(as_array(U), as_array(V))
    with pytest.raises(LayoutError, match=r"\(5, 4, 3, 2, 4, 2, 2\)"):
        V.set_local_links(links[1:])


@pytest.mark.parametrize(("format", "n"), [("ildg", 2), ("ildg", 3), ("nersc", 3)])
def test_a_saved_configuration_comes_back_bit_for_bit(tmp_path: Path, format: str, n: int) -> None:
    U = warm((4, 2, 4, 6), n)
    U.save(tmp_path / "configuration", format, metadata={"beta": "5.7"})
    V = GaugeField.from_file(tmp_path / "configuration")
    assert V.lattice.extents == (4, 2, 4, 6)
    assert V.group == SU(n)
    assert np.array_equal(as_array(U), as_array(V))


def test_a_single_precision_field_is_saved_in_32_bits(tmp_path: Path) -> None:
    U = warm((4, 4, 4, 4), 3, precision="float32")
    U.save(tmp_path / "single")
    assert os.path.getsize(tmp_path / "single") < 256 * 4 * 9 * 8 * 1.1
    V = GaugeField.from_file(tmp_path / "single", precision="float32")
    assert np.array_equal(as_array(U), as_array(V))


def test_files_that_contradict_the_arguments_are_refused(tmp_path: Path) -> None:
    U = warm((4, 4, 4, 4), 3)
    U.save(tmp_path / "file", "nersc")
    with pytest.raises(JaliError, match=r"4, 4, 4, 6|4 x 4 x 4 x 6"):
        GaugeField.from_file(tmp_path / "file", lattice=jali.Lattice(4, 4, 4, 6))
    with pytest.raises(JaliError, match="3"):
        GaugeField.from_file(tmp_path / "file", group=SU(2))
    with pytest.raises(ParameterError, match="'ildg' or 'nersc'"):
        U.save(tmp_path / "file", "milc")
    with pytest.raises(LayoutError, match="four-dimensional"):
        warm((4, 4), 3).save(tmp_path / "flat")


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("U.nersc", "nersc"),
        ("nersc.8", "nersc"),
        ("U.ildg", "ildg"),
        ("U.lime", "ildg"),
        ("ildg.8", "ildg"),
        ("U.dat", "ildg"),
        ("nersc.h5", "hdf5"),
    ],
)
def test_the_name_says_the_format(tmp_path: Path, name: str, format: str) -> None:
    U = warm((2, 2, 2, 2), 3)
    U.save(tmp_path / name)
    found = open_arrays(tmp_path / name) if format == "hdf5" else open_configuration(tmp_path / name)
    assert found.format == format
    assert np.array_equal(as_array(GaugeField.from_file(tmp_path / name)), as_array(U))


@pytest.mark.parametrize("boundary", ["open", "antiperiodic", {2: 1j}])
@pytest.mark.parametrize("name", ["U.ildg", "U.nersc"])
def test_a_boundary_is_not_lost_on_the_way_into_a_file(tmp_path: Path, name: str, boundary: Any) -> None:
    def run() -> None:
        U = GaugeField(jali.Lattice(2, 2, 2, 4), SU(3), boundary=boundary).hot_start(1)
        with pytest.raises(LayoutError, match=r"no place for a boundary.*\.npy, \.h5 and \.jali keep it"):
            U.save(tmp_path / name)
        assert not (tmp_path / name).exists()
        U.save(tmp_path / "U.npy")
        assert GaugeField.from_file(tmp_path / "U.npy")[0].boundary.words == U[0].boundary.words

    jali.virtual_ranks(2, run)
    U = GaugeField.from_file(tmp_path / "U.npy")
    GaugeField(U.lattice, SU(3)).assign(U).save(tmp_path / name)  # as the message says
    file = open_configuration(tmp_path / name)
    assert np.array_equal(as_array(GaugeField.from_file(tmp_path / name)), as_array(U))
    links = GaugeField.from_file(file)
    assert file.header_mismatch(plaquette(links), link_trace(links)) is None


@pytest.mark.parametrize("name", ["U.nersc", "U.ildg"])
def test_links_that_are_not_those_of_the_header_are_refused(tmp_path: Path, name: str) -> None:
    """A NERSC file with two extents exchanged has the right size and checksum, and holds another configuration."""
    U = warm((2, 4, 2, 2), 3)
    U.save(tmp_path / name)
    path = tmp_path / "exchanged"
    if name == "U.nersc":
        text = (tmp_path / name).read_bytes()
        path.write_bytes(
            text.replace(b"DIMENSION_1 = 2", b"DIMENSION_1 = 4").replace(
                b"DIMENSION_2 = 4", b"DIMENSION_2 = 2"
            )
        )
    else:
        V = U.copy().random_gauge_transform(1)  # the plaquette is right, the link trace is not
        box = Box.whole(U.lattice.extents)
        write_ildg(
            path, V.local_links(), box, U.lattice.extents, plaquette=plaquette(U), link_trace=link_trace(U)
        )

    def run() -> None:
        for verify in (True, False):
            with pytest.raises(
                FileFormatError, match=r"header mismatch: .*exchanged: .*, the header says .*"
            ):
                GaugeField.from_file(path, verify=verify)
        assert open_configuration(path).read().shape == open_configuration(path).read(verify=False).shape

    jali.virtual_ranks(1, run)
    jali.virtual_ranks(2, run)


@pytest.mark.parametrize("name", ["U.nersc", "U.ildg"])
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_rounding_is_no_mismatch(tmp_path: Path, name: str, bits: int, precision: str) -> None:
    U = warm((4, 4, 2, 2), 3)
    U.save(tmp_path / name, precision=bits)
    V = GaugeField.from_file(tmp_path / name, precision=precision)
    assert np.abs(as_array(V) - as_array(U)).max() < 1e-6


def test_the_shared_configurations_have_their_known_plaquette(tmp_path: Path) -> None:
    folder = Path(__file__).resolve().parents[3] / "shared" / "data"
    if not folder.is_dir() and not os.environ.get("CI"):
        pytest.skip("the shared configurations are not beside this checkout (shared/data)")
    for name in ("nersc.l8t4b3360", "ildg.l8t4b3360"):
        U = GaugeField.from_file(folder / name)
        assert plaquette(U) == pytest.approx(0.503866446950, abs=5e-13)
        assert link_trace(U) == pytest.approx(0.005406083858, abs=5e-13)
    exchanged = open_configuration(folder / "nersc.l8t4b3360")
    text = (folder / "nersc.l8t4b3360").read_bytes()
    where = tmp_path / "exchanged"
    where.write_bytes(
        text.replace(b"DIMENSION_4 = 4", b"DIMENSION_4 = 8", 1).replace(
            b"DIMENSION_1 = 8", b"DIMENSION_1 = 4", 1
        )
    )
    assert open_configuration(where).read().size == exchanged.read().size  # the checksum is right
    with pytest.raises(FileFormatError, match=r"exchanged: plaquette is .*, the header says 0\.5038664469"):
        GaugeField.from_file(where)
    U = GaugeField.from_file(
        folder / "conf_00000100_4444nc2.ildg", lattice=jali.Lattice(4, 4, 4, 4), group=SU(2)
    )
    assert plaquette(U) == pytest.approx(0.668474886836, abs=5e-13)


def test_a_gauge_transformation_by_hand_is_the_same() -> None:
    U = warm((4, 2, 3), 3)
    g = jali.Field(U.lattice, SU(3))
    g[...] = near_unity((4, 2, 3), 3, 9, 3.0)
    before, G = as_array(U), g.local()
    U.gauge_transform(g)
    for mu in range(3):
        far = np.roll(G, -1, mu).conj().swapaxes(-1, -2)
        np.testing.assert_allclose(U[mu].local(), G @ before[mu] @ far, atol=1e-14)


def test_wrong_elements_are_refused() -> None:
    lattice = jali.Lattice(4, 4)
    with pytest.raises(LayoutError, match="SU\\(n\\)"):
        GaugeField(lattice, jali.Matrix(3))
    with pytest.raises(LayoutError, match="SU\\(n\\)"):
        GaugeField(lattice, jali.Real())
    with pytest.raises(LayoutError, match="gauge transformation"):
        GaugeField(lattice, SU(3)).cold_start().gauge_transform(jali.Field(lattice, SU(2)))


# ---- starts ----------------------------------------------------------------------------------------------

READERS = {
    "plaquette": plaquette,
    "sweep": lambda U: sweep(U, 2.0, jali.Random(1)),
    "overrelaxation": overrelaxation_sweep,
    "Metropolis": lambda U: metropolis_sweep(U, 2.0, jali.Random(1)),
    "force": lambda U: wilson_action(1.0).force(U),
    "flow": lambda U: next(wilson_flow(U, 0.1)),
    "smearing": stout_smear,
    "Polyakov": polyakov_loop,
    "copy": GaugeField.copy,
    "arrays": GaugeField.local_links,
    "a field": lambda U: U[0].local(),
    "a site": lambda U: U[1][0, 0, 0],
    "a field's copy": lambda U: U[0].copy(),
    "reunitarise": GaugeField.reunitarise,
    "transform": lambda U: U.random_gauge_transform(1),
}


@pytest.mark.short(3)
@pytest.mark.parametrize("reader", READERS)
def test_links_that_were_never_started_are_not_read_as_zeros(reader: str) -> None:
    def read() -> str:
        U = GaugeField(jali.Lattice(4, 2, 4), SU(2))
        with pytest.raises(
            UnsetError, match=r"U\[\d\] is read, but was never set: start the gauge field with"
        ) as error:
            READERS[reader](U)
        READERS[reader](U.cold_start())  # the same call, once it has links
        with pytest.raises(UnsetError):
            READERS[reader](U.like())
        return str(error.value)

    said = jali.virtual_ranks(2, read)
    assert said[0] == said[1]


def test_every_way_to_start_counts() -> None:
    lattice = jali.Lattice(4, 4, 4, 4)
    links = GaugeField(lattice, SU(2)).hot_start(1)

    def by_fields(U: GaugeField) -> None:
        for mine, theirs in zip(U.fields, links.fields, strict=True):
            mine[...] = theirs[...]

    def by_a_kernel(U: GaugeField) -> None:
        @jali.site_function
        def fill(X, U, V):
            for mu in X.directions():
                U[mu][X] = V[mu][X]

        fill(U, links)

    for start in (
        lambda U: U.hot_start(1),
        lambda U: U.assign(links),
        lambda U: U.set_local_links(links.local_links()),
        by_fields,
        by_a_kernel,
    ):
        U = GaugeField(lattice, SU(2))
        start(U)
        assert plaquette(U) == plaquette(links)
        assert plaquette(U.copy()) == plaquette(links)
    U = GaugeField(lattice, SU(2))
    U[0][...] = links[0][...]
    with pytest.raises(UnsetError, match=r"U\[1\] is read"):
        plaquette(U)


def test_a_graph_may_start_and_read_links() -> None:
    U = GaugeField(jali.Lattice(4, 4), SU(2))

    @jali.site_function
    def unit(X, U):
        for mu in X.directions():
            U[mu][X] = jali.identity(2)

    @jali.site_function
    def trace(X, U, total):
        total += U[0][X].trace().real

    def step():
        unit(U)
        return U.lattice.sum(trace, U, wait=False)

    graph = jali.graph(step, U.lattice)
    graph.run()
    assert graph.read() == [32.0]


def test_fields_of_ones_own_begin_with_zeros() -> None:
    f = jali.Field(jali.Lattice(4, 4), SU(2))
    assert (f.local() == 0).all()
    assert (f.copy()[...] == 0).all()
