"""libjali without Python: installed, found by programs of their own (examples/cpp), and run where there is no Python."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import run_program

import jali
from jali import settings
from jali._core import Gpu, find_gpu_compiler

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
from fake_driver import REAL, make_fake_ccl, make_fake_driver

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = Path(sys.prefix)
CMAKE = shutil.which("cmake")
pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(CMAKE is None, reason="there is no cmake"),
    pytest.mark.xdist_group("cpp"),  # which builds once
]
BY_MPI = pytest.mark.skipif(
    not (ENVIRONMENT / "include" / "mpi.h").is_file(), reason="the environment's MPI has no mpi.h"
)


def build_of_this_environment() -> Path:
    """The folder in which the core of this Python was built, and with it libjali."""
    if REAL:
        return ROOT / "build" / "gpu"
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return next(path.parent for path in (ROOT / "build").glob(f"{tag}-{tag}-*/libjali.a"))


def built(installed: Path, folder: Path) -> Path:
    """The programs of examples/cpp, with the library that is installed there."""
    wrapper = ENVIRONMENT / "bin" / "mpicxx"
    options = [f"-DMPI_CXX_COMPILER={wrapper}"] if wrapper.is_file() else []
    run_program(
        [CMAKE, "-S", ROOT / "examples" / "cpp", "-B", folder, f"-DCMAKE_PREFIX_PATH={installed}", *options]
    )
    run_program([CMAKE, "--build", folder])
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("installed")
    run_program([CMAKE, "--install", build_of_this_environment(), "--component", "cpp", "--prefix", where])
    return where


@pytest.fixture(scope="module")
def programs(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(installed, tmp_path_factory.mktemp("programs"))


@pytest.fixture
def no_python(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment whose only commands are those of the host's compiler, which the fake driver runs."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("c++", "as", "ld", "sh", "rm"):
        if (found := shutil.which(name)) is not None:
            (commands / name).symlink_to(found)
    assert shutil.which("python3", path=str(commands)) is None
    return {"PATH": str(commands), "HOME": str(tmp_path), "JALI_CACHE_DIR": str(tmp_path / "cache")}


def test_programs_have_no_python_in_them(programs):
    for program in ("three_roots", "device_collectives", "device_messages"):
        assert "python" not in run_program(["ldd", programs / program]).stdout


OF_THREE_ROOTS = re.compile(
    r"single, hierarchy [0-9 x]+, libraries thread.*, depth [0-9]+: [0-9.]+ us\n6 ranks, 0 wrong elements\n"
)


def test_a_composition_is_planned_for_a_machine_checked_and_run(programs, no_python):
    assert OF_THREE_ROOTS.fullmatch(run_program([programs / "three_roots"], env=no_python).stdout)


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_devices_do_collectives_and_compositions(programs, no_python, kind, devices):
    if REAL and kind == "cuda":
        devices = Gpu.count("cuda")
        with settings.using(nvrtc=None):
            named = {"JALI_NVRTC": find_gpu_compiler("cuda").path}
        named |= {name: os.environ[name] for name in ("PATH", "CUDA_VISIBLE_DEVICES") if name in os.environ}
    else:
        driver = str(make_fake_driver())
        names = {"cuda": ("CUDA_DRIVER", "NVRTC"), "hip": ("HIP_DRIVER", "HIPRTC")}[kind]
        named = {**{f"JALI_{name}": driver for name in names}, "JALI_FAKE_GPUS": str(devices)}
    said = run_program([programs / "device_collectives", kind], env={**no_python, **named}).stdout
    assert f"{devices} device{'s' * (devices > 1)}, all is right" in said
    assert "a sum: one_shot" in said
    assert (Path(no_python["HOME"]) / "cache").is_dir()  # of kernels, as in Python


@pytest.mark.skipif(REAL, reason="the tests of devices send between real ones")
@pytest.mark.parametrize("devices", [1, 3])
def test_devices_send_in_a_ring_and_first_starts_are_proved(programs, no_python, devices):
    driver = str(make_fake_driver())
    named = {"JALI_CUDA_DRIVER": driver, "JALI_NVRTC": driver, "JALI_FAKE_GPUS": str(devices)}
    transport = "remote-write" if devices > 1 else "local"
    for checked in range(2):
        env = {**no_python, **named, "JALI_CHECKED": str(checked)}
        said = run_program([programs / "device_messages"], env=env).stdout
        assert said.startswith(f"by '{transport}'\nstream 0: ")
        assert f"all is right; first starts that were proved: {devices * checked}\n" in said


def test_without_a_compiler_it_is_said_what_remains(programs, no_python):
    driver = str(make_fake_driver())
    missing = {"JALI_CUDA_DRIVER": driver, "JALI_FAKE_GPUS": "2"}
    missing |= {"JALI_NVRTC": "/nowhere/libnvrtc.so", "JALI_NCCL": "/nowhere/libnccl.so"}
    ended = run_program([programs / "device_collectives"], env={**no_python, **missing}, status=1)
    assert "NVRTC" in ended.stderr
    assert (
        "without kernels collectives go by 'nccl' or 'nccl-windows' or 'nccl-streams' or 'host-staged'"
        in ended.stderr
    )
    assert "a sum: host-staged" in ended.stdout


def test_without_a_driver_one_line_says_so(programs, no_python):
    missing = {**no_python, "JALI_CUDA_DRIVER": "/nowhere/libcuda.so.1"}
    ended = run_program([programs / "device_collectives"], env=missing, status=1)
    assert "/nowhere/libcuda.so.1" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_wrong_settings_are_refused(programs, no_python):
    ended = run_program([programs / "three_roots"], env={**no_python, "JALI_WATCHDOG": "soon"}, status=None)
    assert ended.returncode != 0
    assert "JALI_WATCHDOG=soon" in ended.stderr


def mpiexec(ranks: int, *words: object) -> list[object]:
    return [ENVIRONMENT / "bin" / "mpiexec", "-n", ranks, *words]


@BY_MPI
@pytest.mark.mpi
def test_processes_of_mpi_do_collectives(programs):
    said = run_program(mpiexec(2, programs / "mpi_collectives")).stdout
    assert re.search("a sum goes by 'two_step': line [0-9]+ of jali's own rules\n", said)
    assert "2 ranks, all is right\n" in said


@BY_MPI
@pytest.mark.mpi
def test_an_error_ends_all_ranks_and_each_says_it(programs):
    environment = {**os.environ, "JALI_COLLECTIVE": "all_reduce=ring by thread"}
    ended = run_program(mpiexec(2, programs / "mpi_collectives"), env=environment, status=None, timeout=60)
    assert ended.returncode != 0
    for rank in range(2):
        assert re.search(f"jali: rank {rank} failed: .*'thread' carries no messages", ended.stderr)


@BY_MPI
@pytest.mark.mpi
def test_rules_that_cannot_be_read_end_all_ranks(programs, tmp_path):
    (tmp_path / "rules.toml").write_text("version = 1\n[[rule]]\nranks = 'many'\n")
    rules = {**os.environ, "JALI_COLLECTIVE_RULES": str(tmp_path / "rules.toml")}
    ended = run_program(mpiexec(2, programs / "mpi_collectives"), env=rules, status=None, timeout=60)
    assert ended.returncode != 0
    assert re.search("JALI_COLLECTIVE_RULES=.*rules.toml, line 3: ", ended.stderr)


def compiled(source: Path, installed: Path, folder: Path) -> Path:
    """A program, by the flags of pkg-config."""
    where = {**os.environ, "PKG_CONFIG_PATH": str(next(installed.rglob("jali.pc")).parent)}
    flags = run_program(["pkg-config", "--cflags", "--libs", "jali"], env=where).stdout.split()
    run_program(["c++", source, "-o", folder / source.stem, *flags])
    return folder / source.stem


BY_PKG_CONFIG = pytest.mark.skipif(shutil.which("pkg-config") is None, reason="there is no pkg-config")


@BY_PKG_CONFIG
def test_pkg_config_knows_the_library(installed, tmp_path, no_python):
    source = tmp_path / "version.cpp"
    source.write_text(
        "#include <jali/settings/version.hpp>\n#include <cstdio>\nint main() { std::puts(jali::version().data()); }\n"
    )
    program = compiled(source, installed, tmp_path)
    assert run_program([program], env=no_python).stdout == f"{jali.__version__}\n"


@BY_PKG_CONFIG
def test_calls_that_cannot_be_are_refused(installed, tmp_path, no_python):
    program = compiled(Path(__file__).with_name("wrong_calls.cpp"), installed, tmp_path)
    for environment in ({}, {"JALI_CHECKED": "1"}):
        assert run_program([program], env={**no_python, **environment}).stdout == "right\n"


@BY_PKG_CONFIG
def test_in_checked_mode_ranks_compare_their_calls(installed, tmp_path, no_python):
    program = compiled(Path(__file__).with_name("compared_calls.cpp"), installed, tmp_path)
    message = (
        "ranks do not make the same call; count: 6 on ranks 0, 2, 5 on rank 1 "
        "(at compared_calls.cpp:24 on ranks 0, 1, compared_calls.cpp:22 on rank 2)"
    )
    said = run_program([program], env={**no_python, "JALI_CHECKED": "1"}).stdout.splitlines()
    assert sorted(said) == sorted(
        line for rank in range(3) for line in (f"rank {rank}: {message}", f"rank {rank} goes on with 3")
    )


@pytest.mark.short(1)
@BY_PKG_CONFIG
@pytest.mark.skipif(REAL, reason="the mistakes are the same on real devices")
@pytest.mark.parametrize("checked", ["0", "1"])
def test_calls_on_devices_that_cannot_be_are_refused(installed, tmp_path, no_python, checked):
    program = compiled(Path(__file__).with_name("wrong_device_calls.cpp"), installed, tmp_path)
    driver = str(make_fake_driver())
    named = {"JALI_CUDA_DRIVER": driver, "JALI_NVRTC": driver, "JALI_FAKE_GPUS": "2", "JALI_CHECKED": checked}
    named |= {"JALI_NCCL": str(make_fake_ccl()), "JALI_FAKE_CCL_FOLDER": str(tmp_path)}
    assert run_program([program], env={**no_python, **named}, timeout=120).stdout == "right\n"


@BY_PKG_CONFIG
@pytest.mark.skipif(REAL, reason="real devices reach each other")
def test_what_a_rank_has_sent_by_way_of_the_host_arrives_though_its_end_has_gone(
    installed, tmp_path, no_python
):
    program = compiled(Path(__file__).with_name("ended_messages.cpp"), installed, tmp_path)
    driver = str(make_fake_driver())
    named = {"JALI_CUDA_DRIVER": driver, "JALI_NVRTC": driver, "JALI_NCCL": "/nowhere/libnccl.so"}
    named |= {"JALI_FAKE_GPUS": "2", "JALI_FAKE_NO_PEERS": "1"}
    assert run_program([program], env={**no_python, **named}, timeout=120).stdout == "by 'host-staged'\n"


@BY_MPI
@pytest.mark.full
@pytest.mark.mpi
def test_a_shared_library_has_its_version_in_its_name_and_no_other_beside_it(tmp_path):
    library, where = tmp_path / "library", tmp_path / "installed"
    run_program([CMAKE, "-S", ROOT, "-B", library, "-DJALI_PYTHON=OFF", "-DCMAKE_BUILD_TYPE=Debug"])
    run_program([CMAKE, "--build", library, "--parallel", os.cpu_count()], timeout=3000)
    run_program([CMAKE, "--install", library, "--prefix", where])
    programs = built(where, tmp_path / "programs")
    of_interface = ".".join(jali.__version__.split(".")[:2])
    linked = run_program(["ldd", programs / "mpi_collectives"]).stdout
    assert f"libjali.so.{of_interface} => {where}" in linked
    assert OF_THREE_ROOTS.fullmatch(run_program([programs / "three_roots"]).stdout)

    # A rank whose library says that it is another one.
    other = tmp_path / "other.cpp"
    other.write_text(
        '#include <jali/settings/version.hpp>\nstd::string_view jali::version() { return "9.8.7"; }\n'
    )
    run_program(
        ["c++", "-std=c++20", "-shared", "-fPIC", f"-I{where}/include", other, "-o", tmp_path / "other.so"]
    )
    program = programs / "mpi_collectives"
    ended = run_program(
        mpiexec(1, program, ":", "-n", 1, "env", f"LD_PRELOAD={tmp_path / 'other.so'}", program),
        status=None,
        timeout=60,
    )
    assert ended.returncode != 0
    wanted = (
        f"rank 0 has jali {jali.__version__}, rank 1 has jali 9.8.7; all ranks of a job need the same version"
    )
    for rank in range(2):
        assert f"jali: rank {rank} failed: {wanted}" in ended.stderr
