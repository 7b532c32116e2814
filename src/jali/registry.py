"""Tables whose entries are files: the modules of a folder are its entries, and nothing lists them a second time.

Vendors of devices, file formats and update algorithms are such tables. A file there that begins with an underscore is
no entry.
"""

from __future__ import annotations

import os


def entry_names(package_file: str) -> list[str]:
    """Names of the modules beside a package's `__init__.py` (its `__file__`), in alphabetical order."""
    files = os.listdir(os.path.dirname(package_file))
    return sorted(f[:-3] for f in files if f.endswith(".py") and not f.startswith("_"))
