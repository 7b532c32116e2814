"""Put the types of `jali._core`, which the build makes, where mypy looks for them: `python tools/core_stub.py`, before mypy.

An editable installation has the module and its stub outside of the sources. Without the stub mypy would know nothing of the core, so a
missing one is an error.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "src" / "jali" / "_core.pyi"


def main() -> int:
    spec = importlib.util.find_spec("jali._core")
    if spec is None or spec.origin is None:
        print("jali._core is not built; `make lint` builds it", file=sys.stderr)
        return 1
    stub = Path(spec.origin).parent / "_core.pyi"
    if not stub.is_file():
        print(
            f"{stub} is missing, which the build makes beside jali._core; build again (was it built by cross-compiling?)",
            file=sys.stderr,
        )
        return 1
    if stub != TARGET and not (TARGET.is_file() and TARGET.read_bytes() == stub.read_bytes()):
        shutil.copyfile(stub, TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
