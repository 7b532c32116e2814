"""Programs that know nothing of jali get what MPI alone gives them: on the host, on devices, and in any mixture."""

import re
import shutil
import tarfile
from pathlib import Path

import pytest
from mpi_programs import HERE, REAL, MpiPrograms, clean_environment, surroundings
from programs import run_program

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(1800)]

PLANS = """version = 1
[[rule]]
memory = "host"
mpi_program = true
collective = ["all_reduce", "reduce_scatter", "broadcast", "reduce", "all_gather"]
algorithms = ["two_step", "direct"]
[[rule]]
memory = "host"
mpi_program = true
algorithms = ["direct"]
"""


def served(errors: str) -> set[str]:
    """Who did calls, by the counters; begun ones are MPI's."""
    assert not re.search(r"^jali: MPI_(I\w+|\w+_init) .* by (?!mpi)", errors, re.MULTILINE)
    return set(re.findall(r"^jali: MPI_\w+ .* by (.*)$", errors, re.MULTILINE))


@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("seeds", "cases"),
    [pytest.param((1,), 150, id="few"), pytest.param((1, 2), 400, marks=pytest.mark.full, id="many")],
)
@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_collectives_of_any_memory_are_those_of_mpi(
    mpi: MpiPrograms, kind: str, seeds: tuple[int, ...], cases: int
) -> None:
    if kind == "hip" and mpi.name != "mpich":
        pytest.skip("vendors differ in names alone: one library is enough")
    if kind == "hip" and REAL:
        pytest.skip("the devices of this machine are CUDA's")
    program = mpi.build("collectives")
    for seed in seeds:
        out, errors = mpi.run(program, seed, cases, kind=kind, JALI_MPI_COUNTERS="1")
        assert f"same {cases}" in out
        by = served(errors)
        assert {"mpi", "mpi, staged"} < by
        assert any(who.endswith(f" on {kind}") for who in by)


def test_collectives_on_staged_memory_alone(mpi: MpiPrograms) -> None:
    out, errors = mpi.run(mpi.build("collectives"), 3, 150, JALI_MPI_SERVE="0", JALI_MPI_COUNTERS="1")
    assert "same 150" in out
    assert served(errors) == {"mpi", "mpi, staged"}


@pytest.mark.short(1)
@pytest.mark.parametrize("kind", [None, "cuda"])
def test_collectives_by_rules_of_the_user(mpi: MpiPrograms, tmp_path: Path, kind: str | None) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(PLANS)
    out, errors = mpi.run(
        mpi.build("collectives"), 4, 400, kind=kind, JALI_COLLECTIVE_RULES=str(rules), JALI_MPI_COUNTERS="1"
    )
    assert "same 400" in out
    assert {"two_step", "direct", "mpi"} <= served(errors)


@pytest.mark.full
def test_the_library_alone_agrees_with_the_test(mpi: MpiPrograms) -> None:
    assert "same 100" in mpi.run(mpi.build("collectives"), 5, 100, kind=None, between=False)[0]
    assert "same 3" in mpi.run(mpi.build("messages"), 5, 3, kind=None, between=False)[0]


@pytest.mark.short(1)
@pytest.mark.parametrize("seeds", [(1,), pytest.param((1, 2), marks=pytest.mark.full)], ids=["one", "two"])
def test_messages_of_any_memory(mpi: MpiPrograms, seeds: tuple[int, ...]) -> None:
    program = mpi.build("messages")
    for seed in seeds:
        out, errors = mpi.run(program, seed, 25, JALI_MPI_COUNTERS="1")
        assert "same 25" in out
        assert served(errors) == {"mpi", "mpi, staged"}


@pytest.mark.parametrize("interface", ["MPIF_H", pytest.param("USE_MPI", marks=pytest.mark.full), "USE_F08"])
@pytest.mark.parametrize("library", ["mpich", "openmpi"])
def test_fortran_programs(library: str, interface: str, tmp_path: Path) -> None:
    """With Debian's MPI libraries: MPICH's Fortran calls its C, Open MPI's does not."""
    compiler, wrapper = shutil.which(f"mpifort.{library}"), shutil.which(f"mpicxx.{library}")
    launcher = shutil.which(f"mpiexec.{library}")
    if compiler is None or wrapper is None or launcher is None:
        pytest.skip(f"no Fortran compiler of {library} is here (mpifort.{library})")
    if shutil.which("gfortran") is None:
        pytest.skip("no gfortran is here, which the wrappers call")
    for command in (
        [wrapper, "-std=c++20", "-c", HERE / "fortran_memory.cpp", "-o", "memory.o"],
        [
            compiler,
            "-fallow-argument-mismatch",
            "-w",
            f"-D{interface}",
            HERE / "fortran.F90",
            "memory.o",
            "-lstdc++",
            "-ldl",
        ],
    ):
        run_program(command, cwd=tmp_path)
    for kind in (None, "cuda"):
        words = surroundings(kind, tmp_path, {"JALI_MPI_COUNTERS": "1"})
        environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = run_program(
            [launcher, "-n", 2, *(["--oversubscribe"] if library == "openmpi" else []), "env"]
            + [f"{name}={text}" for name, text in words.items()]
            + [tmp_path / "a.out"],
            env=clean_environment() | environment,
        )
        assert done.stdout == "right\n"
        # nothing is counted twice: 2 ranks, 2 calls in each of 4 places
        calls = re.findall(r"MPI_Allreduce +(\d+) calls", done.stderr)
        assert sum(map(int, calls)) == 16


