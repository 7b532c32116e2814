"""The kernels of gauge theory, fermions and solvers compile for real architectures, on machines without any device.

Their texts come from `collect_kernels.py`. NVRTC needs no GPU and no driver; AMD's compilers are used where they are
installed (Debian: apt install hipcc), and what they make has never run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cubin import resources_of
from programs import run_program

from jali import settings
from jali._core import GpuCompiler, find_gpu_compiler, with_gpu_prelude
from jali.errors import CompileError

COLLECT = Path(__file__).parents[1] / "collect_kernels.py"
# Each takes the assembler 8 to 15 seconds in SU(3) and float64.
SLOW = ("metropolis_kernel", "_sums", "pullback_of__sum_of_loops")
# What the short test for AMD compiles in SU(3) and float64; that for NVIDIA the first four, the others in SU(2) and float32.
CHOSEN = ("builtin", "WilsonDirac_apply", "overrelax", "plaquette_sums", "_set_haar")


@pytest.fixture(scope="module")
def texts(tmp_path_factory, fake_driver):
    """(n, precision[, part]) -> {file stem: text as the compiler gets it}, largest first."""
    known = {}

    def collect(n: int, precision: str, *part: str) -> dict[str, str]:
        if (n, precision, *part) not in known:
            folder = tmp_path_factory.mktemp("kernels")
            folder.chmod(0o700)
            environment = {
                **os.environ,
                "JALI_CACHE_DIR": str(folder),
                "JALI_CUDA_DRIVER": str(fake_driver),
                "JALI_NVRTC": str(fake_driver),
                "JALI_FAKE_COMPILER": "idle",
            }
            done = run_program([sys.executable, COLLECT, n, precision, *part], env=environment)
            assert int(done.stdout) >= (16 if part else 28)
            sources = sorted(folder.glob("*.cu"), key=lambda path: -path.stat().st_size)
            known[n, precision, *part] = {path.stem: with_gpu_prelude(path.read_text()) for path in sources}
        return known[n, precision, *part]

    return collect


def name_of(stem: str) -> str:
    return stem.rpartition("-")[0]


# (text, architecture): several sets have the same built-in kernels
COMPILED: dict[tuple[str, str], bytes] = {}


def compile_all(nvrtc: GpuCompiler, texts: dict[str, str], architecture: str) -> None:
    """Compiles and prints what the assembler used; `pytest -rP` shows it."""
    assert texts
    for stem, text in texts.items():
        if (text, architecture) not in COMPILED:
            COMPILED[text, architecture] = nvrtc.compile(text, name_of(stem), architecture)
        kernels = resources_of(COMPILED[text, architecture])
        own = {name: r for name, r in kernels.items() if not name.startswith("$")}
        assert own
        if name_of(stem) != "builtin":
            assert list(own) == ["kernel"]
        for name, resources in own.items():
            assert 0 < resources.registers <= 255, (stem, name)
            label = name_of(stem) if name == "kernel" else name
            print(
                f"{architecture} {label:<32} {resources.registers:3} registers, {resources.stack} bytes of stack"
            )


@pytest.mark.parametrize("precision", ["float", pytest.param("double", marks=pytest.mark.full)])
def test_functions_of_complex_numbers_and_matrices_compile_for_sm_90(nvrtc, precision):
    """No kernel of the library inverts a matrix by itself or divides by a complex number."""
    text = f"""#define JALI_REAL {precision}
#define JALI_LANES 1
#define JALI_THREADS 128
#define JALI_BLOCKS 1

