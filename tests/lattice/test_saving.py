"""Fields come back from files as they were: any element, storage, boundary and format, on any ranks; so do arrays of others."""

from __future__ import annotations

import cmath
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import on_ranks, run_program

import jali
from jali import (
    SU,
    Algebra,
    Complex,
    Field,
    FileFormatError,
    Hermitian,
    Integer,
    JaliError,
    Lattice,
    LayoutError,
    Matrix,
    ParameterError,
    Real,
    Spinor,
    StorageError,
    UnsetError,
    Vector,
)
from jali.codegen.types import element_named
from jali.gauge import GaugeField
from jali.io import Box, write_checkpoint

h5py = pytest.importorskip("h5py")

ENDINGS = (".jali", ".npy", ".h5")
PHASE = cmath.exp(0.3j)
ELEMENTS = [
    Real(),
    Complex(),
    Integer(),
    Vector(3),
    Vector(2, "real"),
    Matrix(2, 3),
    Matrix(3, 1, "real"),
    SU(1),
    SU(2),
    SU(3),
    Algebra(1),
    Algebra(3),
    Hermitian(1),
    Hermitian(3),
    Spinor(3),
]


def random_values(element, shape: tuple[int, ...], precision: str = "float64", seed: int = 0) -> np.ndarray:
    """Values that the element can hold, different at every site."""
    numbers = np.random.default_rng(seed)
    shape = (*shape, *element.numpy_shape)
    if element.type.kind == "int":
        return numbers.integers(-1000, 1000, shape).astype(element.numpy_dtype(precision))
    values = numbers.normal(size=shape)
    if element.type.kind == "complex":
        values = values + 1j * numbers.normal(size=shape)
    n = element.type.shape[0] if element.type.shape else 1
    if element == SU(n):
        values, _ = np.linalg.qr(values)
        if n > 1:
            values[..., 0, :] /= np.linalg.det(values)[..., None]
    if element.codec == "algebra":
        values = values - values.conj().swapaxes(-1, -2)
        if n > 1:
            values -= np.trace(values, axis1=-2, axis2=-1)[..., None, None] * np.eye(n) / n
    if element.codec == "hermitian":
        values = values + values.conj().swapaxes(-1, -2)
    return values.astype(element.numpy_dtype(precision))


def filled(lattice: Lattice, element, **options) -> Field:
    field = Field(lattice, element, **options)
    field[...] = random_values(element, lattice.extents, field.precision)
    return field


def alike(found: Field, field: Field) -> bool:
    a, b = found[...], field[...]
    return (
        found.element == field.element
        and found.precision == field.precision
        and found.boundary.conditions == field.boundary.conditions
        and a.tobytes() == b.tobytes()
    )


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("ending", ENDINGS)
def test_fields_of_every_element_come_back_on_other_ranks(tmp_path, ending, element, precision) -> None:
    path = tmp_path / f"f{ending}"
    boundary = {0: "open", 2: "antiperiodic"}
    options = {"precision": precision, "boundary": boundary}

    def save():
        filled(Lattice(3, 4, 5), element, **options).save(path)

    def load():
        return alike(jali.load(path), filled(Lattice(3, 4, 5), element, **options))

    save()
    assert jali.virtual_ranks(3, load) == [True] * 3
    whole = path.read_bytes() if path.is_file() else None
    jali.virtual_ranks(4, save)
    assert load()
    assert whole is None or path.read_bytes() == whole
    if ending == ".npy":
        field = filled(Lattice(3, 4, 5), element, **options)
        assert np.load(path, mmap_mode="r").dtype == field[...].dtype
        assert np.array_equal(np.load(path), field[...])


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_fields_go_from_any_ranks_to_any_others(tmp_path_factory, data) -> None:
    path = tmp_path_factory.mktemp("f") / f"f{data.draw(st.sampled_from(ENDINGS))}"
    extents = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=5)))
    element = data.draw(st.sampled_from(ELEMENTS))
    precision = data.draw(st.sampled_from(["float32", "float64"]))
    writers, readers = (data.draw(st.integers(1, min(4, max(extents)))) for _ in range(2))

    def field(ranks):
        along = extents.index(max(extents))  # split one direction: any such grid has a site for each rank
        grid = tuple(ranks if d == along else 1 for d in range(len(extents)))
        return filled(Lattice(*extents, grid=grid), element, precision=precision)

    jali.virtual_ranks(writers, lambda: field(writers).save(path))

    def same():
        expected = field(readers)
        return alike(jali.load(path, expected.lattice), expected)

    assert jali.virtual_ranks(readers, same) == [True] * readers


