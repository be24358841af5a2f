"""Each call that a system lacks has another way, and that does the same."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitrail import system_calls
from vitrail.system_calls import (
    give_back_large_blocks,
    is_alive,
    lock_file,
    read_at,
    replace_file,
    sync_file,
    sync_folder,
)


@pytest.mark.parametrize("lacks", [(), ("preadv",), ("preadv", "pread")], ids=["Linux", "macOS", "Windows"])
def test_bytes_are_read_at_a_place(lacks: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in lacks:
        monkeypatch.delattr(os, name)
    monkeypatch.setattr(system_calls, "PIECE", 3)
    (tmp_path / "a").write_bytes(bytes(range(10)))
    number = os.open(tmp_path / "a", system_calls.READ)
    memory = bytearray(8)
    got = read_at(number, memoryview(memory), 4)
    assert got == (3 if lacks else 6)
    assert memory[:got] == bytes(range(4, 4 + got))
    assert read_at(number, memoryview(memory), 10) == 0
    os.close(number)


def test_what_is_written_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"a")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    sync_file(tmp_path / "a")
    sync_folder(tmp_path)
    assert len(synced) == 2
    monkeypatch.delattr(os, "O_DIRECTORY")  # as on Windows
    sync_folder(tmp_path)
    assert len(synced) == 2


def test_a_name_is_given_once_the_file_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, pauses, real = [True, True], [], os.replace

    def replace(source: Path, target: Path) -> None:
        if held and held.pop():
            raise PermissionError(errno.EACCES, "it is being used")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(system_calls.time, "sleep", pauses.append)
    (tmp_path / "a").write_bytes(b"a")
    with pytest.raises(PermissionError):
        replace_file(tmp_path / "a", tmp_path / "b")  # elsewhere an error is one
    held[:] = [True, True]
    monkeypatch.setattr(system_calls, "IS_WINDOWS", True)
    replace_file(tmp_path / "a", tmp_path / "b")
    assert pauses == list(system_calls.PAUSES[:2])
    assert (tmp_path / "b").read_bytes() == b"a"
    held[:] = [True] * 20
    with pytest.raises(PermissionError):
        replace_file(tmp_path / "b", tmp_path / "c")


def test_a_file_is_held_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2)]
    assert [lock_file(number) for number in numbers] == [True, False]
    asked: list[Any] = []

    def locking(number: int, kind: int, count: int) -> None:
        asked.append((number, kind, count, os.lseek(number, 0, os.SEEK_CUR)))
        if len(asked) > 1:
            raise PermissionError(errno.EACCES, "held")

    monkeypatch.setattr(system_calls, "_fcntl", None)
    monkeypatch.setattr(system_calls, "_msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking))
    assert [lock_file(number) for number in numbers] == [True, False]
    assert asked == [(number, 2, 1, system_calls.LOCKED_AT) for number in numbers]  # a byte that nobody reads
    for number in numbers:
        os.close(number)


def test_a_process_is_never_ended_by_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert is_alive(os.getpid())
    assert is_alive(1)  # somebody else's, or ours
    assert not is_alive(ended.pid)
    monkeypatch.setattr(system_calls, "IS_WINDOWS", True)
    monkeypatch.setattr(os, "kill", lambda *given: pytest.fail("this ends it"))
    assert is_alive(ended.pid)


def test_large_blocks_go_back_where_the_c_library_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []

    def mallopt(which: int, value: int) -> int:
        told.append((which, value))
        return 1

    monkeypatch.setattr(system_calls.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    assert give_back_large_blocks()
    assert told == [(-3, 1 << 20)]
    monkeypatch.setattr(system_calls.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert not give_back_large_blocks()
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    assert not give_back_large_blocks()
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not give_back_large_blocks()
    assert len(told) == 1
