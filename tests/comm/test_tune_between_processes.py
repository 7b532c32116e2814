"""`jali tune collectives` between processes: one file, which all of them read and use."""

from __future__ import annotations

import pytest


@pytest.mark.mpi
def test_rules_of_processes_are_written_once_and_used(mpi) -> None:
    ended = mpi.run("""
        import jali
        from jali import _core
        from jali.bench import collective_algorithms
        from jali.cli.main import main

        os.chdir(os.path.dirname(os.path.abspath(sys.argv[0])))
        collective_algorithms.KEEP = 100  # plans of some sizes are kept, of others made anew
        timed = collective_algorithms.AlgorithmBenchmark._timed
        def made_up(self, case, calls, *arguments, **more):
            rounds = timed(self, case, calls, *arguments, **more)
            return {way: [0.5 if way in ("ring", "rules") else 1.0] * len(rounds[way]) for way in rounds}
        collective_algorithms.AlgorithmBenchmark._timed = made_up
        words = "tune collectives --only all_reduce,all_gather --largest 4KiB --rounds 11 --seconds 0 --out mine.toml"
        status = main(words.split())
        jali.settings.use(collective_rules=os.path.abspath("mine.toml"))
        world = comm.current().duplicate()
        x = np.arange(16, dtype=np.float32)
        right = np.array_equal(world.all_reduce(x), world.size * x)
        algorithms = [
            _core.choose_on_host(_core.CollectiveCall("all_reduce", "fp32", 16), [ranks]).name
            for ranks in (world.size, world.size + 1)
        ]
        print(f"{world.rank}: {status} {right} {algorithms[0] == 'ring'} {algorithms[1] == 'ring'}", flush=True)
        """)
    assert ended.status == 0, ended.err
    assert "2 rules for 8 cells of 8 in mine.toml" in ended.out
    assert sorted(path.name for path in mpi.folder.iterdir()) == ["mine.toml", "program.py"]
    for rank in range(mpi.ranks):
        assert f"{rank}: 0 True True False" in ended.out