STORAGES = [
    (SU(3), "float64", "float64-12"),
    (SU(3), "float64", "float64-8"),
    (SU(3), "float32", "fixed16-12"),
    (SU(2), "float64", "float32-4"),
    (Spinor(3), "float32", "fixed16"),
    (Spinor(2), "float64", "float64-spin-first"),
    (Complex(), "float32", "float16"),
    (Vector(3, "real"), "float64", "bfloat16"),
    (Algebra(3), "float64", "float32"),
    (Integer(), "float64", "int32"),
]


@pytest.mark.short(2)
@pytest.mark.parametrize(("element", "precision", "storage"), STORAGES, ids=str)
def test_stored_bytes_come_back_in_jalis_own_format(tmp_path, element, precision, storage) -> None:
    path = tmp_path / "f.jali"

    def save():
        filled(Lattice(5, 3, 2), element, precision=precision, storage=storage).save(path)

    def load():
        field = filled(Lattice(5, 3, 2), element, precision=precision, storage=storage)
        found = jali.load(path)
        return found.format == field.format and np.array_equal(found.stored_bytes(), field.stored_bytes())

    jali.virtual_ranks(2, save)
    assert load()
    assert jali.virtual_ranks(3, load) == [True] * 3


@pytest.mark.short(2)
@pytest.mark.parametrize("ending", [".npy", ".h5"])
@pytest.mark.parametrize(("element", "precision", "storage"), STORAGES, ids=str)
def test_decoded_numbers_come_back_exactly_from_others_formats(
    tmp_path, ending, element, precision, storage
) -> None:
    field = filled(Lattice(5, 3, 2), element, precision=precision, storage=storage)
    field.save(tmp_path / f"f{ending}")
    found = jali.load(tmp_path / f"f{ending}")
    assert found.precision == precision
    assert np.array_equal(found[...], field[...])


@pytest.mark.parametrize("ending", ENDINGS)
def test_phases_at_the_boundary_come_back_to_the_last_bit(tmp_path, ending) -> None:
    for angle in np.random.default_rng(1).uniform(-3, 3, 20):
        field = Field(Lattice(3, 2), Complex(), boundary=[cmath.exp(1j * angle), "open"])
        field.save(tmp_path / f"f{ending}")
        assert jali.load(tmp_path / f"f{ending}").boundary.conditions == field.boundary.conditions


@pytest.mark.parametrize("ending", ENDINGS)
def test_fields_are_loaded_onto_a_given_lattice_in_other_precision_and_storage(tmp_path, ending) -> None:
    path = tmp_path / f"f{ending}"
    field = filled(Lattice(4, 3), SU(3), boundary="antiperiodic")
    field.save(path)
    lattice = Lattice(4, 3)
    for options in ({"precision": "float32"}, {"storage": "float32-12"}, {"storage": "float64-8"}):
        found = jali.load(path, lattice, boundary="open", **options)
        expected = Field(lattice, SU(3), **{"precision": "float64", **options})
        expected[...] = field[...]
        assert found.lattice is lattice
        assert (found.precision, found.format) == (expected.precision, expected.format)
        assert found.boundary.conditions == ["open", "open"]
        assert np.array_equal(found[...], expected[...])


@pytest.mark.parametrize("ending", [".jali", ".h5"])
def test_several_fields_are_in_one_file_by_name(tmp_path, ending) -> None:
    path, lattice = tmp_path / f"state{ending}", Lattice(3, 5)
    phi, psi = filled(lattice, Real()), filled(lattice, Spinor(2), precision="float32")
    jali.save(path, phi=phi, psi=psi)
    assert alike(jali.load(path, name="phi"), phi)
    assert alike(jali.load(path, name="psi", lattice=lattice), psi)
    with pytest.raises(ParameterError, match="holds phi, psi: say which, name='phi'"):
        jali.load(path)
    with pytest.raises(ParameterError, match="holds phi, psi, not 'chi'"):
        jali.load(path, name="chi")
    with pytest.raises(ParameterError, match="one array, not 2"):
        jali.save(tmp_path / "state.npy", phi=phi, psi=psi)
    assert os.listdir(tmp_path) == [path.name]


