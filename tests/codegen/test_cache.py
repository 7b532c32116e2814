"""The kernel cache: what makes a kernel new, who may use the cache, and what happens when something is in the way."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import TESTS, run_python

import jali
from jali.codegen import cache, compiler
from jali.errors import CompileError

TEXT = """
extern "C" __attribute__((visibility("default"))) void kernel(const uint64_t* w, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ((double*)w[0])[i] = NUMBER;  // REMARK
}
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("JALI_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def text(number: float = 1.0, remark: str = "") -> str:
    return TEXT.replace("NUMBER", repr(number)).replace("REMARK", remark)


def objects(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.glob("*.so"))


def test_second_load_does_not_compile(directory, monkeypatch):
    address, source = cache.load("probe", text(), 4, "float64")
    assert address
    assert source.read_text().count("kernel(") == 1
    monkeypatch.setattr(compiler.Compiler, "compile", lambda *_: pytest.fail("compiled again"))
    assert cache.load("probe", text(), 4, "float64") == (address, source)


def test_comments_do_not_make_another_kernel_but_numbers_lanes_and_precision_do(directory):
    base = cache.kernel_key("probe", text(), 4, "float64")
    assert cache.kernel_key("probe", text(remark="U[3]"), 4, "float64") == base
    others = [
        cache.kernel_key("probe", text(2.0), 4, "float64"),
        cache.kernel_key("probe", text(), 2, "float64"),
        cache.kernel_key("probe", text(), 4, "float32"),
    ]
    assert len({base, *others}) == 4


def test_another_compiler_flag_or_version_makes_another_kernel(directory, monkeypatch):
    base = cache.kernel_key("probe", text(), 4, "float64")
    monkeypatch.setattr(cache.version, "__version__", "999")
    assert cache.kernel_key("probe", text(), 4, "float64") != base
    monkeypatch.undo()
    monkeypatch.setenv("CXX", "g++ -O1" if shutil.which("g++") else "c++ -O1")
    assert cache.kernel_key("probe", text(), 4, "float64") != base


def test_edited_source_is_compiled_and_used(directory):
    field = run_constant(directory, 3.0)
    (source,) = directory.glob("*constant*.cpp")
    later = time.time() + 10
    source.write_text(source.read_text().replace("3.0", "4.5"))
    os.utime(source, (later, later))
    code = "import pathlib, sys, test_cache as t; print(t.run_constant(pathlib.Path(sys.argv[1]), 3.0))"
    environment = {**os.environ, "JALI_CACHE_DIR": str(directory)}
    done = run_python(code, directory, env=environment, path=[Path(__file__).parent, TESTS])
    assert field == 3.0
    assert done.stdout.split()[-1] == "4.5"


def run_constant(directory: Path, number: float) -> float:
    @jali.site_function
    def constant(X, f):
        f[X] = number

    f = jali.Field(jali.Lattice(4, 4), jali.Real())
    constant(f)
    return float(f[0, 0])


def test_damaged_object_is_made_again(directory):
    # in processes of their own: a loaded object must not change under the feet of the one that has it
    code = (
        "import sys; from jali.codegen import cache; import pathlib; "
        "cache.load('probe', pathlib.Path(sys.argv[1]).read_text(), 4, 'float64')"
    )
    words = directory.parent / "text"
    words.write_text(text(7.0))
    run_python(code, words)
    (shared,) = directory.glob("*.so")
    for damage in (b"", b"not an object"):
        shared.write_bytes(damage)
        run_python(code, words)
        assert shared.stat().st_size > 1000


def test_cache_belongs_to_its_user_alone(directory):
    cache.load("probe", text(), 4, "float64")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o777)
    with pytest.raises(CompileError, match=r"can be written by others \(mode 777\).*chmod 700"):
        cache.cache_directory()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_cache_of_another_user_is_refused(directory):
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, -1)
    with pytest.raises(CompileError, match="belongs to another user"):
        cache.cache_directory()


def test_file_in_place_of_the_cache_is_an_error(directory):
    directory.write_text("in the way")
    with pytest.raises(CompileError, match="JALI_CACHE_DIR"):
        cache.cache_directory()


def test_full_or_read_only_cache_says_so_and_leaves_nothing_behind(directory, monkeypatch):
    cache.cache_directory()

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_write", no_space)
    with pytest.raises(CompileError, match=r"cannot be written: No space left on device.*JALI_CACHE_DIR"):
        cache.load("probe", text(9.0), 4, "float64")
    assert objects(directory) == []


def test_failed_compilation_leaves_no_object_and_shows_the_compilers_words(directory):
    with pytest.raises(CompileError, match=r"rejected a generated kernel[\s\S]*nonsense"):
        cache.load("probe", text().replace("1.0", "nonsense"), 4, "float64")
    assert objects(directory) == []


def test_missing_compiler_names_what_to_install(directory, monkeypatch):
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    with pytest.raises(CompileError, match=r"need a C\+\+ compiler.*apt install g\+\+.*pip install ziglang"):
        cache.load("probe", text(), 4, "float64")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match="CXX is set to 'no-such-compiler'"):
        cache.load("probe", text(), 4, "float64")


def test_processes_that_compile_at_once_share_one_object(directory):
    code = (
        "import sys; from jali.codegen import cache; import pathlib; "
        "print(cache.load('probe', pathlib.Path(sys.argv[1]).read_text(), 4, 'float64')[1])"
    )
    words = directory.parent / "text"
    words.write_text(text(11.0))
    command = [sys.executable, "-c", code, str(words)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ.copy()) for _ in range(4)
    ]
    outputs = [p.communicate()[0] for p in running]
    assert all(p.returncode == 0 for p in running)
    assert len(set(outputs)) == 1
    assert len(objects(directory)) == 1
    assert not [p for p in directory.iterdir() if p.suffix not in (".so", ".cpp", ".hpp")]
