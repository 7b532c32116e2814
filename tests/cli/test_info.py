"""`jali info` reports what is there, and says what is missing instead of failing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import need_mpi, need_openmpi, run_jali

import jali
from jali.cli.info import _answers


def info(*words: str, python: str = sys.executable, **environment: str) -> str:
    return run_jali("info", *words, python=python, env={**os.environ, **environment}).stdout


def report(*words: str, **options: str) -> dict[str, Any]:
    return json.loads(info("--json", *words, **options))


def test_report_names_this_python_and_this_jali() -> None:
    found = report()
    assert found["jali"] == jali.__version__
    assert Path(found["python"]["executable"]).samefile(sys.executable)
    assert Path(found["core"]).exists()
    assert (found["ranks"], found["transport"], found["device"]) == (1, "self", "cpu")
    assert found["processor"]["vector_bits"] in (64, 128, 256, 512)


def test_kernels_in_the_cache_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"12345")
    (tmp_path / "a.cpp").write_bytes(b"123")
    tmp_path.chmod(0o700)
    assert report(JALI_CACHE_DIR=str(tmp_path))["cache"] == {"path": str(tmp_path), "bytes": 8, "kernels": 1}


def test_missing_compiler_is_said_and_does_not_stop_the_rest() -> None:
    found = report(CXX="no-such-compiler")
    assert "no-such-compiler" in found["compiler"]["missing"]
    assert found["jali"] == jali.__version__


def test_a_library_that_breaks_its_process_or_hangs_harms_no_other_answer(monkeypatch) -> None:
    monkeypatch.setattr("jali.cli.info.TIMEOUT", 1)
    programs = {
        "well": "import json, sys; print(json.dumps({'word': sys.argv[1]}))",
        "dies": "import os; os.abort()",
        "fails": "import no_such_library",
        "hangs": "while True: pass",
        "says": "import sys; sys.exit('so it is')",
    }
    found = _answers({name: (f"what {name}", program, name) for name, program in programs.items()})
    assert found == {
        "well": {"word": "well"},
        "dies": {"missing": "loading it ended with status -6"},
        "fails": {"missing": "ModuleNotFoundError: No module named 'no_such_library'"},
        "hangs": {"missing": "loading what hangs took more than 1 s"},
        "says": {"missing": "SystemExit: so it is"},
    }


def test_text_has_every_part() -> None:
    text = info()
    for word in (
        "python",
        "vector",
        "threads",
        "ranks",
        "mpi",
        "device",
        "cuda",
        "hip",
        "compiler",
        "cache",
        "packages",
    ):
        assert f"\n{word} " in text


def test_missing_drivers_are_said_with_the_reason_and_do_not_stop_the_rest() -> None:
    nowhere = dict.fromkeys(("JALI_CUDA_DRIVER", "JALI_HIP_DRIVER", "JALI_NVRTC", "JALI_HIPRTC"), "/nowhere")
    found = report(**nowhere)["devices"]
    assert set(found) >= {"cuda", "hip"}
    for kind, vendor in (("cuda", "NVIDIA's driver"), ("hip", "AMD's HIP runtime")):
        assert found[kind]["driver"]["missing"].startswith(f"{vendor} was not found (/nowhere")
        assert "/nowhere" in found[kind]["compiler"]["missing"]
        assert found[kind]["gpus"] == []
    text = info(**nowhere)
    assert "\ncuda       none: NVIDIA's driver was not found" in text
    assert "\nhip        none: AMD's HIP runtime was not found" in text
    assert "never run on AMD hardware" in text


@pytest.mark.full
@pytest.mark.mpi
def test_two_ranks_speak_with_one_voice() -> None:
    need_mpi()
    found = report("-n", "2")
    assert (found["ranks"], found["transport"]) == (2, "mpi")
    assert found["mpi"]["abi"] in ("MPICH", "Open MPI", "MPI-5 standard ABI")


@pytest.mark.full
@pytest.mark.mpi
def test_open_mpi_is_recognised() -> None:
    found = report("-n", "3", python=need_openmpi())
    assert (found["ranks"], found["mpi"]["abi"]) == (3, "Open MPI")