def test_h5py_reads_numbers_and_what_they_are(tmp_path) -> None:
    field = filled(Lattice(3, 4, 5), Spinor(3), boundary=["open", PHASE, "periodic"])
    field.save(tmp_path / "f.h5", name="psi")
    with h5py.File(tmp_path / "f.h5") as file:
        psi = file["psi"]
        assert (psi.shape, psi.dtype) == ((3, 4, 5, 4, 3), np.complex128)
        assert np.array_equal(psi[1, 2:, 0], field[1, 2:, 0])
        attributes = dict(psi.attrs)
    assert (attributes["element"], attributes["precision"], attributes["storage"]) == (
        "Spinor(3)",
        "float64",
        "float64",
    )
    assert list(attributes["boundary"])[::2] == ["open", "periodic"]
    assert (attributes["version"], len(attributes["checksum"])) == (2, 16)


# ---- arrays of others ----------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arrays_of_numpy_become_fields(tmp_path_factory, data) -> None:
    path = tmp_path_factory.mktemp("a") / "a.npy"
    extents = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    element = data.draw(
        st.sampled_from([Real(), Complex(), Integer(), Vector(3), Matrix(2, 3), Vector(2, "real")])
    )
    precision = data.draw(st.sampled_from(["float32", "float64"]))
    array = random_values(element, extents, precision)
    array = array.astype(array.dtype.newbyteorder(data.draw(st.sampled_from("<>"))))
    if data.draw(st.booleans()):
        array = np.asfortranarray(array)
    np.save(path, array)
    for found in (jali.load(path, element=element), jali.load(path, Lattice(*extents))):
        assert (found.element, found.precision, found.lattice.extents) == (element, precision, extents)
        assert np.array_equal(found[...], array)
    if not element.numpy_shape:
        assert jali.load(path).element == element


def foreign(kind: str, path: Path, array: np.ndarray) -> None:
    """An HDF5 file of somebody else."""
    options = {"chunked": {"chunks": (2, 2, 1)}, "compressed": {"compression": "gzip", "shuffle": True}}
    user = {"userblock_size": 1024} if kind == "behind other bytes" else {}
    with h5py.File(path, "w", **user) as file:
        if kind == "external":
            external = [(str(path.with_suffix(".raw")), 0, array.nbytes)]
            file.create_dataset("x", array.shape, array.dtype, external=external)[...] = array
        elif kind == "in a group":
            file["there"] = "not an array"
            file["a/b/x"] = array
        elif kind == "big-endian":
            file["x"] = array.astype(array.dtype.newbyteorder(">"))
        elif kind == "compact":
            plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plan.set_layout(h5py.h5d.COMPACT)
            space, type = h5py.h5s.create_simple(array.shape), h5py.h5t.py_create(array.dtype)
            h5py.Dataset(h5py.h5d.create(file.id, b"x", type, space, plan))[...] = array
        else:
            file.create_dataset("x", data=array, **options.get(kind, {}))
        if kind == "behind other bytes":
            file["x"].attrs["element"] = "mine"


@pytest.mark.parametrize("dtype", [np.float32, np.complex128, np.int64])
@pytest.mark.parametrize(
    "kind",
    [
        "contiguous",
        "chunked",
        "compressed",
        "external",
        "in a group",
        "big-endian",
        "compact",
        "behind other bytes",
    ],
)
def test_datasets_of_others_become_fields_on_any_ranks(tmp_path, kind, dtype) -> None:
    path = tmp_path / "a.h5"
    array = 100 * random_values(Complex(), (5, 3, 4))
    array = array.astype(dtype) if dtype == np.complex128 else array.real.astype(dtype)
    foreign(kind, path, array)

    def load():
        found = jali.load(path)
        return np.array_equal(found[...], array) and found[...].dtype == array.dtype

    assert load()
    assert jali.virtual_ranks(2, load) == [True, True]
    (outline,) = jali.io.open_arrays(path).arrays.values()  # whether h5py is needed for the numbers
    in_place = ("contiguous", "in a group", "big-endian", "behind other bytes")
    assert (outline.offset is not None) == (kind in in_place)


