"""Rows of vendors say all that the core and the compiler ask for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jali import _core, settings, vendors
from jali.vendor import Vendor

CORE = Path(__file__).resolve().parents[2] / "core" / "device"
COMPILER = {"version", "create", "compile", "log_size", "log", "code_size", "code", "destroy"}


def members(table: str) -> set[str]:
    """Members of a table of gpu_api.hpp: the first word of each of its rows."""
    text = (CORE / "gpu_api.hpp").read_text().partition(f"#define {table}(row)")[2]
    return set(re.findall(r"^    row\((\w+)", text.partition("\n\n")[0], re.MULTILINE))


@pytest.fixture(params=vendors.names())
def row(request: pytest.FixtureRequest) -> Vendor:
    return vendors.vendor(request.param)


def test_every_function_and_attribute_that_the_core_asks_for_is_named(row: Vendor) -> None:
    needed, optional = (
        members("JALI_GPU_FUNCTIONS"),
        members("JALI_GPU_OPTIONAL_FUNCTIONS") | {"launch_with", "allocate_with"},
    )
    assert len(needed) > 50
    assert needed <= row.functions.keys() <= needed | optional
    needed = members("JALI_GPU_ATTRIBUTES")
    assert len(needed) == 10
    assert needed <= row.attributes.keys() <= needed | {"network_reads_virtual"}
    assert row.compiler.functions.keys() == COMPILER


def test_settings_of_a_row_exist(row: Vendor) -> None:
    named = {row.driver.setting, row.compiler.library.setting, row.mpi_setting, row.ccl and row.ccl.setting}
    assert named - {"", None} <= {setting.name for setting in settings.rows()}


def test_vendors_can_be_told_apart() -> None:
    rows = [vendors.vendor(name) for name in vendors.names()]
    assert [row.name for row in rows] == vendors.names()
    assert len({row.dlpack for row in rows}) == len(rows)


def test_a_vendor_without_a_file_is_refused_and_one_is_told_once() -> None:
    with pytest.raises(ValueError, match="there is no vendor 'acne'; there are .*cuda, hip"):
        _core.Gpu.count("acne")
    _core.Gpu.count("cuda")
    vendors.tell_core("cuda")
    with pytest.raises(ValueError, match="there is a vendor 'cuda' already"):
        _core.add_vendor(vendors.vendor("cuda"))
