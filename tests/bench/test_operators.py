"""The Dirac operators that are measured: their bytes are those of the literature's tables, and their kernels lead between half fields."""

from __future__ import annotations

import pytest

from jali import EVEN, ODD, Lattice
from jali.bench import halo
from jali.bench.operators import FORMATS, OPERATORS, compulsory_bytes, links_of, operator_case
from jali.comm.virtual import virtual_ranks
from jali.errors import ParameterError

BYTES = {  # in double precision: two spinors, eight links of 12 reals; blocks of 72, twice where the inverse needs both; fat and long links of 18
    "wilson-hop": 8 * (48 + 96),
    "wilson-dirac": 8 * (48 + 96),
    "clover": 8 * (48 + 96 + 72),
    "clover-compressed": 8 * (48 + 96 + 54),
    "twisted-mass": 8 * (48 + 96),
    "twisted-clover": 8 * (48 + 96 + 144),
    "staggered": 8 * (12 + 96),
    "hisq": 8 * (12 + 2 * 144),
    "domain-wall": 8 * (12 * 48 + 96),
}


@pytest.fixture(scope="module")
def links():
    lattice = Lattice(4, 2, 2, 4)
    return {format: links_of(lattice, format) for format in FORMATS}


@pytest.mark.short(8)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", OPERATORS)
def test_each_leads_between_half_fields_in_each_format(name, format, links):
    case = operator_case(name, *links[format], format)
    (bound,) = case.kernel.kernels(*case.arguments(case.odd, case.even))
    case.kernel(*case.arguments(case.odd, case.even))
    assert (case.even.over, case.odd.over) == (EVEN, ODD)
    assert case.odd.norm2() is not None
    if format == "float64":
        assert compulsory_bytes(bound) == BYTES[name]
    else:
        assert compulsory_bytes(bound) < 0.6 * BYTES[name]


def test_halos_of_an_operator_are_measured_in_its_formats():
    def run():
        case = halo.make_case("clover", [4, 4, 4, 4], [1, 1, 1, 2], "cpu", "float16")
        report = halo.measure(case, ("messages-wait",), rounds=1, seconds=1e-4)
        return case.name, report.measurements[0].policy, report.measurements[0].why_not

    assert virtual_ranks(2, run) == [("clover in float16", "messages-wait", "")] * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: halo.make_case("clovers", [4] * 4, [1] * 4, "cpu"), "no kernel 'clovers' .* clover, "),
        (lambda: halo.make_case("clover", [4] * 3, [1] * 3, "cpu"), "in 4 directions, not in 3"),
        (lambda: halo.make_case("staple", [4] * 4, [1] * 4, "cpu", "float16"), "a format of operators"),
        (lambda: links_of(Lattice(2, 2, 2, 2), "bits"), "no format 'bits' .* fixed16"),
        (lambda: operator_case("no", *links_of(Lattice(2, 2, 2, 2), "float64"), "float64"), "no operator"),
    ],
)
def test_what_is_not_there_is_named(make, message):
    with pytest.raises(ParameterError, match=message):
        make()
