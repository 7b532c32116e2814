"""Descriptors of device memory between processes: who gives them, who gets them, and that nobody keeps others waiting."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from jali import _core
from jali.errors import DeviceError

TEXT = b"what the descriptor stands for"


@pytest.fixture
def exporter() -> Iterator[_core.FdExporter]:
    """Of a file with TEXT and one of 3 bytes."""
    files = [os.memfd_create("shared"), os.memfd_create("small")]
    os.write(files[0], TEXT)
    os.write(files[1], b"abc")
    yield _core.FdExporter([(files[0], len(TEXT)), (files[1], 3)])
    for file in files:
        os.close(file)


def contents(token: tuple[int, ...]) -> list[bytes]:
    """Fetches, reads and closes."""
    read = []
    for descriptor, size in _core.fetch_descriptors(token):
        read.append(os.pread(descriptor, size, 0))
        os.close(descriptor)
    return read


def address(name: int) -> bytes:
    return b"\0jali-descriptors-%016x" % name


def test_other_process_reads_what_is_exported(exporter: _core.FdExporter) -> None:
    assert contents(exporter.token) == [TEXT, b"abc"]
    program = f"""
import os
from jali import _core
print([os.pread(d, n, 0) for d, n in _core.fetch_descriptors({exporter.token!r})])
"""
    reported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert reported.stdout.strip() == str([TEXT, b"abc"])


def test_wrong_secret_and_dropped_exporter_give_nothing(exporter: _core.FdExporter) -> None:
    process, name, secret, number, where = exporter.token
    with pytest.raises(DeviceError, match="hung up"):
        contents((process, name, secret ^ 1, number, where))
    with pytest.raises(DeviceError, match="not exported any more"):
        contents((process, name, secret, number + 1000, where))


def test_idle_connections_keep_nobody_waiting(exporter: _core.FdExporter) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(150):  # more than are let in at once
            idle = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            idle.connect(address(exporter.token[1]))
        start = time.monotonic()
        assert contents(exporter.token) == [TEXT, b"abc"]
        assert time.monotonic() - start < 5  # one after the other, each would take 2 s


def test_client_that_takes_nothing_keeps_nobody_waiting(exporter: _core.FdExporter) -> None:
    files = [(os.memfd_create("many"), 1) for _ in range(200)]
    many = _core.FdExporter(files)
    _, name, secret, number, _ = many.token
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            greedy = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            greedy.connect(address(name))
            greedy.send(secret.to_bytes(8, sys.byteorder) + number.to_bytes(8, sys.byteorder))
        start = time.monotonic()
        assert contents(exporter.token) == [TEXT, b"abc"]
        assert time.monotonic() - start < 5
    for file, _ in files:
        os.close(file)


def test_a_process_instead_of_the_tokens_is_not_trusted() -> None:
    name = int.from_bytes(os.urandom(8), "big")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as imposter:
        imposter.bind(address(name))
        imposter.listen()
        where = os.stat("/proc/self/ns/pid").st_ino
        with pytest.raises(DeviceError, match=f"process {os.getpid()} answers in its place"):
            contents((1, name, 5, 1, where))
        # nothing was told to it
        client, _ = imposter.accept()
        with client:
            assert client.recv(64) == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_another_user_instead_of_the_tokens_is_not_trusted() -> None:
    name = int.from_bytes(os.urandom(8), "big")
    program = f"""
import os, socket, sys
os.setuid(65533)
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind({address(name)!r})
s.listen()
print("listening", flush=True)
client, _ = s.accept()
print(client.recv(64), flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as imposter:
        assert imposter.stdout is not None
        assert imposter.stdout.readline() == "listening\n"
        with pytest.raises(DeviceError, match=f"user 65533 answers in its place, not user {os.geteuid()}"):
            contents((imposter.pid, name, 5, 1, 0))
        assert imposter.stdout.readline() == "b''\n"  # the secret was not told