# Of mpi4py's own tests, those of what jali stands in front of.
OF_MPI4PY = (
    "test_cco_buf",
    "test_cco_nb_buf",
    "test_cco_vec",
    "test_cco_v_buf",
    "test_cco_ngh_buf",
    "test_cco_obj",
    "test_p2p_buf",
    "test_p2p_buf_matched",
    "test_p2p_obj",
    "test_request",
    "test_cco_pr_buf",
    "test_status",
    "test_comm",
    "test_comm_inter",
    "test_pack",
    "test_op",
    "test_msgspec",
)


@pytest.mark.full
def test_mpi4pys_own_tests_pass_as_they_do_without(mpi: MpiPrograms, tmp_path: Path) -> None:
    if mpi.name == "abi":
        pytest.skip("mpi4py's wheels use the libraries' own ABIs")
    version = run_program([mpi.python, "-c", "import mpi4py; print(mpi4py.__version__)"]).stdout.strip()
    fetch = [mpi.python, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
    done = run_program([*fetch, "-d", tmp_path, f"mpi4py=={version}"], status=None)
    archives = list(tmp_path.glob("mpi4py-*.tar.gz"))
    if not archives:
        pytest.skip(f"mpi4py's sources cannot be downloaded: {done.stderr[-300:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.glob("mpi4py-*/test")
    wanted = [word for name in OF_MPI4PY for word in ("-i", name)]
    found = []
    for between in (False, True):
        rules = tmp_path / "rules.toml"
        rules.write_text(PLANS)
        settings = {"JALI_COLLECTIVE_RULES": str(rules)} if between else {}
        _, errors = mpi.run(
            mpi.python,
            folder / "main.py",
            "--no-builddir",
            "--no-threads",
            *wanted,
            ranks=2,
            kind=None,
            status=None,
            between=between,
            **settings,
        )
        found.append(
            sorted(re.findall(r"^(?:Ran \d+ tests|OK.*|FAILED.*)", errors.replace(" in", "\n"), re.MULTILINE))
        )
    assert found[0] == found[1]
    assert any(line.startswith("Ran ") for line in found[0])


ON_DEVICES = """
import ctypes, os, sys
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
driver = ctypes.CDLL(os.environ["TEST_DRIVER"])
def call(name, *arguments):
    assert getattr(driver, name)(*arguments) == 0, name
context, devices = ctypes.c_void_p(), ctypes.c_int()
call("cuInit", 0)
call("cuDeviceGetCount", ctypes.byref(devices))
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), world.rank % devices.value)
call("cuCtxSetCurrent", context)

class Array:
    "Of a device, as CuPy and PyTorch have them."
    def __init__(self, values):
        self.values = values
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(values.nbytes))
        self.address = address.value
        call("cuMemcpyHtoDAsync_v2", address, values.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(values.nbytes), None)
        call("cuStreamSynchronize", None)
        self.__cuda_array_interface__ = {"shape": values.shape, "typestr": values.dtype.str, "data": (self.address, False), "version": 3}
    def get(self):
        out = np.empty_like(self.values)
        call("cuMemcpyDtoHAsync_v2", out.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(self.address), ctypes.c_size_t(out.nbytes), None)
        call("cuStreamSynchronize", None)
        return out

for n in (3, 5000):
    x, y = Array(np.arange(n, dtype=np.float32) + world.rank), Array(np.zeros(n, np.float32))
    world.Allreduce(x, y)
    assert (y.get() == world.size * np.arange(n) + world.size * (world.size - 1) / 2).all()
    world.Bcast(x, root=1)
    assert (x.get() == np.arange(n, dtype=np.float32) + 1).all()
    request = world.Irecv(y, source=(world.rank - 1) % world.size)
    world.Send(x, dest=(world.rank + 1) % world.size)
    request.Wait()
    assert (y.get() == x.get()).all()
    z = np.zeros(n, np.float32)
    world.Allreduce(x, z, op=MPI.MAX)
    assert (z == x.get()).all()
if world.rank == 0:
    print("right")
"""


WINDOW = """
world.Set_errhandler(MPI.ERRORS_RETURN)
x = Array(np.zeros(100))
MPI.Win.Create(MPI.memory.frombuffer(x), comm=world)
"""


def test_windows_on_devices_are_an_error(mpi: MpiPrograms) -> None:
    if mpi.name == "abi":
        pytest.skip("mpi4py's wheels use the libraries' own ABIs")
    program = ON_DEVICES[: ON_DEVICES.index("for n in")] + WINDOW
    _, errors = mpi.run(mpi.python, "-c", program, status=None, timeout=120)
    assert (
        "MPI_Win_create on rank 0: an address in memory of cuda devices, which this MPI library does not take"
        in errors
    )
    assert "jali stages messages and collectives, but not one-sided communication" in errors


@pytest.mark.short(1)
def test_arrays_of_devices_in_mpi4py(mpi: MpiPrograms) -> None:
    if mpi.name == "abi":
        pytest.skip("mpi4py's wheels use the libraries' own ABIs")
    out, errors = mpi.run(mpi.python, "-c", ON_DEVICES, JALI_MPI_COUNTERS="1")
    assert out.splitlines()[-1] == "right"
    assert "mpi, staged" in served(errors)
