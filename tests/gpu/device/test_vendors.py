"""Entries of vendors say all that the core and the compiler ask for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jali import _core, settings, vendors
from jali._core import GpuVendor
from jali.errors import CompileError

CORE = Path(__file__).resolve().parents[3] / "core" / "device"
COMPILER = {"version", "create", "compile", "log_size", "log", "code_size", "code", "destroy"}


def members(table: str) -> set[str]:
    """Members of a table of gpu_api.hpp: the first word of each of its entries."""
    text = (CORE / "gpu_api.hpp").read_text().partition(f"#define {table}(entry)")[2]
    return set(re.findall(r"^    entry\((\w+)", text.partition("\n\n")[0], re.MULTILINE))


@pytest.fixture(params=vendors.names())
def spec(request: pytest.FixtureRequest) -> GpuVendor:
    return vendors.vendor(request.param)


def test_every_function_and_attribute_that_the_core_asks_for_is_named(spec: GpuVendor) -> None:
    needed, optional = (
        members("JALI_GPU_FUNCTIONS"),
        members("JALI_GPU_OPTIONAL_FUNCTIONS") | {"launch_with", "allocate_with", "peer_attribute"},
    )
    assert len(needed) > 50
    assert needed <= spec.functions.keys() <= needed | optional
    needed = members("JALI_GPU_ATTRIBUTES")
    assert len(needed) == 10
    assert needed <= spec.attributes.keys() <= needed | {"network_reads_virtual"}
    assert spec.compiler.functions.keys() == COMPILER
    assert spec.compiler.options


def test_settings_of_a_case_exist(spec: GpuVendor) -> None:
    named = {spec.driver.setting, spec.compiler.library.setting, spec.mpi_setting, spec.ccl.setting}
    assert named - {""} <= {setting.name for setting in settings.specs()}


def test_vendors_can_be_distinguished() -> None:
    specs = [vendors.vendor(name) for name in vendors.names()]
    assert [spec.name for spec in specs] == vendors.names()
    assert len({spec.dlpack for spec in specs}) == len(specs)


def test_every_file_of_the_core_is_a_vendor() -> None:
    assert vendors.names() == sorted(path.stem for path in (CORE / "vendors").glob("*.cpp"))


def test_a_vendor_without_a_file_is_refused() -> None:
    for ask in (_core.Gpu.count, _core.find_gpu_compiler, vendors.vendor):
        with pytest.raises(ValueError, match="there is no vendor 'acne'; there are .*cuda, hip"):
            ask("acne")


def test_what_packages_have_comes_before_the_usual_files_and_a_setting_before_both(use_settings) -> None:
    library, path = vendors.vendor("cuda").compiler.library, settings.current().nvrtc
    if not path:
        pytest.skip("CUDA's compiler is the machine's in this run")
    use_settings(nvrtc=None)
    vendors.suggest_libraries("cuda")  # which is done once
    try:
        _core.suggest_library("cuda", "compiler", ["/nowhere/librtc.so", path])
        assert _core.find_gpu_compiler("cuda").path == path
        use_settings(nvrtc="/nowhere/named.so")
        with pytest.raises(CompileError, match="need NVRTC, which was not found.*JALI_NVRTC") as caught:
            _core.find_gpu_compiler("cuda")
        assert "/nowhere/named.so" in str(caught.value)
        assert "librtc" not in str(caught.value)
    finally:
        _core.suggest_library("cuda", "compiler", vendors.packaged(library))
