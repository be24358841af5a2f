"""States of a run: whole or not there; damage is found, always, and passed over."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest
import torch

from vitrail.errors import CheckpointError
from vitrail.training import state as saving
from vitrail.training.state import State, clean, forget_later, read_epoch, read_newest, read_state, write_state


def made(step: int, rollbacks: int = 0, epoch_end: bool = False) -> State:
    torch.manual_seed(step)
    tensors = {"a": torch.randn(4, 5), "steps": torch.tensor(step), "half": torch.randn(3).bfloat16()}
    return State(tensors, {"step": step, "rollbacks": rollbacks, "epoch_end": epoch_end, "loss": 0.1 + step})


def same(one: State, other: State) -> bool:
    names = one.tensors.keys() == other.tensors.keys() and dict(one.facts) == dict(other.facts)
    return names and all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)


def silent(text: str) -> None:
    raise AssertionError(f"nothing should be told: {text}")


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    written = made(7)
    size = write_state(tmp_path, written)
    [path] = tmp_path.glob("*.state")
    assert path.stat().st_size == size
    found = read_newest(tmp_path, silent)
    assert found is not None
    assert same(found, written)
    assert found.tensors["half"].dtype == torch.bfloat16
    assert read_newest(tmp_path / "nowhere", silent) is None


@pytest.mark.fault("T19")
def test_the_newest_is_the_one_of_most_rollbacks_and_steps_not_of_the_latest_time(tmp_path: Path) -> None:
    write_state(tmp_path, made(10))
    write_state(tmp_path, made(9))
    for path in tmp_path.glob("*s000000009*"):
        os.utime(path, (4e9, 4e9))
    found = read_newest(tmp_path, silent)
    assert found is not None
    assert found.facts["step"] == 10
    write_state(tmp_path, made(3, rollbacks=1))
    found = read_newest(tmp_path, silent)
    assert found is not None
    assert (found.facts["rollbacks"], found.facts["step"]) == (1, 3)


def test_only_what_may_be_needed_is_kept(tmp_path: Path) -> None:
    for step in range(12):
        write_state(tmp_path, made(step, epoch_end=step % 4 == 0))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [
        "r000-s000000004-epoch.state",
        "r000-s000000008-epoch.state",
        "r000-s000000010.state",
        "r000-s000000011.state",
    ]
    found = read_epoch(tmp_path, silent)
    assert found is not None
    assert found.facts["step"] == 8


@pytest.mark.fault("T8")
def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    write_state(tmp_path, made(1))
    write_state(tmp_path, made(2))
    path = tmp_path / "r000-s000000002.state"
    whole = path.read_bytes()
    dice = random.Random(1)
    for _ in range(1000):
        place, bit = dice.randrange(len(whole)), dice.randrange(8)
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        told: list[str] = []
        found = read_newest(tmp_path, told.append)
        assert found is not None
        assert found.facts["step"] == 1, f"bit {bit} of byte {place}"
        assert len(told) == 1
        assert "falling back" in told[0]


@pytest.mark.fault("T7")
def test_every_truncation_is_found(tmp_path: Path) -> None:
    write_state(tmp_path, made(1))
    write_state(tmp_path, made(2))
    path = tmp_path / "r000-s000000002.state"
    whole = path.read_bytes()
    dice = random.Random(2)
    lengths = [len(whole) * tenth // 10 for tenth in range(10)] + [dice.randrange(len(whole)) for _ in range(990)]
    for length in lengths:
        path.write_bytes(whole[:length])
        told: list[str] = []
        found = read_newest(tmp_path, told.append)
        assert found is not None
        assert found.facts["step"] == 1, f"cut to {length} bytes"
        assert len(told) == 1


@pytest.mark.fault("T9")
@pytest.mark.parametrize("kind", ["empty", "folder", "link", "dangling link", "pipe"])
def test_something_else_in_place_of_a_state(tmp_path: Path, kind: str) -> None:
    write_state(tmp_path, made(1))
    path = tmp_path / "r000-s000000002.state"
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
        (path / "inside").write_text("kept")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / ("r000-s000000001.state" if kind == "link" else "nowhere"))
    told: list[str] = []
    found = read_newest(tmp_path, told.append)
    assert found is not None
    assert found.facts["step"] == 1
    assert len(told) == 1
    write_state(tmp_path, made(2))  # its rightful owner takes the name back
    assert same(read_state(path), made(2))
    if kind == "folder":
        assert (path.with_suffix(".aside") / "inside").read_text() == "kept"
    if kind == "link":
        assert same(read_state(tmp_path / "r000-s000000001.state"), made(1))


def test_no_state_left_whole_is_an_error_not_a_new_start(tmp_path: Path) -> None:
    write_state(tmp_path, made(1))
    next(tmp_path.glob("*.state")).write_bytes(b"x")
    told: list[str] = []
    with pytest.raises(CheckpointError, match="none of the 1 states .* can be read: start anew"):
        read_newest(tmp_path, told.append)
    assert len(told) == 1


@pytest.mark.fault("T10")
def test_leftovers_of_killed_saves_are_ignored_and_removed(tmp_path: Path) -> None:
    write_state(tmp_path, made(1))
    (tmp_path / ".r000-s000000009.state.tmp").write_bytes(b"half a state")
    found = read_newest(tmp_path, silent)
    assert found is not None
    assert found.facts["step"] == 1
    clean(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["r000-s000000001.state"]


@pytest.mark.fault("T5")
def test_a_full_disk_leaves_the_state_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(tmp_path, made(1))

    def full(point: str) -> None:
        if point == "mid-write":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "reached", full)
    with pytest.raises(CheckpointError, match=r"s000000002.state \([\d,]+ bytes needed\): No space left on device"):
        write_state(tmp_path, made(2))
    assert [path.name for path in tmp_path.iterdir()] == ["r000-s000000001.state"]


def test_older_states_go_only_when_the_new_one_is_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        write_state(tmp_path, made(step))
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(saving, "reached", lambda point: seen.append((point, len(list(tmp_path.glob("r*.state"))))))
    write_state(tmp_path, made(3))
    assert seen == [
        ("before-write", 2),
        ("mid-write", 2),
        ("written", 2),
        ("synced", 2),
        ("renamed", 3),
        ("verified", 3),
        ("pruning", 3),
    ]


def test_what_does_not_read_back_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(tmp_path, made(1))

    def rot(point: str) -> None:
        if point == "renamed":
            path = tmp_path / "r000-s000000002.state"
            raw = bytearray(path.read_bytes())
            raw[100] ^= 1
            path.write_bytes(raw)

    monkeypatch.setattr(saving, "reached", rot)
    with pytest.raises(CheckpointError, match="its checksum is wrong"):
        write_state(tmp_path, made(2))
    assert (tmp_path / "r000-s000000001.state").exists()


def test_a_state_lasts_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power may fail at any moment: all of the file is synced before it has its name, and then the folder."""
    events: list[tuple[str, str, int]] = []
    fsync, replace, sync = os.fsync, os.replace, saving.sync_folder

    def synced(number: int) -> None:
        events.append(("fsync", Path(os.readlink(f"/proc/self/fd/{number}")).name, os.fstat(number).st_size))
        fsync(number)

    def renamed(old: Path, new: Path) -> None:
        events.append(("rename", Path(new).name, Path(old).stat().st_size))
        replace(old, new)

    def folder_synced(folder: Path) -> None:
        events.append(("folder", folder.name, len(list(folder.glob("r*.state")))))
        with monkeypatch.context() as inner:
            inner.setattr(os, "fsync", fsync)
            sync(folder)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(saving, "sync_folder", folder_synced)
    size = write_state(tmp_path, made(2))
    name = "r000-s000000002.state"
    assert events == [("fsync", f".{name}.tmp", size), ("rename", name, size), ("folder", tmp_path.name, 1)]