def test_what_no_field_can_be_made_of_is_refused(tmp_path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["flags"] = np.zeros((2, 2), bool)
        file["text"] = [b"a", b"bc"]
        file["number"] = 3.0
    assert np.array_equal(jali.load(path, name="flags")[...], np.zeros((2, 2)))
    with pytest.raises(FileFormatError, match="'text' does not hold numbers"):
        jali.load(path, name="text")
    with pytest.raises(ParameterError, match="holds flags, text: say which"):
        jali.load(path)
    with h5py.File(tmp_path / "empty.h5", "w"):
        pass
    with pytest.raises(FileFormatError, match="holds no fields"):
        jali.load(tmp_path / "empty.h5")
    np.save(tmp_path / "a.npy", np.zeros((4, 3)))
    with pytest.raises(LayoutError, match=r"holds a lattice \(4, 3\), not \(4, 4\)"):
        jali.load(tmp_path / "a.npy", Lattice(4, 4))
    with pytest.raises(LayoutError, match="of Vector\\(2, real\\) on 1 directions"):
        jali.load(tmp_path / "a.npy", element=Vector(2, "real"))
    for dtype, largest in ((bool, 1), (np.uint8, 255), (np.uint16, 2**16 - 1), (np.uint64, 2**63 - 1)):
        np.save(tmp_path / "whole.npy", np.array([[0, 1, largest]], dtype))
        assert (found := jali.load(tmp_path / "whole.npy")).element == Integer()
        assert np.array_equal(found, [[0, 1, largest]])
    np.save(tmp_path / "whole.npy", np.array([[2**63]], np.uint64))
    with pytest.raises(LayoutError, match="holds int64; the array reaches"):
        jali.load(tmp_path / "whole.npy")
    np.save(tmp_path / "large.npy", np.full((4, 3), 1e300))
    with pytest.raises(StorageError, match="too large for float32"):
        jali.load(tmp_path / "large.npy", precision="float32")
    write_checkpoint(tmp_path / "c", (2, 2), Box.whole((2, 2)), {"x": np.zeros((2, 2))})
    with pytest.raises(FileFormatError, match="does not say what its fields are"):
        jali.load(tmp_path / "c")


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_arguments_that_contradict_the_file_are_errors_on_every_rank(tmp_path, ending) -> None:
    path = tmp_path / f"f{ending}"
    filled(Lattice(4, 3), Vector(3)).save(path)

    def attempt():
        found = []
        for options in ({"lattice": Lattice(3, 4)}, {"element": Spinor(3)}, {"storage": "float64-12"}):
            try:
                jali.load(path, **options)
            except JaliError as error:
                found.append((type(error), str(error)))
        return found

    for found in (attempt(), *jali.virtual_ranks(2, attempt)):
        assert [kind for kind, _ in found] == [LayoutError] * 3
        assert "holds a lattice (4, 3), not (3, 4)" in found[0][1]
        assert "holds Vector(3), not Spinor(3)" in found[1][1]


@pytest.mark.parametrize("ending", ENDINGS)
def test_values_that_one_rank_cannot_store_stop_all(tmp_path, ending) -> None:
    path = tmp_path / f"f{ending}"
    lattice = Lattice(4, 3)
    field = filled(lattice, Real())
    field[3, 2] = 1e6
    field.save(path)

    def load():
        try:
            jali.load(path, storage="float16")
        except StorageError as error:
            return str(error)
        return "loaded"

    assert len(set(jali.virtual_ranks(2, load))) == 1
    assert "1 site " in load()
    assert "loaded" not in jali.virtual_ranks(2, load)


@jali.site_function
def _grow(X, f):
    f[X] = jali.where(X.coordinate(0) == 3, 1e6, 1.0)


@pytest.mark.parametrize("ending", ENDINGS)
def test_fields_that_lost_values_on_one_rank_are_saved_by_none(tmp_path, ending) -> None:
    def save():
        field = Field(Lattice(4, 3, grid=(2, 1)), Real(), storage="float16")
        _grow(field)
        try:
            field.save(tmp_path / f"f{ending}")
        except StorageError as error:
            return "cannot hold" in str(error)
        return False

    assert jali.virtual_ranks(2, save) == [True, True]
    assert os.listdir(tmp_path) == []


def test_saving_says_what_is_wrong(tmp_path) -> None:
    lattice = Lattice(4, 3)
    field = Field(lattice, Real())
    other = Field(Lattice(4, 3), Real())
    for call, kind, message in (
        (lambda: field.save(tmp_path / "f"), ParameterError, "ends with .jali, .h5, .hdf5, .npy"),
        (lambda: field.save(tmp_path / "f", "tiff"), ParameterError, "'jali', 'hdf5', 'npy', not as 'tiff'"),
        (lambda: field.save(3), ParameterError, "under a path, not under 3"),
        (lambda: field.save(tmp_path / "f.h5", name="a/b"), ParameterError, "should be letters"),
        (lambda: field.save(tmp_path / "f.jali", name="a/b"), ParameterError, "should be letters"),
        (lambda: jali.save(tmp_path / "f.h5"), ParameterError, "nothing is to be saved"),
        (lambda: jali.save(tmp_path / "f.h5", a=3), ParameterError, "a is to be saved as a field and is 3"),
        (lambda: jali.save(tmp_path / "f.h5", a=field, b=other), LayoutError, "on one lattice"),
        (lambda: jali.load(3), ParameterError, "from a path, not from 3"),
        (lambda: jali.load(tmp_path / "f.h5", (4, 3)), ParameterError, r"onto a Lattice, not onto \(4, 3\)"),
        (lambda: jali.load(tmp_path / "missing.npy"), FileNotFoundError, "cannot read .*missing.npy"),
        (lambda: jali.load(tmp_path), FileFormatError, "no complete checkpoint"),
    ):
        with pytest.raises(kind, match=message):
            call()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_damaged_numbers_are_found_and_taken_on_request(tmp_path, ending) -> None:
    path = tmp_path / f"f{ending}"
    field = filled(Lattice(4, 3), Real())
    field.save(path)
    file = next(path.glob("data-*/field.bin")) if path.is_dir() else path
    data = bytearray(file.read_bytes())
    at = data.index(np.float64(field[0, 0]).tobytes())
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(FileFormatError, match="checksum"):
        jali.load(path)
    found = jali.load(path, verify=False)
    assert np.count_nonzero(found[...] != field[...]) == 1


def test_old_versions_of_a_storage_format_are_refused(tmp_path) -> None:
    filled(Lattice(4, 3), Spinor(2), storage="fixed16").save(tmp_path / "f.jali")
    checkpoint = jali.io.open_checkpoint(tmp_path / "f.jali")
    write_checkpoint(
        tmp_path / "g.jali",
        (4, 3),
        Box.whole((4, 3)),
        {"field": checkpoint.read("field")},
        state=checkpoint.state,
        formats={"field": ("fixed16", 7)},
    )
    with pytest.raises(FileFormatError, match="fixed16 version 7, which this jali has version 1"):
        jali.load(tmp_path / "g.jali")


def test_every_element_is_known_by_its_name() -> None:
    for element in ELEMENTS:
        assert element_named(str(element)) == element
    for name in ("", "Real(3)", "SU", "SU(1)", "SU(0)", "Vector(3, imaginary)", "Matrix(2)", "Vector(03)"):
        with pytest.raises(LayoutError):
            element_named(name)


# ---- arrays as fields, gauge fields, ranks -------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("element", [Real(), Spinor(3), Integer(), Matrix(2, 3)], ids=str)
def test_arrays_that_are_fields_are_saved_as_fields(tmp_path, ending, element) -> None:
    lattice = Lattice(4, 3, 5, device="cpu")
    array = random_values(element, lattice.extents)
    lattice.wrap(array, element, boundary="periodic").save(tmp_path / f"f{ending}")
    found = jali.load(tmp_path / f"f{ending}", lattice)
    assert found.element == element
    assert np.array_equal(found[...], array)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("extents", "n"), [((4, 6), 1), ((3, 2, 4), 2), ((2, 4, 2, 3), 3)])
