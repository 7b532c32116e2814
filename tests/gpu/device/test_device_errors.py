"""Devices that are not there, too old, full or damaged: the message says what is wrong and what would help.

A process looks for its driver once, so every case has a process of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from programs import run_python

import jali
from jali.devices import device_names
from jali.gauge import SU, GaugeField, plaquette

SETUP = """
import jali
from jali import Field, Lattice, Real, SU

def fails(action):
    try:
        action()
    except Exception as error:
        print(type(error).__name__, error, sep=": ")
    else:
        raise SystemExit("nothing was raised")
"""


def run(code: str, environment: dict[str, str], **more: str) -> str:
    """What a program prints that sees these drivers."""
    whole = {k: v for k, v in {**environment, **more}.items() if k != "JALI_DEVICE"}
    return run_python(SETUP + code, env=whole).stdout


@pytest.mark.parametrize(
    ("kind", "variable", "vendor"),
    [("cuda", "JALI_CUDA_DRIVER", "NVIDIA's driver"), ("hip", "JALI_HIP_DRIVER", "AMD's HIP runtime")],
)
def test_missing_driver(fake_environment, kind, variable, vendor):
    code = f"for _ in range(2): fails(lambda: Lattice(4, device={kind!r}))"
    said = run(code, fake_environment, **{variable: "/nowhere/libgpu.so"}).splitlines()
    assert said[0] == said[1]  # remembered
    assert said[0].startswith(f"DeviceError: {vendor} was not found (/nowhere/libgpu.so")


def test_library_that_is_no_driver_lacks_functions(fake_environment):
    said = run("fails(lambda: Lattice(4, device='hip'))", fake_environment, JALI_HIP_DRIVER="libm.so.6")
    assert said.startswith("DeviceError: AMD's HIP runtime libm.so.6 lacks hipInit, ")
    assert "install a newer one" in said


def test_driver_that_is_too_old(fake_environment):
    said = run("fails(lambda: Lattice(4, device='cuda'))", fake_environment, JALI_FAKE_DRIVER_VERSION="11000")
    assert said.startswith("DeviceError: NVIDIA's driver ")
    assert "supports CUDA 11.0, jali needs 12.0 or newer: install a newer driver" in said


def test_driver_that_does_not_start_says_why(fake_environment):
    said = run("fails(lambda: Lattice(4, device='cuda'))", fake_environment, JALI_FAKE_INIT_ERROR="100")
    assert "DeviceError: NVIDIA's driver cannot be used: NO_DEVICE, as the fake driver says" in said


def test_no_device(fake_environment):
    said = run("fails(lambda: Lattice(4, device='cuda'))", fake_environment, JALI_FAKE_GPUS="0")
    assert said.startswith("DeviceError: this process sees no cuda device")
    assert "CUDA_VISIBLE_DEVICES" in said


def test_device_of_a_number_that_does_not_exist(fake_environment):
    said = run("fails(lambda: Lattice(4, device='cuda:7'))", fake_environment, JALI_FAKE_GPUS="2")
    assert said == "DeviceError: there is no cuda device 7; this process sees 2\n"


@pytest.mark.short(2)
@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:one", "cpu:0", "CUDA", "cuda:-1", ""])
def test_unknown_device_names_are_refused_with_the_known_ones(fake_environment, name):
    code = f"fails(lambda: jali.use_device({name!r}))"
    said = run(code, fake_environment)
    assert said.startswith(f"DeviceError: device {name!r} is unknown; use {device_names()}\n")


def test_host_needs_no_driver(fake_environment):
    code = "print(Lattice(4, device='cpu').gpu, Field(Lattice(2), Real())[0])"
    missing = dict.fromkeys(("JALI_CUDA_DRIVER", "JALI_HIP_DRIVER", "JALI_NVRTC", "JALI_HIPRTC"), "/nowhere")
    assert run(code, fake_environment, **missing) == "None 0.0\n"


def test_the_error_of_full_memory_names_the_request_and_the_holders(fake_environment):
    code = """
lattice = Lattice(16, 16, device="cuda")
kept = [Field(lattice, SU(3), name=f"links {k}") for k in range(2)]
fails(lambda: [kept.append(Field(lattice, SU(3), name="one too many")) for _ in range(100)])
held = lattice.gpu.memory_held
kept = None
import gc; gc.collect()
again = Field(lattice, SU(3), name="fits again")
again[...] = 1.0 * __import__("numpy").eye(3)
print(again[3, 4][0, 0].real, lattice.gpu.memory_held < held)
"""
    said = run(code, fake_environment, JALI_FAKE_GPU_BYTES=str(1 << 20))
    first, last = said.splitlines()
    assert (
        "out of device memory: 'one too many' asked for 36.0 KiB" in first or "out of device memory" in first
    )
    assert "'one too many' asked for" in first
    assert "of 1.0 MiB are left on device 0 (fake GPU 0)" in first.replace("1.00 MiB", "1.0 MiB").replace(
        "1 MiB", "1.0 MiB"
    )
    assert "jali holds" in first
    assert "links 0" in first
    assert last == "1.0 True"


def test_memory_kept_for_reuse_is_given_back_before_giving_up(fake_environment):
    """Blocks of one size in the pool do not stand in the way of a larger one."""
    code = """
