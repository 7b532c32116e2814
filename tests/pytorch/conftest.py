import pytest
from rank_processes import RankProcesses


@pytest.fixture(scope="session")
def two_ranks():
    with RankProcesses(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def three_ranks():
    with RankProcesses(3) as ranks:
        yield ranks