def test_gauge_fields_come_back_from_all_formats_on_any_ranks(tmp_path, ending, extents, n) -> None:
    path = tmp_path / f"U{ending}"

    def start(**options):
        lattice = Lattice(*extents)
        return GaugeField(lattice, SU(n), boundary=["open"] + ["periodic"] * (len(extents) - 1)).hot_start(3)

    def save():
        start().save(path)

    def load():
        U, V = start(), GaugeField.from_file(path)
        same = [np.array_equal(a[...], b[...]) for a, b in zip(U.fields, V.fields, strict=True)]
        return all(same) and V[0].boundary.conditions == U[0].boundary.conditions and V.group == U.group

    jali.virtual_ranks(2, save)
    assert load()
    assert jali.virtual_ranks(3, load) == [True] * 3
    with pytest.raises(LayoutError):
        GaugeField.from_file(path, lattice=Lattice(*extents[:-1], extents[-1] + 1))
    with pytest.raises(LayoutError):
        GaugeField.from_file(path, group=SU(n + 1))
    links = np.stack([field[...] for field in start().fields])
    if ending == ".npy":
        assert np.array_equal(np.load(path), links)
        np.save(tmp_path / "plain.npy", links)  # without what jali tells
        assert np.array_equal(GaugeField.from_file(tmp_path / "plain.npy")[1][...], links[1])
    if ending == ".h5":
        with h5py.File(path) as file:
            assert np.array_equal(file["U"], links)
    if ending != ".jali":
        with pytest.raises(FileFormatError, match=r"GaugeField.from_file reads them"):
            jali.load(path)
    single = tmp_path / f"single{ending}"
    start().save(single, precision=32)
    assert GaugeField.from_file(single)[0][...].tobytes() == links[0].astype("c8").astype("c16").tobytes()
    with pytest.raises(ParameterError, match="no place"):
        start().save(path, metadata={"a": 1})


