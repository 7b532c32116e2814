"""The kernel cache: what makes a kernel new, who may use the cache, and what happens when something is in the way."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from programs import TESTS, run_python

import jali
from jali import settings
from jali.codegen import compiler, kernel_cache
from jali.errors import CompileError

TEXT = """
extern "C" __attribute__((visibility("default"))) void kernel(const uint64_t* w, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ((double*)w[0])[i] = NUMBER;  // REMARK
}
"""


@pytest.fixture
def directory(tmp_path, use_settings):
    use_settings(cache_dir=str(tmp_path / "cache"))
    return tmp_path / "cache"


def text(number: float = 1.0, remark: str = "") -> str:
    return TEXT.replace("NUMBER", repr(number)).replace("REMARK", remark)


def objects(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.glob("*.so"))


def test_second_load_does_not_compile(directory, monkeypatch):
    address, source = kernel_cache.load("probe", text(), 4, "float64")
    assert address
    assert source.read_text().count("kernel(") == 1
    monkeypatch.setattr(compiler.Compiler, "compile", lambda *_: pytest.fail("compiled again"))
    assert kernel_cache.load("probe", text(), 4, "float64") == (address, source)


def test_comments_do_not_make_another_kernel_but_numbers_lanes_and_precision_do(directory):
    base = kernel_cache.kernel_key("probe", text(), 4, "float64")
    assert kernel_cache.kernel_key("probe", text(remark="U[3]"), 4, "float64") == base
    others = [
        kernel_cache.kernel_key("probe", text(2.0), 4, "float64"),
        kernel_cache.kernel_key("probe", text(), 2, "float64"),
        kernel_cache.kernel_key("probe", text(), 4, "float32"),
    ]
    assert len({base, *others}) == 4


def test_another_compiler_flag_or_version_makes_another_kernel(directory, monkeypatch, use_settings):
    base = kernel_cache.kernel_key("probe", text(), 4, "float64")
    monkeypatch.setattr(kernel_cache.version, "__version__", "999")
    assert kernel_cache.kernel_key("probe", text(), 4, "float64") != base
    monkeypatch.undo()
    use_settings(cxx="g++ -O1" if shutil.which("g++") else "c++ -O1")
    assert kernel_cache.kernel_key("probe", text(), 4, "float64") != base


def test_edited_source_is_compiled_and_used(directory):
    field = run_constant(directory, 3.0)
    (source,) = directory.glob("*constant*.cpp")
    later = time.time() + 10
    source.write_text(source.read_text().replace("3.0", "4.5"))
    os.utime(source, (later, later))
    done = run_constant_elsewhere(directory)
    assert field == 3.0
    assert done.stdout.split()[-1] == "4.5"
    assert f"{source} was edited and is used as it is" in done.stderr


def run_constant_elsewhere(directory: Path) -> subprocess.CompletedProcess[str]:
    code = "import pathlib, sys, test_cache as t; print(t.run_constant(pathlib.Path(sys.argv[1]), 3.0))"
    environment = {**os.environ, "JALI_CACHE_DIR": str(directory)}
    return run_python(code, directory, env=environment, path=[Path(__file__).parent, TESTS])


def run_constant(directory: Path, number: float) -> float:
    @jali.site_function
    def constant(X, f):
        f[X] = number

    f = jali.Field(jali.Lattice(4, 4), jali.Real())
    constant(f)
    return float(f[0, 0])


def changed(path: Path, contents: bytes) -> None:
    """Other contents under the same name and date, in another file: this process may have loaded the old one."""
    date = path.stat().st_mtime_ns
    path.unlink()
    path.write_bytes(contents)
    os.utime(path, ns=(date, date))


def flipped(contents: bytes, at: int) -> bytes:
    return contents[:at] + bytes([contents[at] ^ 4]) + contents[at + 1 :]


DAMAGES = {
    "empty": lambda whole: b"",
    "something else": lambda whole: b"not an object",
    "truncated": lambda whole: whole[: len(whole) // 2],
    "without its last byte": lambda whole: whole[:-1],
    "one bit of the code": lambda whole: flipped(whole, len(whole) // 2),
    "one bit of the digest": lambda whole: flipped(whole, len(whole) - 20),
    "without a digest": lambda whole: whole[:-72],
}


@pytest.mark.short(2)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_object_is_made_again_with_a_warning_that_names_it(damage, directory, monkeypatch):
    _, source = kernel_cache.load("probe", text(7.0), 4, "float64")
    shared = source.with_suffix(".so")
    whole = shared.read_bytes()
    changed(shared, DAMAGES[damage](whole))
    monkeypatch.setattr(kernel_cache, "_loaded", {})
    with pytest.warns(RuntimeWarning, match=rf"{shared.name} is damaged \(.*it is made again"):
        kernel_cache.load("probe", text(7.0), 4, "float64")
    assert shared.read_bytes() == whole


def test_object_of_another_kernel_is_not_taken_for_this_one(directory, monkeypatch):
    one, other = (kernel_cache.load("probe", text(x), 4, "float64")[1].with_suffix(".so") for x in (1.0, 2.0))
    whole = one.read_bytes()
    changed(one, other.read_bytes())
    monkeypatch.setattr(kernel_cache, "_loaded", {})
    with pytest.warns(RuntimeWarning, match="its digest is that of other contents"):
        kernel_cache.load("probe", text(1.0), 4, "float64")
    assert one.read_bytes() == whole


def test_program_that_meets_a_truncated_library_computes_what_it_should(directory):
    assert run_constant(directory, 3.0) == 3.0
    (shared,) = directory.glob("*constant*.so")
    changed(shared, shared.read_bytes()[:5000])
    done = run_constant_elsewhere(directory)
    assert done.stdout.split()[-1] == "3.0"
    assert f"{shared} is damaged" in done.stderr


def test_damaged_prelude_is_written_anew_before_it_is_compiled(directory, monkeypatch):
    kernel_cache.load("probe", text(7.0), 4, "float64")
    (prelude,) = directory.glob("*.hpp")
    whole = prelude.read_bytes()
    for damage in (whole[: len(whole) // 2], flipped(whole, len(whole) // 3), b""):
        prelude.write_bytes(damage)
        with pytest.warns(RuntimeWarning, match=f"{prelude.name} is damaged"):
            kernel_cache.load("probe", text(float(len(damage))), 4, "float64")
        assert prelude.read_bytes() == whole


def test_truncated_source_is_put_aside_and_written_anew(directory, monkeypatch):
    _, source = kernel_cache.load("probe", text(7.0), 4, "float64")
    whole = source.read_text()
    # cut off where it still is C++, and its object gone
    source.write_text(whole[: whole.index("for (")] + "}\n")
    source.with_suffix(".so").unlink()
    monkeypatch.setattr(kernel_cache, "_loaded", {})
    with pytest.warns(RuntimeWarning, match=f"{source.name} is damaged .*last line"):
        kernel_cache.load("probe", text(7.0), 4, "float64")
    assert source.read_text() == whole
    assert "for (" not in source.with_name(f"{source.name}.damaged").read_text()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.short(2)
@pytest.mark.parametrize("instead", [pipe, endless_device])
@pytest.mark.parametrize("pattern", ["probe-*.so", "probe-*.cpp", "prelude-*.hpp"])
def test_what_is_no_file_is_neither_waited_for_nor_read_without_end(instead, pattern, directory, monkeypatch):
    _, source = kernel_cache.load("probe", text(), 4, "float64")
    (path,) = directory.glob(pattern)
    path.unlink()
    instead(path)
    if path.suffix != ".so":
        source.with_suffix(".so").unlink()
    monkeypatch.setattr(kernel_cache, "_loaded", {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert kernel_cache.load("probe", text(), 4, "float64")[1] == source
    assert path.is_file()
    assert not path.is_symlink()


def test_source_of_another_kernel_is_not_taken_for_an_edited_one(directory, monkeypatch):
    _, source = kernel_cache.load("probe", text(), 4, "float64")
    kernel = source.read_text()
    _, other = kernel_cache.load("probe", text(2.0), 4, "float64")
    later = time.time() + 10
    shutil.copy(other, source)
    os.utime(source, (later, later))
    monkeypatch.setattr(kernel_cache, "_loaded", {})
    with pytest.warns(RuntimeWarning, match="its last line is missing"):
        kernel_cache.load("probe", text(), 4, "float64")
    assert source.read_text() == kernel


def test_nobody_else_may_write_what_the_cache_holds_whatever_the_umask(directory):
    directory.mkdir(mode=0o755)
    before = os.umask(0)
    try:
        kernel_cache.load("probe", text(), 4, "float64")
    finally:
        os.umask(before)
    files = list(directory.iterdir())
    assert len(files) == 3
    assert [file.name for file in files if file.stat().st_mode & 0o022] == []


@pytest.mark.parametrize("pattern", ["probe-*.so", "probe-*.cpp", "prelude-*.hpp"])
def test_what_others_may_write_is_made_again(pattern, directory, monkeypatch):
    _, source = kernel_cache.load("probe", text(), 4, "float64")
    (path,) = directory.glob(pattern)
    path.chmod(0o777)
    if path.suffix != ".so":
        source.with_suffix(".so").unlink()
    monkeypatch.setattr(kernel_cache, "_loaded", {})
    with pytest.warns(RuntimeWarning, match="it can be written by others"):
        kernel_cache.load("probe", text(), 4, "float64")
    assert path.stat().st_mode & 0o022 == 0


def test_pipe_in_place_of_a_lock_is_an_error(directory):
    name = kernel_cache.kernel_key("probe", text(), 4, "float64")
    directory.mkdir(mode=0o700)
    os.mkfifo(directory / f"{name}.lock")
    with pytest.raises(CompileError, match="cannot be written"):
        kernel_cache.load("probe", text(), 4, "float64")


def test_source_edited_while_it_is_compiled_is_compiled_again(directory, monkeypatch, use_settings):
    compile_as_ever = compiler.Compiler.compile

    def edited_meanwhile(self, source, output, include):
        compile_as_ever(self, source, output, include)
        source.write_text(source.read_text().replace("7.0", "8.0"))

    monkeypatch.setattr(compiler.Compiler, "compile", edited_meanwhile)
    kernel_cache.load("probe", text(7.0), 4, "float64")
    monkeypatch.undo()
    use_settings(cache_dir=str(directory))
    monkeypatch.setattr(kernel_cache, "_loaded", {})
    with pytest.warns(RuntimeWarning, match="was edited and is used as it is"):
        kernel_cache.load("probe", text(7.0), 4, "float64")


def test_what_killed_processes_left_behind_is_removed(directory):
    kernel_cache.cache_directory()
    key = kernel_cache.kernel_key("probe", text(5.0), 4, "float64")
    left = [directory / f".{key}.so.0123456789ab", directory / f"{key}.lock"]
    for path in left:
        path.write_bytes(b"half of an object")
    kernel_cache.load("probe", text(5.0), 4, "float64")
    assert not any(path.exists() for path in left)


def test_cache_on_a_file_system_without_execution_says_so(directory, monkeypatch):
    def refuse(name, *_):
        raise OSError(f"{name}: failed to map segment from shared object")

    class Mounted:
        f_flag = os.ST_NOEXEC

    monkeypatch.setattr(kernel_cache.ctypes, "CDLL", refuse)
    monkeypatch.setattr(kernel_cache.os, "statvfs", lambda path: Mounted)
    with pytest.raises(CompileError, match=rf"{directory}: .*mounted noexec .*JALI_CACHE_DIR") as caught:
        kernel_cache.load("probe", text(13.0), 4, "float64")
    assert "\n" not in str(caught.value)


def test_object_that_cannot_be_loaded_is_made_again_once(directory, monkeypatch):
    def refuse(name, *_):
        raise OSError(f"{name}: version `GLIBC_9' not found")

    monkeypatch.setattr(kernel_cache.ctypes, "CDLL", refuse)
    with (
        pytest.warns(RuntimeWarning, match="cannot be loaded .*it is made again"),
        pytest.raises(CompileError, match="cannot be loaded, nor when made anew: .*GLIBC_9"),
    ):
        kernel_cache.load("probe", text(13.0), 4, "float64")


def test_a_user_without_a_home_gets_an_error_that_asks_for_a_directory(monkeypatch, use_settings, tmp_path):
    monkeypatch.chdir(tmp_path)
    use_settings(cache_dir=None, xdg_cache_home=None, home="nowhere")
    with pytest.raises(CompileError, match="no home directory .*JALI_CACHE_DIR"):
        kernel_cache.cache_directory()
    assert list(tmp_path.iterdir()) == []


def test_cache_belongs_to_its_user_alone(directory):
    kernel_cache.load("probe", text(), 4, "float64")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o777)
    with pytest.raises(CompileError, match=r"can be written by others \(mode 777\).*chmod 700"):
        kernel_cache.cache_directory()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_cache_of_another_user_is_refused(directory):
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, -1)
    with pytest.raises(CompileError, match="belongs to another user"):
        kernel_cache.cache_directory()


def test_file_in_place_of_the_cache_is_an_error(directory):
    directory.write_text("in the way")
    with pytest.raises(CompileError, match="JALI_CACHE_DIR"):
        kernel_cache.cache_directory()


def limited(what: str, directory: Path, bytes_of_files: int) -> subprocess.CompletedProcess[str]:
    """A program that loads a kernel, whose files may have so many bytes only."""
    code = (
        "import resource, sys; from jali.codegen import kernel_cache, compiler; compiler.find_compiler(); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_of_files}, {bytes_of_files})); "
        "kernel_cache.load('probe', sys.argv[1], 4, 'float64')"
    )
    environment = {**settings.environment(), "JALI_CACHE_DIR": str(directory)}
    return subprocess.run([sys.executable, "-c", code, what], capture_output=True, text=True, env=environment)


def test_cache_that_takes_no_more_bytes_says_so_and_leaves_nothing_behind(directory):
    done = limited(text(9.0), directory, 100)
    assert re.search(
        rf"CompileError: the kernel cache {directory} cannot be written: File too large; set JALI_CACHE_DIR",
        done.stderr,
    ), done.stderr
    assert [path.name for path in directory.iterdir()] == []


def test_cache_in_which_no_file_can_be_made_says_so(directory):
    directory.mkdir(mode=0o700)
    name = kernel_cache.kernel_key("probe", text(9.0), 4, "float64")
    (directory / f"{name}.lock").mkdir()  # root could write into a directory that is read-only
    with pytest.raises(
        CompileError, match=rf"the kernel cache {directory} cannot be written: Is a directory"
    ):
        kernel_cache.load("probe", text(9.0), 4, "float64")


def test_cache_that_can_only_be_read_is_used_where_all_is_there(directory, monkeypatch):
    _, source = kernel_cache.load("probe", text(), 4, "float64")
    directory.chmod(0o500)
    monkeypatch.setattr(kernel_cache, "_loaded", {})
    monkeypatch.setattr(compiler.Compiler, "compile", lambda *_: pytest.fail("compiled again"))
    assert kernel_cache.load("probe", text(), 4, "float64")[1] == source
    directory.chmod(0o700)


def test_failed_compilation_leaves_no_object_and_shows_the_compilers_words(directory):
    with pytest.raises(CompileError, match=r"rejected a generated kernel[\s\S]*nonsense"):
        kernel_cache.load("probe", text().replace("1.0", "nonsense"), 4, "float64")
    assert objects(directory) == []


def test_missing_compiler_names_what_to_install(directory, monkeypatch, use_settings):
    monkeypatch.setenv("PATH", str(directory))
    use_settings(cxx=None)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    with pytest.raises(CompileError, match=r"need a C\+\+17 compiler, such as g\+\+ 12") as caught:
        kernel_cache.load("probe", text(), 4, "float64")
    for command in (
        "apt install g++",
        "dnf install gcc-c++",
        "conda-forge gxx",
        "pip install ziglang",
        "CXX",
    ):
        assert command in str(caught.value)
    use_settings(cxx="no-such-compiler")
    with pytest.raises(CompileError, match="CXX is set to 'no-such-compiler'"):
        kernel_cache.load("probe", text(), 4, "float64")


def test_processes_that_compile_at_once_share_one_object(directory):
    code = (
        "import sys; from jali.codegen import kernel_cache; import pathlib; "
        "print(kernel_cache.load('probe', pathlib.Path(sys.argv[1]).read_text(), 4, 'float64')[1])"
    )
    words = directory.parent / "text"
    words.write_text(text(11.0))
    command = [sys.executable, "-c", code, str(words)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings.environment())
        for _ in range(4)
    ]
    outputs = [p.communicate()[0] for p in running]
    assert all(p.returncode == 0 for p in running)
    assert len(set(outputs)) == 1
    assert len(objects(directory)) == 1
    assert not [p for p in directory.iterdir() if p.suffix not in (".so", ".cpp", ".hpp")]


NO_LOCKS = """
#include <cerrno>
extern "C" int flock(int, int) { errno = ENOLCK; return -1; }
"""


def test_file_system_without_locks_is_no_error(directory):
    """Some network file systems have none; files still appear complete."""
    library = directory.parent / "no_locks.so"
    code = directory.parent / "no_locks.cpp"
    code.write_text(NO_LOCKS)
    found = compiler.find_compiler()
    subprocess.run([*found.command, "-shared", "-fPIC", "-o", str(library), str(code)], check=True)
    environment = {**settings.environment(), "JALI_CACHE_DIR": str(directory), "LD_PRELOAD": str(library)}
    program = "import sys; from jali.codegen import kernel_cache; kernel_cache.load('probe', sys.argv[1], 4, 'float64')"
    running = [
        subprocess.Popen([sys.executable, "-c", program, text(12.0)], env=environment) for _ in range(3)
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert sorted(path.suffix for path in directory.iterdir()) == [".cpp", ".hpp", ".so"]
