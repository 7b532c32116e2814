"""The texts of the kernels of 200 programs, for a host with 32-byte vectors and for CUDA.

As a program it prints JSON: program -> target -> texts without comments. Nothing is compiled and nothing is computed: on the host a function of the
C library that does nothing stands in for every kernel, on the device the fake driver's idle compiler. Whatever else decides about a
text (the width of vectors, prefetches, launches) is set here, so that all machines write the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.extend([str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "gpu")])

from fake_driver import make_fake_driver

FOLDER = Path(__file__).parent
TEXTS, CHECKSUMS, RENAMED = (
    FOLDER / name for name in ("kernel_texts.xz", "kernel_texts.json", "renamed.toml")
)
TARGETS = ("cpu", "cuda")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
WORD = re.compile(r"[A-Za-z_]\w*")


def environment(driver: Path, cache: Path) -> dict[str, str]:
    """The environment in which texts are written: nothing of jali's settings outside remains."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("JALI_", "PMI", "OMPI"))
    }
    return kept | {
        "JALI_CACHE_DIR": str(cache),
        "JALI_CUDA_DRIVER": str(driver),
        "JALI_NVRTC": str(driver),
        "JALI_NCCL": "/nowhere/libnccl.so.2",
        "JALI_FAKE_COMPILER": "idle",
        "JALI_FAKE_GPUS": "2",
        "JALI_PREFETCH": "off",
        "JALI_THREADS": "1",
        "JALI_VECTOR_BYTES": "32",
        "JAX_PLATFORMS": "cpu",
        "OPENBLAS_NUM_THREADS": "1",
    }


def normalised(text: str) -> str:
    """A text without comments and without blanks at the ends of lines: what a renaming of identifiers changes word by word."""
    lines = (line.rstrip() for line in COMMENT.sub("", text).splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def renamed(text: str, pairs: dict[str, str]) -> str:
    """A text with identifiers renamed, all at once."""
    return WORD.sub(lambda found: pairs.get(found[0], found[0]), text)


class Recorder:
    """Takes the text of every kernel that this thread writes, in place of the compiler."""

    def __init__(self) -> None:
        from jali.codegen import kernel_cache

        self._of_thread = threading.local()
        nothing = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
        on_device = kernel_cache.load_on_device

        def load(name: str, text: str, *_: Any) -> tuple[int, Path]:
            self._take(text)
            assert nothing is not None
            return nothing, Path(name)

        def load_on_device(gpu: Any, name: str, text: str, *arguments: Any, **options: Any) -> Any:
            self._take(text)
            return on_device(gpu, name, text, *arguments, **options)

        kernel_cache.load, kernel_cache.load_on_device = load, load_on_device

    def _take(self, text: str) -> None:
        into = getattr(self._of_thread, "into", None)
        if into is not None:
            into[normalised(text)] = None

    @contextmanager
    def into(self, texts: dict[str, None] | None) -> Iterator[None]:
        """Inside, texts of this thread are put into `texts`, each once, in the order in which they are written."""
        before = getattr(self._of_thread, "into", None)
        self._of_thread.into = texts
        try:
            yield
        finally:
            self._of_thread.into = before


def all_texts() -> dict[str, dict[str, list[str]]]:
    """The texts of all programs, in this process, whose environment is `environment`."""
    recorder = Recorder()
    from programs_of_the_suite import PROGRAMS, Target

    found: dict[str, dict[str, list[str]]] = {name: {} for name in PROGRAMS}
    for name, program in PROGRAMS.items():
        for device in TARGETS:
            texts: dict[str, None] = {}
            recorded, unrecorded = partial(recorder.into, texts), partial(recorder.into, None)
            with recorded():
                program(Target(device, recorded, unrecorded))
            found[name][device] = list(texts)
    return found


def written() -> dict[str, dict[str, list[str]]]:
    """The texts of all programs, by a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        Path(cache).chmod(0o700)
        done = subprocess.run(
            [sys.executable, __file__],
            env=environment(make_fake_driver(), Path(cache)),
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(f"the texts of the baseline cannot be written:\n{done.stderr}")
    return json.loads(done.stdout)


def checksums(texts: dict[str, dict[str, list[str]]]) -> dict[str, dict[str, str]]:
    """SHA-256 of the texts of each program for each target."""
    return {
        name: {
            target: hashlib.sha256("\f".join(found).encode()).hexdigest() for target, found in targets.items()
        }
        for name, targets in texts.items()
    }


def recorded() -> dict[str, dict[str, list[str]]]:
    """The texts that were recorded."""
    return json.loads(lzma.decompress(TEXTS.read_bytes()))


def recorded_checksums() -> dict[str, dict[str, str]]:
    return json.loads(CHECKSUMS.read_text())


def renamed_identifiers() -> dict[str, str]:
    """Recorded identifier -> today's."""
    pairs = tomllib.loads(RENAMED.read_text())["renamed"]
    found = dict(pairs)
    assert len(found) == len(pairs), f"{RENAMED} renames one identifier twice"
    return found


def record() -> None:
    """Records the texts of today; nothing is renamed since."""
    texts = written()
    TEXTS.write_bytes(lzma.compress(json.dumps(texts).encode(), preset=9 | lzma.PRESET_EXTREME))
    CHECKSUMS.write_text(json.dumps(checksums(texts), indent=0) + "\n")
    head = "".join(line for line in RENAMED.read_text().splitlines(keepends=True) if line.startswith("#"))
    RENAMED.write_text(head + "renamed = []\n")


if __name__ == "__main__":
    print(json.dumps(all_texts()))
