"""`python -m jali` is the `jali` command: what starts ranks names the interpreter, not a script on PATH."""

from __future__ import annotations

import sys

from jali.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