import gc
lattice = Lattice(64, 64, device="cuda")
small = [Field(lattice, Real()) for _ in range(20)]
del small; gc.collect()
assert lattice.gpu.memory_cached >= 20 * 32768
large = Field(lattice, SU(3))
print(lattice.gpu.memory_cached < 20 * 32768, large.storage.nbytes)
"""
    said = run(code, fake_environment, JALI_FAKE_GPU_BYTES=str(1 << 20), JALI_FAKE_COMPILER="idle")
    assert said.split()[0] == "True"


@pytest.mark.parametrize(
    ("kind", "variable", "words"),
    [
        ("cuda", "JALI_NVRTC", ["NVRTC", "pip install 'jali[cuda]'"]),
        ("hip", "JALI_HIPRTC", ["hipRTC", "ROCm"]),
    ],
)
def test_missing_compiler_names_what_to_install(fake_environment, kind, variable, words, tmp_path):
    code = f"f = Field(Lattice(4, device={kind!r}), Real()); fails(lambda: f[0])"  # a device opens without
    said = run(code, fake_environment, JALI_CACHE_DIR=str(tmp_path / "c"), **{variable: "/nowhere/librtc.so"})
    assert said.startswith("CompileError: ")
    assert all(word in said for word in [*words, variable, "/nowhere/librtc.so"])


def test_library_that_is_no_compiler_lacks_functions(fake_environment):
    code = "f = Field(Lattice(4, device='cuda'), Real()); fails(lambda: f[0])"
    said = run(code, fake_environment, JALI_NVRTC="libm.so.6")
    assert "CompileError: kernels for cuda devices need NVRTC" in said
    assert "libm.so.6 lacks nvrtcVersion" in said


CONSTANT = """
@jali.site_function
def constant(X, f):
    f[X] = 3.0

f = Field(Lattice(4, device="cuda"), Real())
"""


def test_rejected_kernel_shows_its_line_and_leaves_no_image(fake_environment, tmp_path):
    """A source in the cache that somebody edited badly."""
    folder = tmp_path / "cache"
    run(CONSTANT + "constant(f)", fake_environment, JALI_CACHE_DIR=str(folder))
    (source,) = folder.glob("constant-*.cu")
    text = source.read_text()
    source.write_text(text.replace("3.0", "three"))
    os.utime(source, (2**31, 2**31))
    said = run(CONSTANT + "fails(lambda: constant(f))", fake_environment, JALI_CACHE_DIR=str(folder))
    assert said.startswith("CompileError: the GPU compiler rejected kernel 'constant'")
    assert "three" in said.split("error:")[1]
    line = next(line.strip() for line in source.read_text().splitlines() if "three" in line)
    assert f": {line}\n" in said
    assert not [
        p.name for p in folder.iterdir() if p.suffix not in (".cu", ".cpp", ".hpp", ".so", ".bin", ".lock")
    ]


def test_edited_kernel_is_compiled_and_used(fake_environment, tmp_path):
    folder = tmp_path / "cache"
    code = CONSTANT + "constant(f); print(f[0])"
    assert run(code, fake_environment, JALI_CACHE_DIR=str(folder)) == "3.0\n"
    (source,) = folder.glob("constant-*.cu")
    source.write_text(source.read_text().replace("3.0", "4.5"))
    os.utime(source, (2**31, 2**31))
    assert run(code, fake_environment, JALI_CACHE_DIR=str(folder)) == "4.5\n"


@pytest.mark.parametrize(
    "damage", ["flipped", *(pytest.param(d, marks=pytest.mark.full) for d in ("empty", "cut", "other"))]
)
def test_damaged_image_is_made_again(fake_environment, tmp_path, damage):
    folder = tmp_path / "cache"
    code = CONSTANT + "constant(f); print(f[0])"
    run(code, fake_environment, JALI_CACHE_DIR=str(folder))
    images = sorted(folder.glob("*.bin"))
    assert len(images) == 2  # of the kernel and of the builtin kernels
    good = [image.read_bytes() for image in images]
    for image, whole in zip(images, good, strict=True):
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        image.write_bytes(
            {"empty": b"", "cut": whole[:middle], "flipped": flipped, "other": b"not an image"}[damage]
        )
    assert run(code, fake_environment, JALI_CACHE_DIR=str(folder)) == "3.0\n"
    assert all(image.stat().st_size > 1000 for image in images)


def test_second_process_compiles_nothing(fake_environment, tmp_path):
    folder = tmp_path / "cache"
    code = CONSTANT + "constant(f); print(f[0])"
    assert run(code, fake_environment, JALI_CACHE_DIR=str(folder)) == "3.0\n"
    # without a C++ compiler the fake one makes nothing
    assert run(code, fake_environment, JALI_CACHE_DIR=str(folder), CXX="/nowhere/c++") == "3.0\n"
    assert not list(Path(folder).glob("*.lock"))


@pytest.mark.parametrize(
    ("name", "value"), [("launch", "many"), ("launch", "2048,1"), ("device_tile", "4,x")]
)
def test_experiments_say_what_they_take(name, value, use_settings):
    @jali.site_function
    def fill(X, f):
        f[X] = 1.0

    with pytest.raises(jali.ParameterError, match=f"{name}={value} should be"):
        use_settings(**{name: value})
        fill(jali.Lattice(4, 4, device="cuda").field(jali.Real()))


def test_kernels_launched_early_or_not_have_the_same_bits():
    sums = []
    for early in (True, False):
        with jali.tune.experiment(early_launch=early):
            links = GaugeField(jali.Lattice(4, 4, device="cuda"), SU(2)).hot_start(seed=1)
            sums.append(plaquette(links).hex())
    assert sums[0] == sums[1]
