"""A driver and a compiler made of host memory and the host's compiler (fake_gpu.cpp), and how programs find them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "fake_gpu.cpp"
# "cuda" is what the machine has
REAL = os.environ.get("JALI_TEST_REAL_GPU") == "1"
VARIABLES = {
    "cuda": ("JALI_CUDA_DRIVER", "JALI_NVRTC"),
    "hip": ("JALI_HIP_DRIVER", "JALI_HIPRTC"),
}


def make_fake_driver() -> Path:
    """The fake driver, compiled once for all processes that run this text of it."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"jali-fake-gpu-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    assert status.st_uid == os.getuid(), f"{folder} belongs to somebody else"
    assert not status.st_mode & 0o022, f"{folder} can be written by others"
    library = folder / f"{digest}.so"
    if not library.exists():
        partial = folder / f"{digest}.{os.getpid()}"
        compiler = os.environ.get("CXX", "c++").split()
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-pthread"]
        done = subprocess.run(
            [*compiler, *flags, "-o", str(partial), str(SOURCE), "-ldl"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        partial.replace(library)
    return library
