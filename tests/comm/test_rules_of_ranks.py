"""Processes whose rules of collectives differ, or cannot be read on one of them."""

from __future__ import annotations

import re

import pytest


@pytest.mark.mpi
def test_ranks_with_other_rules_hear_of_it(mpi) -> None:
    ended = mpi.run("""
        import tempfile
        import jali
        from jali.errors import ParameterError
        world = comm.current()
        for number, text in enumerate([
            "version = 1\\n[[rule]]\\nways = ['ring']\\n" if world.rank else "version = 1\\n",
            "version = 1" if world.rank else "version = 2",
        ]):
            file = os.path.join(tempfile.mkdtemp(), f"rules{world.rank}-{number}.toml")
            open(file, "w").write(text)
            jali.settings.use(collective_rules=os.path.abspath(file))
            try:
                world.duplicate().all_reduce(np.ones(4))
            except ParameterError as error:
                print(f"{number} {world.rank}: {error}", flush=True)
        """)
    assert ended.status == 0, ended.err
    for rank in range(2):
        assert f"0 {rank}: ranks 0 and 1 have other rules of collectives" in ended.out
        assert re.search(rf"1 {rank}: rank 0: \S+rules0-1.toml, line 1: version = 1 is the only", ended.out)
