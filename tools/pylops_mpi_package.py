"""What tools/pylops_mpi_suite.py and tools/pylops_mpi_scripts.py have in common: the source package of pylops-mpi 0.8.0, which comes
from PyPI by pip into a folder of the temporary files, lists of exceptions, and ranks that write lines of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMPAT = ROOT / "tests" / "compat"
NAME, VERSION = "pylops-mpi", "0.8.0"
SHA256 = "02c9c72beff47f781829c352c9bce072c242c8fb7aaeeb67776bed55fc5dacbf"
STARTING = 180.0  # seconds in which ranks start, on a busy machine


def source(cache: Path) -> Path:
    """The folder of the unpacked source package, downloaded if it is not there. Raises OSError, CalledProcessError."""
    folder = cache / f"pylops_mpi-{VERSION}"
    if (folder / "tests").is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
                "--dest", temporary, f"{NAME}=={VERSION}",
            ],
            check=True,
        )  # fmt: skip
        archive = next(Path(temporary).glob("*.tar.gz"))
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SHA256:
            raise OSError(f"{archive.name} has the SHA-256 {found}, not {SHA256}")
        with tarfile.open(archive) as tar:
            tar.extractall(temporary, filter="data")
        with contextlib.suppress(FileExistsError, OSError):  # another one was faster
            (Path(temporary) / folder.name).rename(folder)
    return folder


def exceptions(file: Path) -> dict[str, str]:
    """What may differ or fail, the first word of each line, with the reason, its other words."""
    entries = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            what, _, reason = line.partition(" ")
            entries[what] = reason.strip()
    return entries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that both programs have."""
    parser.add_argument("-n", type=int, default=2, help="number of ranks (default: 2)")
    parser.add_argument(
        "--behind",
        type=float,
        default=10.0,
        help="seconds that ranks may need longer than one on which it failed or ended (default: %(default)s)",
    )
    parser.add_argument("--source", type=Path, help="the unpacked source package, instead of a download")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "jali-pylops-mpi")
    parser.add_argument("-v", action="store_true", help="print what was said of what failed")


@dataclass
class Ranks:
    """Processes of MPI that write lines of JSON into `folder/RANK.json`."""

    process: subprocess.Popen[bytes]
    folder: Path
    size: int

    def lines(self, rank: int) -> list[dict[str, Any]]:
        path = self.folder / f"{rank}.json"
        if not path.exists():
            return []
        text = path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def output(self) -> str:
        return (self.folder / "output").read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(
    size: int, words: Sequence[str], folder: Path, *, cwd: Path | None = None, path: Iterable[Path] = ()
) -> Ranks:
    """`python WORDS` on so many ranks, in `cwd` (default: `folder`), with folders from which it can import."""
    folders = [*map(str, path), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg",
    }  # fmt: skip
    mpiexec = shutil.which("mpiexec", path=os.path.dirname(sys.executable)) or shutil.which("mpiexec")
    if mpiexec is None:
        raise OSError("there is no mpiexec, neither beside this Python nor in PATH")
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            [mpiexec, "-n", str(size), sys.executable, *words], cwd=cwd or folder, env=environment,
            stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    return Ranks(process, folder, size)
