"""Compiles short functions on top of the CPU prelude and calls them on NumPy arrays.

A body reads `in[k]` and writes `out[k]` (both `real`); the harness runs it over columns of numbers: row k of the input array
is argument k of every site, and consecutive sites fill the lanes. Different lane counts and instruction sets must give the
same bits, so the harness is parametrised over both.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

PRELUDE = Path(__file__).parents[2] / "src" / "jali" / "codegen" / "prelude"
FILES = (
    "rounded.hpp",
    "target_cpu.hpp",
    "lanes.hpp",
    "storage.hpp",
    "memory_cpu.hpp",
    "elementary.hpp",
    "random.hpp",
    "matrix.hpp",
    "group.hpp",
)
FLAGS = (
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-Wno-psabi",
)
STRICT = ("-Wall", "-Wextra", "-Werror")

RUN = """
extern "C" void run(JALI_REAL* output, const JALI_REAL* input, int64_t sites) {
  for (int64_t first = 0; first < sites; first += JALI_LANES) {
    real in[INPUTS], out[OUTPUTS];
    for (int k = 0; k < INPUTS; ++k) __builtin_memcpy(in + k, input + k * sites + first, sizeof(real));
    body(out, in);
    for (int k = 0; k < OUTPUTS; ++k) __builtin_memcpy(output + k * sites + first, out + k, sizeof(real));
  }
}
"""


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="jali-prelude-"))


def source(text: str, lanes: int, dtype: type) -> str:
    """The prelude for the given lanes and precision, followed by `text`."""
    kind = "double" if dtype == np.float64 else "float"
    head = f"#define JALI_LANES {lanes}\n#define JALI_REAL {kind}\n"
    return head + "".join((PRELUDE / name).read_text() for name in FILES) + text


@functools.cache
def library(
    text: str,
    lanes: int,
    dtype: type,
    march: str = "native",
    extra: tuple[str, ...] = STRICT,
    compiler: str = "g++",
) -> ctypes.CDLL:
    """The shared object compiled from the prelude and `text`."""
    assert shutil.which(compiler) is not None, f"this test needs {compiler}"
    whole = source(text, lanes, dtype)
    name = hashlib.sha256(f"{whole}{march}{extra}{compiler}".encode()).hexdigest()[:16]
    path = _folder() / f"{name}.cpp"
    path.write_text(whole)
    made = path.with_suffix(".so")
    command = [compiler, *FLAGS, *extra, f"-march={march}", "-o", str(made), str(path), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(made))


def evaluate(
    body: str,
    inputs: np.ndarray,
    outputs: int,
    lanes: int = 4,
    march: str = "native",
    extra: tuple[str, ...] = STRICT,
    compiler: str = "g++",
) -> np.ndarray:
    """Rows of results of `body` for rows of inputs, in the precision of `inputs`.

    `inputs` has shape (arguments, sites); the result has shape (outputs, sites).
    """
    arguments, sites = inputs.shape
    padded = -(-sites // 16) * 16
    data = np.zeros((arguments, padded), inputs.dtype)
    data[:, :sites] = inputs
    data[:, sites:] = inputs[:, :1]
    text = (
        f"enum {{ INPUTS = {arguments}, OUTPUTS = {outputs} }};\n"
        f"static void body(real* out, const real* in) {{\n{body}\n}}\n{RUN}"
    )
    result = np.full((outputs, padded), np.nan, inputs.dtype)
    run = library(text, lanes, inputs.dtype.type, march, extra, compiler).run
    run(ctypes.c_void_p(result.ctypes.data), ctypes.c_void_p(data.ctypes.data), ctypes.c_int64(padded))
    return result[:, :sites]


def assembly(text: str, lanes: int, dtype: type, march: str, compiler: str = "g++") -> dict[str, str]:
    """What a compiler makes of the functions of the prelude and `text` for an architecture, by their names."""
    command = [compiler, *FLAGS, f"-march={march}", "-S", "-o", "-", "-x", "c++", "-"]
    done = subprocess.run(
        command, input=source(text, lanes, dtype), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:4000]
    functions: dict[str, str] = {}
    name = ""
    for line in done.stdout.splitlines():
        label = re.match(r"(\w+):", line)
        if label:
            name = label[1]
        functions[name] = functions.get(name, "") + line + "\n"
        if ".cfi_endproc" in line:
            name = ""
    return functions


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays agree bit for bit; the sign and payload of nan are not compared."""
    word = np.uint64 if a.dtype == np.float64 else np.uint32
    return bool(np.all((a.view(word) == b.view(word)) | (np.isnan(a) & np.isnan(b))))


def ulps(result: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Distance to a long double reference in units of the last place of the rounded reference."""
    step = np.spacing(np.abs(reference).astype(result.dtype)).astype(np.longdouble)
    with np.errstate(invalid="ignore"):
        return np.abs(result.astype(np.longdouble) - reference) / step


def complex_rows(a: np.ndarray) -> np.ndarray:
    """Complex arrays (sites, n, m) as interleaved rows (2 n m, sites)."""
    flat = a.reshape(a.shape[0], -1)
    return np.ascontiguousarray(np.stack([flat.real, flat.imag], axis=-1).reshape(a.shape[0], -1).T)


def from_rows(rows: np.ndarray, *shape: int) -> np.ndarray:
    """Interleaved rows as complex arrays (sites, *shape)."""
    pairs = rows.T.reshape(rows.shape[1], -1, 2)
    return (pairs[..., 0] + 1j * pairs[..., 1]).reshape(rows.shape[1], *shape)
