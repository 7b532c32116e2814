"""Files appear complete or not at all, and an old one stays until then."""

import errno
import itertools
import os
import re
import resource
import stat

import numpy as np
import pytest
from handmade import random_links

from jali.errors import ParameterError
from jali.io import (
    Box,
    open_arrays,
    open_checkpoint,
    open_configuration,
    write_arrays,
    write_checkpoint,
    write_ildg,
    write_nersc,
)
from jali.io.arrays import holds_arrays

LATTICE = (4, 4, 4, 4)
LINKS, OLD = random_links(LATTICE), random_links(LATTICE, seed=1)
WHOLE = Box.whole(LATTICE)

WRITERS = {
    "nersc": lambda path, links: write_nersc(path, links, WHOLE, LATTICE, plaquette=0, link_trace=0),
    "ildg": lambda path, links: write_ildg(path, links, WHOLE, LATTICE),
    "checkpoint": lambda path, links: write_checkpoint(path, LATTICE, WHOLE, {"U": links, "V": links}),
    "npy": lambda path, links: write_arrays(path, "npy", LATTICE, WHOLE, {"U": links}, {}),
    "hdf5": lambda path, links: write_arrays(path, "hdf5", LATTICE, WHOLE, {"U": links, "V": links}, {}),
}


def read(path) -> np.ndarray:
    if path.is_dir():
        return open_checkpoint(path).read("U")
    if holds_arrays(str(path)):
        file = open_arrays(path)
        return file.read("U" if "U" in file.arrays else "", WHOLE)
    return open_configuration(path).read()


def tree(path) -> list[str]:
    return sorted(str(p) for p in path.rglob("*"))


@pytest.mark.parametrize("name", WRITERS)
def test_new_files_replace_old_ones_and_leave_nothing_else(tmp_path, name) -> None:
    path = tmp_path / "x"
    WRITERS[name](path, OLD)
    WRITERS[name](path, LINKS)
    assert np.array_equal(read(path), LINKS)
    assert os.listdir(tmp_path) == ["x"]
    assert len(tree(tmp_path)) == (1 if name != "checkpoint" else 5)


def write_with_failure(
    monkeypatch, name: str, path, call: str, before_it: int
) -> tuple[bool, OSError | None]:
    """Write while one call of a kind fails, that after `before_it` good ones: (was there one, the writer's
    error).
    """
    real, left = getattr(os, call), before_it

    def failing(*arguments, **options):
        nonlocal left
        if call == "close" and not stat.S_ISREG(os.fstat(arguments[0]).st_mode):
            return real(*arguments, **options)
        left -= 1
        if left == -1:
            if call == "close":
                real(*arguments)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        try:
            WRITERS[name](path, LINKS)
        except OSError as error:
            return True, error
    return left < 0, None


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "replace", "close"])
def test_any_failing_system_call_leaves_the_old_file(tmp_path, monkeypatch, name, call) -> None:
    """The first, second, ... call of the kind fails, until the writer makes no further one."""
    path = tmp_path / "x"
    for good_calls in itertools.count():
        WRITERS[name](path, OLD)
        before = tree(tmp_path)
        failed, error = write_with_failure(monkeypatch, name, path, call, good_calls)
        if error is None:  # nothing failed, or only what does not matter to the files
            assert np.array_equal(read(path), LINKS)
        else:
            assert error.errno == errno.ENOSPC
            assert re.match(r".*cannot write .*No space left on device", str(error))
            if not np.array_equal(read(path), LINKS):  # else it failed in cleaning up after completion
                assert np.array_equal(read(path), OLD)
                assert tree(tmp_path) == before
        if not failed:
            break
    assert good_calls > 0


@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_fills_up_for_real_is_reported(tmp_path, name) -> None:
    """A limit on file sizes makes the system itself refuse half-way."""
    path = tmp_path / "x"
    WRITERS[name](path, OLD)
    before, limits = tree(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"cannot write .*File too large"):
            WRITERS[name](path, LINKS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert tree(tmp_path) == before
    assert np.array_equal(read(path), OLD)


@pytest.mark.parametrize("name", WRITERS)
def test_a_directory_without_permission_is_reported(tmp_path, name) -> None:
    if os.geteuid() == 0:
        pytest.skip("the superuser may write everywhere")
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(PermissionError, match=r"cannot write .*Permission denied"):
            WRITERS[name](tmp_path / "x", LINKS)
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("name", WRITERS)
def test_a_read_only_file_system_is_reported(tmp_path, monkeypatch, name) -> None:
    real_open, real_mkdir = os.open, os.mkdir

    def refuse(path, flags, *rest, **options):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real_open(path, flags, *rest, **options)

    def refuse_directory(path, *rest, **options):
        if str(path).startswith(str(tmp_path)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real_mkdir(path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        patch.setattr(os, "mkdir", refuse_directory)
        with pytest.raises(OSError, match=r"cannot write .*Read-only file system"):
            WRITERS[name](tmp_path / "x", LINKS)
    assert tree(tmp_path) == []


@pytest.mark.parametrize("name", ["nersc", "ildg", "npy", "hdf5"])
def test_missing_directories_and_names_of_directories_are_refused(tmp_path, name) -> None:
    with pytest.raises(FileNotFoundError, match="cannot write"):
        WRITERS[name](tmp_path / "missing" / "x", LINKS)
    with pytest.raises(ParameterError, match="not a regular file"):
        WRITERS[name](tmp_path, LINKS)


def test_a_checkpoint_does_not_replace_a_file(tmp_path) -> None:
    (tmp_path / "x").write_text("precious")
    with pytest.raises(ParameterError, match="not a directory"):
        WRITERS["checkpoint"](tmp_path / "x", LINKS)
    assert (tmp_path / "x").read_text() == "precious"


def test_a_link_to_a_file_stays_a_link(tmp_path) -> None:
    (tmp_path / "there").mkdir()
    path = tmp_path / "x"
    path.symlink_to(tmp_path / "there" / "y")
    WRITERS["ildg"](path, LINKS)
    assert path.is_symlink()
    assert np.array_equal(read(tmp_path / "there" / "y"), LINKS)


@pytest.mark.short(2)
@pytest.mark.parametrize("name", WRITERS)
def test_a_process_killed_at_any_system_call_leaves_the_old_or_the_new_file(tmp_path, name) -> None:
    path = tmp_path / "x"
    WRITERS[name](path, OLD)
    seen, kills = set(), 0
    while True:
        child = os.fork()
        if child == 0:
            _write_until_killed(path, name, kills)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
        kills += 1
        seen.add("new" if np.array_equal(read(path), LINKS) else "old")
        if "new" not in seen:
            assert np.array_equal(read(path), OLD)
    assert kills > 5
    assert "old" in seen
    assert np.array_equal(read(path), LINKS)
    if name == "checkpoint":  # what the killed writers left is gone
        assert len(list(path.iterdir())) == 2


def _write_until_killed(path, name: str, calls: int) -> None:
    """Write in a child process that dies at the given system call, or exits with 0."""

    def dying(real):
        def call_or_die(*arguments, **options):
            nonlocal calls
            calls -= 1
            if calls < 0:
                os._exit(9)
            return real(*arguments, **options)

        return call_or_die

    for call in ("open", "pwrite", "fsync", "replace", "close", "mkdir", "unlink", "rmdir"):
        setattr(os, call, dying(getattr(os, call)))
    status = 1
    try:
        WRITERS[name](path, LINKS)
        status = 0
    finally:
        os._exit(status)