def test_what_a_rollback_undoes_is_forgotten_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (4, 8, 12):
        write_state(tmp_path, made(step, epoch_end=True))
    write_state(tmp_path, made(4, rollbacks=1, epoch_end=True))
    folders: list[Path] = []
    monkeypatch.setattr(saving, "sync_folder", folders.append)
    forget_later(tmp_path, 1, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["r001-s000000004-epoch.state"]
    assert folders == [tmp_path]


def test_the_newest_of_two_states_of_one_step_is_the_end_of_the_epoch(tmp_path: Path) -> None:
    write_state(tmp_path, made(5, epoch_end=True))
    (tmp_path / "r000-s000000005.state").write_bytes((tmp_path / "r000-s000000005-epoch.state").read_bytes()[:-1])
    found = read_newest(tmp_path, silent)  # the damaged one is older, and not looked at
    assert found is not None
    assert found.facts["step"] == 5


def test_a_state_of_another_format_is_passed_over(tmp_path: Path) -> None:
    """With a checksum that is right: only its mark tells."""
    write_state(tmp_path, made(1))
    path = tmp_path / "r000-s000000001.state"
    body = path.read_bytes()[: -saving.DIGEST].replace(saving.MARK, b"VITRAIL STATE 9\n", 1)
    path.write_bytes(body + hashlib.sha256(body).digest())
    with pytest.raises(CheckpointError, match="damaged"):
        read_state(path)
