"""Named ranges go to whoever takes them: a library that exports functions, or a tool that announces itself."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from programs import run_python

WRITING = r"""
#include <cstddef>
#include <cstdint>
#include <cstdio>
static int depth = 0;
static int push(const char* name) { std::printf("push %s\n", name); std::fflush(stdout); return depth++; }
static int pop() { std::printf("pop\n"); std::fflush(stdout); return --depth; }
#define API extern "C" __attribute__((visibility("default"))) int
"""
EXPORTING = WRITING + "API PUSH(const char* name) { return push(name); }\nAPI POP() { return pop(); }\n"
# A tool as NVTX 3 has them: asks for the table of callbacks and fills in the places of the core functions.
TOOL = (
    WRITING
    + r"""
typedef void (*Function)();
struct Callbacks { std::size_t bytes; int (*table)(std::uint32_t, Function***, unsigned*); };
API InitializeInjectionNvtx2(const void* (*tables)(std::uint32_t)) {
    const Callbacks* callbacks = static_cast<const Callbacks*>(tables(1));
    if (!callbacks || callbacks->bytes < sizeof(Callbacks)) return 0;
    Function** places = nullptr;
    unsigned size = 0;
    if (callbacks->table(2, &places, &size) != 0) return 0;  // no CUDA module here
    if (callbacks->table(1, &places, &size) != 1 || size <= 11 || places[size] != nullptr) return 0;
    *places[9] = reinterpret_cast<Function>(push);
    *places[11] = reinterpret_cast<Function>(pop);
    return 1;
}
"""
)
PROGRAM = """
import jali, jali.profile
lattice = jali.Lattice(4, 4)
x = lattice.field(jali.Real())
@jali.site_function
def grow(X, x):
    x[X] = x[X] + 1
print("begin", flush=True)
grow(x)
with jali.profile.recording() as found, found.span("mine"):
    grow(x)
print(len(found.spans), flush=True)
"""


@pytest.fixture
def make_library(tmp_path: Path):
    def make(name: str, text: str) -> str:
        (tmp_path / f"{name}.cpp").write_text(text)
        compiler = os.environ.get("CXX", "c++").split()
        library = tmp_path / f"{name}.so"
        command = [*compiler, "-std=c++17", "-fPIC", "-shared", "-o", library, tmp_path / f"{name}.cpp"]
        subprocess.run(command, check=True)
        return str(library)

    return make


NAMES = ("NVTX_INJECTION64_PATH", "JALI_NVTX_LIBRARY", "JALI_ROCTX_LIBRARY", "JALI_NVTX")


def program(text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs it where no tool and no library for ranges is found but those named here."""
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment |= {"JALI_NVTX_LIBRARY": "/nowhere/nvtx.so", "JALI_ROCTX_LIBRARY": "/nowhere/roctx.so"}
    return run_python(text, env=environment | variables)


PUSHED = ["begin", "push grow", "pop", "push mine", "push grow", "pop", "pop", "2"]


def test_a_tool_that_announces_itself_gets_the_ranges(make_library):
    done = program(PROGRAM, NVTX_INJECTION64_PATH=make_library("tool", TOOL), JALI_NVTX="1")
    assert done.stdout.split("\n")[:-1] == PUSHED


@pytest.mark.parametrize(
    ("variable", "push", "pop"),
    [
        ("JALI_NVTX_LIBRARY", "nvtxRangePushA", "nvtxRangePop"),
        ("JALI_ROCTX_LIBRARY", "roctxRangePushA", "roctxRangePop"),
    ],
)
def test_a_library_that_exports_functions_gets_the_ranges(variable, push, pop, make_library):
    library = make_library("library", EXPORTING.replace("PUSH", push).replace("POP", pop))
    done = program(PROGRAM, **{variable: library, "JALI_NVTX": "1"})
    assert done.stdout.split("\n")[:-1] == PUSHED


def test_ranges_are_off_unless_requested(make_library):
    done = program(PROGRAM, NVTX_INJECTION64_PATH=make_library("tool", TOOL))
    assert done.stdout.split() == ["begin", "2"]


def test_ranges_that_nobody_takes_are_said_once_and_change_nothing():
    done = program(PROGRAM, JALI_NVTX="1")
    assert done.stdout.split() == ["begin", "2"]
    assert done.stderr.count("JALI_NVTX=1, but no profiler's tool is attached") == 1
    assert "/nowhere/nvtx.so" in done.stderr


INFO = "from jali.cli.main import main\nmain(['info', '--json'])"


@pytest.mark.full
def test_info_says_who_takes_ranges_or_why_nobody(make_library):
    found = json.loads(program(INFO).stdout)["ranges"]
    assert not found["on"]
    assert "/nowhere/nvtx.so" in found["missing"]
    library = make_library("tool", TOOL)
    found = json.loads(program(INFO, NVTX_INJECTION64_PATH=library, JALI_NVTX="1").stdout)["ranges"]
    assert found == {"name": "NVTX", "path": library, "on": True}
