"""What a call of an operator's kernel costs is known before it runs: all that is checked about its formula is checked by compiled code."""

from __future__ import annotations

import pytest

from jali import Lattice
from jali.bench.operators import OPERATORS, links_of, operator_case
from jali.codegen.guard_discovery import GuardDiscovery


@pytest.mark.short(2)
@pytest.mark.parametrize("name", OPERATORS)
def test_no_function_of_a_formula_is_looked_into_by_python(name, monkeypatch):
    """A formula that mentions a description of functions, such as `__name__` in a message, would make each call check that of all functions
    (35 us for a Wilson hop, not 3)."""
    looked_into, functions = [], []
    function, later = GuardDiscovery._function, GuardDiscovery._later

    def of_function(self, path, value):
        functions.append(path)
        return function(self, path, value)

    def noted(self, value, paths, probe, what, strict, core_guard=None):
        if isinstance(what, tuple) and what[0] == "function" and core_guard is None:
            looked_into.append(value.__qualname__)
        return later(self, value, paths, probe, what, strict, core_guard)

    case = operator_case(name, *links_of(Lattice(2, 2, 2, 2, device="cpu"), "float64"), "float64")
    monkeypatch.setattr(GuardDiscovery, "_function", of_function)
    monkeypatch.setattr(GuardDiscovery, "_later", noted)
    monkeypatch.setattr(type(case.D), "_functions", {})  # kernels that nothing has traced
    case.D.kernel(OPERATORS[name].kernel)(*case.arguments(case.odd, case.even))
    assert functions
    assert looked_into == []
