"""Check an installed wheel where no compiler is found: `python tools/check_wheel.py` in the environment that has the wheel.

Commands, collectives and arrays work without a compiler; the first site function says which compiler it needs. The check runs in a
process of its own, with an empty folder as PATH, no CXX and an empty cache of kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

PROGRAM = """
import sys
from pathlib import Path

import numpy as np

import jali
from jali.arrays import DistributedArray
from jali.cli.main import main

assert Path(jali.__file__).is_relative_to(sys.prefix), f"{jali.__file__} is not that of the wheel"
assert main(["info"]) == 0


def program():
    world = jali.comm.current()
    total = world.all_reduce(np.full(5, world.rank + 1.0))
    x = DistributedArray.to_dist(np.arange(12.0))
    return float(total[0]), float(x.sum()), float((2 * x).dot(x))


found = jali.virtual_ranks(3, program)
assert found == [(6.0, 66.0, 1012.0)] * 3, found


@jali.site_function
def twice(X, out, a):
    out[X] = 2 * a[X]


lattice = jali.Lattice(4, 4)
out, a = jali.Field(lattice, jali.Real()), jali.Field(lattice, jali.Real())
try:
    twice(out, a)
except jali.CompileError as error:
    print(f"without a compiler a site function says: {error}")
else:
    sys.exit("a compiler was found, which this check is without")
"""


def main() -> int:
    """Run the check; its status."""
    with tempfile.TemporaryDirectory(prefix="jali-wheel-") as folder:
        hidden = {"CXX", "PYTHONPATH"}
        kept = {name: text for name, text in os.environ.items() if name not in hidden}
        environment = {**kept, "PATH": folder, "JALI_CACHE_DIR": f"{folder}/cache"}
        return subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM], cwd=folder, env=environment, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
