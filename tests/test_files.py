"""Files are read piece by piece and found out when they change; writing is all or nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from vitrail.errors import CheckpointError, InputError
from vitrail.files import ReadOnlyFile, atomic_write, path_text


@pytest.mark.parametrize("wrong", [3, None, b"bytes", "", "a\0b"])
def test_what_is_no_path_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="expected the path of a file or folder of weights, got"):
        path_text(wrong)


def test_pieces_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(100)))
    file = ReadOnlyFile(path)
    assert (file.size, file.name, ReadOnlyFile(path, "mine").name) == (100, str(path), "mine")
    assert file.read(10, 5) == bytes(range(10, 15))
    assert file.read(95, 50) == bytes(range(95, 100))  # fewer where it ends
    assert file.read(200, 5) == b""
    memory = bytearray(4)
    file.fill(memoryview(memory), 96)
    assert memory == bytes(range(96, 100))
    with pytest.raises(CheckpointError, match="was cut short while being read"):
        file.fill(memoryview(bytearray(5)), 96)


def test_it_closes_when_nothing_of_it_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    file = ReadOnlyFile(tmp_path / "x")
    number = file.number
    os.fstat(number)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_file_that_changes_while_it_is_open_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    file = ReadOnlyFile(path)
    os.utime(path, ns=(0, 1))
    with pytest.raises(CheckpointError, match="was changed while being read: load it again"):
        file.read(0, 4)
    os.truncate(path, 5)
    with pytest.raises(CheckpointError, match="was cut short while being read: get the file anew"):
        file.read(0, 4)


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # must not wait for a writer
    for name, message in (("", "is a folder"), ("pipe", "is a pipe or device"), ("none", "no checkpoint .*none")):
        with pytest.raises(CheckpointError, match=message):
            ReadOnlyFile(tmp_path / name)


def test_a_write_takes_the_name_only_when_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    proven: list[str] = []
    with atomic_write(path, lambda each: proven.append(each.read_text())) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert path.read_text() == "old"
    assert (path.read_text(), proven, os.listdir(tmp_path)) == ("new", ["new"], ["x"])


def fail(path: Path) -> None:
    path.write_text("half")
    raise ValueError("no room")


def succeed(path: Path) -> None:
    path.write_text("new")


@pytest.mark.parametrize("write, prove", [(fail, None), (succeed, fail)], ids=["written", "proven"])
def test_after_an_error_the_older_file_stays_alone(tmp_path: Path, write: Any, prove: Any) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(ValueError, match="no room"), atomic_write(path, prove) as temporary:
        write(temporary)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["x"])
