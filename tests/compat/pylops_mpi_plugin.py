"""A plugin of pytest for tools/pylops_mpi_suite.py: pylops_mpi is jali, and every rank writes what became of its tests.

`-p pylops_mpi_plugin --results FOLDER --rank-of-results RANK`; one line in JSON when a test begins and when it ends.
"""

from __future__ import annotations

import json
import os
import time
from typing import IO, Any

import pytest

from jali.compat import stand_in

stand_in("pylops_mpi")


class Results:
    """Lines of this rank."""

    def __init__(self, file: IO[str], first: int) -> None:
        self.file, self.first = file, first
        self.failed: dict[str, str] = {}

    def say(self, **what: Any) -> None:
        self.file.write(json.dumps(what) + "\n")
        self.file.flush()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.say(what="collected", tests=[item.name for item in items])
        items[:] = items[self.first :]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.say(what="begin", test=item.name)
        began = time.perf_counter()
        found = yield
        failed = self.failed.pop(item.nodeid, "")
        self.say(what="end", test=item.name, failed=failed, seconds=round(time.perf_counter() - began, 3))
        return found

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)[-4000:]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.say(what="broken", failed=str(report.longrepr)[-4000:])

    def pytest_sessionfinish(self) -> None:
        self.say(what="finished")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pylops-mpi")
    group.addoption(
        "--with-mpi", action="store_true", help="as of pytest-mpi; tests run with MPI in any case"
    )
    group.addoption("--results", help="folder of the files with results")
    group.addoption("--first", type=int, default=0, help="number of the first test to run")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "mpi(min_size): as of pytest-mpi")
    from mpi4py import MPI

    file = open(  # noqa: SIM115
        os.path.join(config.getoption("--results"), f"{MPI.COMM_WORLD.rank}.json"), "w", encoding="utf-8"
    )
    config.pluginmanager.register(Results(file, config.getoption("--first")))
