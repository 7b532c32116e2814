"""`jali tune import-mpich`: the file that it writes, what it says of it, and what it refuses."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from jali_command import jali_here

from jali import _core, comm

TREE = """{
 "collective=allreduce": {
  "comm_type=intra": {
   "comm_size=node_comm_size": {"composition=MPIDI_Allreduce_intra_composition_gamma": {}},
   "is_node_consecutive=yes": {"composition=MPIDI_Allreduce_intra_composition_delta": {}},
   "avg_msg_size<=32768": {"composition=MPIDI_Allreduce_intra_composition_alpha": {}},
   "avg_msg_size=any": {"algorithm=MPIR_Allreduce_intra_ccl": {"ccl=nccl": {}}}
  }
 },
 "collective=bcast": {"comm_type=intra": {"comm_size<8": {"algorithm=MPIR_Bcast_intra_binomial": {}}}},
 "collective=barrier": {"algorithm=MPIR_Barrier_intra_k_dissemination": {"k=2": {}}}
}
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tree.json"
    file.write_text(TREE)
    return file


def refused(*words: object, ranks: int = 1) -> str:
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert jali_here("tune", *words, ranks=ranks) == 2
    return err.getvalue()


def test_rules_are_written_and_taken(tree: Path, use_settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert jali_here("tune", "import-mpich", tree) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 rules in tree.toml; programs take them with JALI_COLLECTIVE_RULES=tree.toml\n")
    assert (
        "left out: line 5: collective=allreduce > comm_type=intra > is_node_consecutive=yes: how ranks are numbered"
        in out
    )
    assert "left out: line 11: collective=barrier: jali has no such collective" in out
    text = Path("tree.toml").read_text()
    assert "for arrays of hosts" in text.splitlines()[0]
    assert "# left out: line 7: " in text  # where its rule would stand
    assert text.index("line 5: ") < text.index("MPIDI_Allreduce_intra_composition_alpha")
    use_settings(collective_rules=str(Path("tree.toml").absolute()))

    def specs() -> list[str]:
        world = comm.current()
        world.collectives.override_hosts([[0, 1], [2]])
        assert np.array_equal(world.all_reduce(np.ones(100)), np.full(100, 3.0))
        x = world.broadcast(np.full(5, world.rank))
        assert (x == 0).all()
        return [world.explain("all_reduce", np.ones(100)), world.explain("broadcast", x)]

    reduced, copied = comm.virtual_ranks(3, specs)[0]
    assert (
        "not two_level by shm and mpi: 'shm' carries no messages between these ranks" in reduced
    )  # virtual ones
    assert copied.startswith("binomial (line ")


def test_on_devices(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "import-mpich",
        tree,
        "--memory",
        "cuda",
        "-o",
        "out.toml",
        "--assume",
        "is_node_consecutive=yes",
        "--json",
    )
    assert jali_here("tune", *words) == 0
    reported = json.loads(capsys.readouterr().out)
    assert [rule["algorithms"] for rule in reported["rules"]] == [
        ["node_only", "flat"],
        ["slices", "node_only", "flat"],
        ["binomial"],
    ]
    assert reported["rules"][0]["conditions"] == {
        "memory": ["cuda"],
        "collective": ["all_reduce"],
        "hosts": [1, 1],
    }
    assert reported["path"] == "out.toml"
    text = Path("out.toml").read_text()
    assert "Assumed: is_node_consecutive=yes." in text
    assert _core.check_rules(text, "out.toml") == 3


def test_strict_writes_nothing_that_means_something_else(tree: Path) -> None:
    said = refused("import-mpich", tree, "--strict")
    assert (
        "2 branches cannot be said by rules, and calls of them would take others: line 5: collective=allreduce"
        in said
    )
    assert not Path("tree.toml").exists()
    tree.write_text('{"collective=allreduce": {"algorithm=MPIR_Allreduce_intra_ring": {}}}')
    assert jali_here("tune", "import-mpich", tree, "--strict") == 0


def test_several_ranks_write_once(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jali_here("tune", "import-mpich", tree, ranks=2) == 0
    assert capsys.readouterr().out.count("4 rules in tree.toml") == 1


def test_what_cannot_be_is_refused(tree: Path) -> None:
    assert "which tree? give the JSON file" in refused("import-mpich")
    assert "nowhere.json" in refused("import-mpich", "nowhere.json")
    assert "there is no memory 'gpu'; there is host, device, cuda, hip" in refused(
        "import-mpich", tree, "--memory", "gpu"
    )
    for answer in ("is_multi_threaded", "is_multi_threaded=maybe", "comm_size=3", "=no"):
        said = refused("import-mpich", tree, "--assume", answer)
        assert (
            f"'{answer}' is no answer like is_multi_threaded=no; there are is_node_consecutive, is_multi_threaded"
            in said
        )
    assert "--rounds is for collectives; jali tune import-mpich takes --output, --force" in refused(
        "import-mpich", tree, "--rounds", 30
    )
    assert "--memory is for import-mpich; jali tune show takes --why" in refused("show", "--memory", "cuda")
    Path("tree.toml").write_text("mine")
    assert "tree.toml exists; --force writes over it" in refused("import-mpich", tree)
    assert Path("tree.toml").read_text() == "mine"
    assert jali_here("tune", "import-mpich", tree, "--force") == 0
    Path("folder").mkdir()
    assert "folder is a folder; --output names a file" in refused("import-mpich", tree, "--output", "folder")
    tree.write_bytes(b'{"collective=\xff": {}}')
    assert "byte 13 is not UTF-8 text" in refused("import-mpich", tree, "--force")
    tree.write_text('{"collective=bcast": {\n"comm_sise<8": {}}}')
    assert "tree.json, line 2: 'comm_sise<8' is no predicate; there are collective=" in refused(
        "import-mpich", tree, "--force"
    )
