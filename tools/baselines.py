"""Records the baselines of tests/baselines anew: `python tools/baselines.py --write histories`, or `texts`.

tests/baselines/README.md says when that is allowed. Without `--write` it says what differs from what is recorded.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

BASELINES = Path(__file__).resolve().parents[1] / "tests" / "baselines"
PARTS = ("histories", "texts")


def write(part: str) -> None:
    """Records a part."""
    if part == "texts":
        importlib.import_module("kernel_texts").record()
        return
    found = importlib.import_module("histories").all_histories()
    (BASELINES / "histories.json").write_text(json.dumps(found, indent=1) + "\n")


def differing(part: str) -> list[str]:
    """The programs or histories that are not those that are recorded; of texts those that are not as recorded and renamed."""
    recorded: dict[str, Any]
    found: dict[str, Any]
    if part == "histories":
        recorded = json.loads((BASELINES / "histories.json").read_text())
        found = importlib.import_module("histories").all_histories()
    else:
        texts = importlib.import_module("kernel_texts")
        pairs = texts.renamed_identifiers()
        recorded = {
            name: {target: [texts.renamed(text, pairs) for text in one] for target, one in targets.items()}
            for name, targets in texts.recorded().items()
        }
        found = texts.written()
    return [name for name in {**recorded, **found} if recorded.get(name) != found.get(name)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--write", action="store_true", help="record what there is now")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    sys.path.insert(0, str(BASELINES))
    status = 0
    for part in options.parts or PARTS:
        if options.write:
            write(part)
            continue
        names = differing(part)
        print(f"{part}: {', '.join(names) if names else 'as recorded'}")
        status |= bool(names)
    return status


if __name__ == "__main__":
    sys.exit(main())
