"""What the page "What is not there" denies is not there: who adds one of these corrects the page."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import jali

PAGE = Path(__file__).resolve().parents[2] / "docs" / "limits.md"
# A name, or a part of one, that would be public if it were there, by the words of the page.
DENIED = {
    "Pseudofermions": ("jali.hmc", r"pseudo|fermion|rational"),
    "doublet": ("jali.fermions", r"doublet|nondegenerate"),
    "overlap": ("jali.fermions", r"overlap"),
    "multigrid": ("jali.solvers", r"multigrid|deflat"),
    "LSMR": ("jali.solvers", r"lsmr"),
    "quasi-Newton": ("jali.solvers", r"bfgs|newton"),
    "Sp(n)": ("jali.gauge", r"^(Sp|SO|G2)$"),
    "multilevel": ("jali.gauge", r"multi_?level|temper"),
    "factorisations": ("jali.linops", r"svd|^qr|^lu$|cholesky"),
    "cosine": ("jali.fft", r"dct|dst|cosine"),
}


@pytest.mark.parametrize("denied", DENIED)
def test_what_the_page_denies_is_not_there(denied: str) -> None:
    assert denied in PAGE.read_text()
    module, pattern = DENIED[denied]
    names = importlib.import_module(module).__all__
    assert not [
        name for name in names if re.search(pattern, name, re.IGNORECASE if "^" not in pattern else 0)
    ]


def test_bounds_that_the_page_names_are_those_of_the_code() -> None:
    from jali.gauge.field import LARGEST_GROUP

    text = " ".join(PAGE.read_text().split())
    assert f"up to n = {LARGEST_GROUP}" in text
    assert "of 1 to 8 dimensions" in text
    jali.Lattice(*[1] * 8)
    with pytest.raises(jali.LayoutError, match="1 to 8 dimensions"):
        jali.Lattice(*[1] * 9)
    from jali import solvers

    assert "Only `cg`, `cgls`, `fgmres` and `gcr` take a preconditioner" in " ".join(text.split())
    functions = [getattr(solvers, name) for name in solvers.__all__ if name.islower()]
    with_preconditioner = [f.__name__ for f in functions if "M" in inspect.signature(f).parameters]
    assert with_preconditioner == ["cg", "cgls", "fgmres", "gcr"]