struct arguments {{ const real* in; real* out; }};
JALI_KERNEL(kernel, arguments) {{
    real x[50], y[50], z[2];
    for (int e = 0; e < 50; ++e) x[e] = a.in[50 * thread_in_grid() + e];
    inverse<2>(y, x); det<3>(z, y); inverse<3>(x, y); reunitarise<3>(y, x); put(x, 0, divided(x[0], modulus(z[0], z[1]), divisor(y[0], y[1])));
    inverse<5>(y, x); det<5>(z, y); complex_exp(y, z); complex_log(y + 2, z); complex_sqrt(y + 4, z);
    for (int e = 0; e < 50; ++e) a.out[50 * thread_in_grid() + e] = y[e];
}}
"""
    compile_all(nvrtc, {"functions-0": with_gpu_prelude(text)}, "sm_90")


@pytest.mark.full  # those of SU(3) compile in the short run
def test_kernels_of_su2_compile_for_sm_90(nvrtc, texts):
    kernels = texts(2, "float32")
    quick = {stem: text for stem, text in kernels.items() if name_of(stem) not in SLOW}
    assert len(quick) >= len(kernels) - 5
    compile_all(nvrtc, quick, "sm_90")


@pytest.mark.full
def test_kernels_that_take_long_compile_for_sm_90_in_su2(nvrtc, texts):
    slow = {stem: text for stem, text in texts(2, "float32").items() if name_of(stem) in SLOW}
    assert {name_of(stem) for stem in slow} == set(SLOW)
    compile_all(nvrtc, slow, "sm_90")


@pytest.mark.parametrize(
    ("architecture", "count"),
    [("sm_90", 4), *(pytest.param(name, 2, marks=pytest.mark.full) for name in ("sm_80", "sm_100"))],
)
def test_chosen_kernels_of_su3_compile(nvrtc, texts, architecture, count):
    chosen = {stem: text for stem, text in texts(3, "float64").items() if name_of(stem) in CHOSEN[:count]}
    if architecture != "sm_90":  # the largest of each name: the others differ in where fields lie
        chosen = {
            stem: text
            for name, (stem, text) in {name_of(s): (s, t) for s, t in reversed(chosen.items())}.items()
        }
        assert len(chosen) == count
    compile_all(nvrtc, chosen, architecture)


def test_kernels_of_improved_actions_smearing_and_gauge_fixing_compile_for_sm_90_in_u1(nvrtc, texts):
    kernels = texts(1, "float32", "toolbox")
    assert {"_turn", "_decorate", "pullback_of__sum_of_loops", "overrelax", "own_heat_bath"} <= {
        name_of(stem) for stem in kernels
    }
    quick = {
        stem: text
        for stem, text in kernels.items()
        if name_of(stem) in ("_turn", "_decorate", "own_heat_bath")
    }
    assert len(quick) >= 3
    compile_all(nvrtc, quick, "sm_90")  # the long tests have all


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("n", "precision"), [(1, "float64"), (2, "float32"), (3, "float64")])
def test_kernels_of_the_toolbox_compile_for_sm_90(nvrtc, texts, n, precision):
    compile_all(nvrtc, texts(n, precision, "toolbox"), "sm_90")


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("n", "precision"), [(3, "float32"), (2, "float64"), (3, "float64")])
def test_kernels_of_all_dirac_operators_compile_for_sm_90(nvrtc, texts, n, precision):
    kernels = texts(n, precision, "operators")
    names = {name_of(stem).partition("_")[0] for stem in kernels}
    assert {"CloverDirac", "TwistedCloverDirac", "HISQ", "DomainWallDirac", "Laplace"} <= names
    compile_all(nvrtc, kernels, "sm_90")


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_all_kernels_compile_for_sm_90(nvrtc, texts, n, precision):
    compile_all(nvrtc, texts(n, precision), "sm_90")


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_100"])
def test_ten_largest_kernels_compile_for_other_architectures(nvrtc, texts, architecture):
    largest = dict(list(texts(3, "float64").items())[:10])
    assert len(largest) == 10
    compile_all(nvrtc, largest, architecture)


def test_rejected_kernel_is_shown_with_its_line(nvrtc, texts):
    stem, text = next((s, t) for s, t in texts(1, "float64").items() if name_of(s) == "_set_unit")
    broken = re.sub(r"(JALI_KERNEL\(kernel[^{]*\{)", r"\1\n    nonsense(3); // here", text, count=1)
    assert broken != text
    with pytest.raises(CompileError, match=r"rejected kernel '_set_unit'[\s\S]*nonsense") as caught:
        nvrtc.compile(broken, "_set_unit", "sm_90")
    number = 1 + broken[: broken.index("nonsense")].count("\n")
    assert f"    {number}: nonsense(3); // here" in str(caught.value)


def test_unknown_architecture_is_an_error(nvrtc):
    with pytest.raises(CompileError, match="sm_12345"):
        nvrtc.compile("", "probe", "sm_12345")


# ---- AMD -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hip_compiler(tmp_path_factory):
    """A function that compiles a text for an architecture: by hipRTC as at run time, or else by hipcc."""
    with settings.using(hiprtc=None):
        try:
            hiprtc = find_gpu_compiler("hip")
        except CompileError:
            pass
        else:
            return hiprtc.compile
    hipcc = shutil.which("hipcc")
    if hipcc is None:
        pytest.skip("neither hipRTC nor hipcc is installed (Debian: apt install hipcc)")

    def compile_by_hipcc(text: str, name: str, architecture: str) -> bytes:
        folder = tmp_path_factory.mktemp("hip")
        (folder / "kernel.hip").write_text(text)
        flags = ["-std=c++17", "-ffp-contract=off", "-O3", "--genco", f"--offload-arch={architecture}"]
        # what hipRTC includes by itself
        command = [
            hipcc,
            *flags,
            "-include",
            "hip/hip_runtime.h",
            "-o",
            "kernel.co",
            "-x",
            "hip",
            "kernel.hip",
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr[:4000]}"
        return (folder / "kernel.co").read_bytes()

    return compile_by_hipcc


@pytest.mark.parametrize("architecture", ["gfx90a", pytest.param("gfx1030", marks=pytest.mark.full)])
def test_chosen_kernels_compile_for_amd(hip_compiler, texts, architecture):
    chosen = {stem: text for stem, text in texts(3, "float64").items() if name_of(stem) in CHOSEN}
    assert {name_of(stem) for stem in chosen} == set(CHOSEN)
    for stem, text in chosen.items():
        assert b"kernel" in hip_compiler(text, name_of(stem), architecture), stem


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("n", "precision"), [(1, "float64"), (2, "float32"), (3, "float64"), (3, "float32")])
def test_all_kernels_compile_for_amd(hip_compiler, texts, n, precision):
    for stem, text in texts(n, precision).items():
        assert hip_compiler(text, name_of(stem), "gfx90a"), stem