@pytest.mark.parametrize("ending", [*ENDINGS, ".ildg"])
def test_links_that_were_never_started_are_not_saved(tmp_path, ending) -> None:
    def save():
        with pytest.raises(UnsetError, match="was never set: start the gauge field"):
            GaugeField(Lattice(2, 2, 2, 2), SU(2)).save(tmp_path / f"U{ending}")

    save()
    jali.virtual_ranks(2, save)
    assert os.listdir(tmp_path) == []


def test_links_of_two_rows_stay_so_in_jalis_own_format(tmp_path) -> None:
    U = GaugeField(Lattice(2, 2, 2, 2), SU(3), storage="float64-12").hot_start(1)
    U.save(tmp_path / "U.jali")
    found = jali.load(tmp_path / "U.jali", name="U2")
    assert found.format == U[2].format
    assert np.array_equal(found.stored_bytes(), U[2].stored_bytes())


PROGRAM = """
import sys
import numpy as np
import jali
folder, write = sys.argv[1:]
lattice = jali.Lattice(5, 4, 3)
psi = lattice.field(jali.Spinor(3), boundary="antiperiodic")
psi[...] = np.random.default_rng(1).normal(size=(5, 4, 3, 4, 3)) * (1 + 2j)
for ending in ("jali", "npy", "h5"):
    if write == "write":
        psi.save(f"{folder}/psi.{ending}")
    found = jali.load(f"{folder}/psi.{ending}", lattice)
    assert np.array_equal(found[...], psi[...]), ending
"""


@pytest.mark.mpi
def test_two_mpi_ranks_write_the_files_of_one(tmp_path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    python = [os.sys.executable, tmp_path / "program.py"]
    run_program([*python, tmp_path / "one", "write"])
    run_program(on_ranks(2, *python, tmp_path / "two", "write"))
    run_program(on_ranks(2, *python, tmp_path / "one", "read"))
    for ending in ("npy", "h5"):
        assert (tmp_path / "one" / f"psi.{ending}").read_bytes() == (
            tmp_path / "two" / f"psi.{ending}"
        ).read_bytes()
