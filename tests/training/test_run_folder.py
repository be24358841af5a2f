"""Run folders: found, made, resumed, locked, and never overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vitrail.errors import CheckpointError, InputError
from vitrail.training import record
from vitrail.training.record import Record
from vitrail.training.run_folder import CONFIG, RESULT, find_run, locked, make_folder, read_json, write_json, write_text


def equal(folder: Path) -> list[str]:
    return []


def other(folder: Path) -> list[str]:
    return ["lr: 0.1 before, 0.2 now"]


def started(folder: Path, finished: bool = False) -> Path:
    write_json(make(folder) / CONFIG, {"plan": {}})
    if finished:
        write_json(folder / RESULT, {})
    return folder


def make(folder: Path) -> Path:
    make_folder(folder)
    return folder


def test_runs_without_a_name_are_numbered_and_never_share_a_folder(tmp_path: Path) -> None:
    assert find_run(tmp_path, "photos", differences=equal) == (tmp_path / "photos-1", False)
    started(tmp_path / "photos-1", finished=True)
    started(tmp_path / "photos-9", finished=True)
    started(tmp_path / "photos-x")
    assert find_run(tmp_path, "photos", differences=equal) == (tmp_path / "photos-10", False)


def test_the_same_command_goes_on_with_its_unfinished_run(tmp_path: Path) -> None:
    started(tmp_path / "photos-1")
    assert find_run(tmp_path, "photos", differences=equal) == (tmp_path / "photos-1", True)
    assert find_run(tmp_path, "photos", differences=other) == (tmp_path / "photos-2", False)
    assert find_run(tmp_path, "photos", fresh=True, differences=equal) == (tmp_path / "photos-2", False)


@pytest.mark.fault("T12")
def test_a_named_run_goes_on_only_as_it_was_started(tmp_path: Path) -> None:
    folder = started(tmp_path / "mine")
    assert find_run(tmp_path, "photos", name="mine", differences=equal) == (folder, True)
    with pytest.raises(InputError, match="started with something else: lr: 0.1 before, 0.2 now. .*--fresh"):
        find_run(tmp_path, "photos", name="mine", differences=other)


def test_a_finished_run_is_refused_and_fresh_moves_it_aside(tmp_path: Path) -> None:
    folder = started(tmp_path / "mine", finished=True)
    with pytest.raises(InputError, match="mine is finished: choose another --name"):
        find_run(tmp_path, "photos", name="mine", differences=equal)
    assert find_run(tmp_path, "photos", name="mine", fresh=True, differences=equal) == (folder, False)
    assert (tmp_path / "mine.old-1" / RESULT).exists()
    assert not folder.exists()


@pytest.mark.parametrize("name", ["../out", "a/b", ".hidden", "", " x", "n\nl", "x" * 200])
def test_names_stay_inside_the_folder_of_runs(tmp_path: Path, name: str) -> None:
    if name:
        with pytest.raises(InputError, match="--name: expected letters"):
            find_run(tmp_path, "photos", name=name, differences=equal)
    else:
        assert find_run(tmp_path, "photos", name=name, differences=equal).folder.name == "photos-1"


@pytest.mark.fault("T20")
def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write to .*file/runs: Not a directory: choose another --out"):
        make_folder(tmp_path / "file" / "runs")


@pytest.mark.fault("T20")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become nobody")
def test_a_folder_of_somebody_else_is_refused_at_once(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom vitrail.training.run_folder import make_folder\n"
        "os.chdir(sys.argv[1]); os.setuid(65534)\n"
        "try:\n    make_folder(Path('runs'))\nexcept ValueError as error:\n    print(error)\n"
    )
    tmp_path.chmod(0o755)
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout == "cannot write to runs: Permission denied: choose another --out\n"


@pytest.mark.fault("T11")
def test_two_trainers_do_not_share_a_folder(tmp_path: Path) -> None:
    program = "import sys, time\nfrom pathlib import Path\nfrom vitrail.training.run_folder import locked\n"
    program += "with locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"is being trained by process {holder.pid}: wait"), locked(tmp_path):
            raise AssertionError("the lock was given twice")
        holder.kill()
        holder.wait()
    with locked(tmp_path):  # a killed process holds nothing
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [1, 2.5, "é"]})
    assert read_json(tmp_path / "a.json") == {"x": [1, 2.5, "é"]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    with pytest.raises(InputError, match=r"could not write .*nowhere/a.json \(12 bytes needed\): No such file"):
        write_json(tmp_path / "nowhere" / "a.json", {"x": 1})
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InputError, match="a.json cannot be read .* damaged"):
        read_json(tmp_path / "a.json")


@pytest.mark.fault("T6")
def test_a_log_is_cut_back_to_what_the_state_knew(tmp_path: Path) -> None:
    log = Record(tmp_path / "metrics.jsonl")
    log.add(event="step", loss=0.1)
    size = log.size
    log.add(event="step", loss=0.2)
    with open(log.path, "ab") as file:
        file.write(b'{"event": "st')  # half a line, as a kill leaves it
    log.cut(size)
    assert log.rows() == [{"event": "step", "loss": 0.1}]
    with pytest.raises(CheckpointError, match=r"has \d+ bytes, expected 1,000: it was changed"):
        log.cut(1000)


def test_what_is_written_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Synced whole before it has its name, then the folder; the log, before a state says how long it is."""
    events: list[tuple[str, str, int]] = []

    def synced(number: int) -> None:
        events.append(("fsync", Path(os.readlink(f"/proc/self/fd/{number}")).name, os.fstat(number).st_size))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(
        "vitrail.files.sync_folder", lambda folder: events.append(("folder", folder.name, len(os.listdir(folder))))
    )
    write_text(tmp_path / "note.txt", "lasting!")
    assert events == [("fsync", f".note.txt.{os.getpid()}.tmp", 8), ("folder", tmp_path.name, 1)]
    log = Record(tmp_path / "metrics.jsonl")
    log.add(event="step")
    events.clear()
    log.sync()
    assert events == [("fsync", "metrics.jsonl", log.size)]


def test_a_row_that_does_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Record(tmp_path / "metrics.jsonl")
    log.add(event="step", loss=0.1)
    true = open

    class Full:
        """A file with room for half a line."""

        def __init__(self, *arguments: Any) -> None:
            self.file = true(*arguments)

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def write(self, line: bytes) -> None:
            self.file.write(line[: len(line) // 2])
            self.file.flush()
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "open", Full, raising=False)
    with pytest.raises(CheckpointError, match=r"could not write .*metrics.jsonl \(\d+ bytes needed\): No space left"):
        log.add(event="step", loss=0.2)
    assert log.rows() == [{"event": "step", "loss": 0.1}]


def test_times_are_those_of_the_last_time_an_epoch_was_trained(tmp_path: Path) -> None:
    path = tmp_path / "times.jsonl"
    assert record.times_of(path) == []
    rows = [
        '{"epoch": 2, "data_seconds": 1.0}',
        '{"epoch": 1, "data_seconds": 2.0}',
        '{"epoch": 2, "data_seconds": 3.0}',
    ]
    path.write_text("\n".join([*rows, '{"epoch": 3, "da']))
    assert record.times_of(path) == [{"epoch": 1, "data_seconds": 2.0}, {"epoch": 2, "data_seconds": 3.0}]


def test_old_runs_are_moved_aside_one_beside_the_other(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        folder = started(tmp_path / "mine", finished=True)
        (folder / "number").write_text(str(number))
        find_run(tmp_path, "photos", name="mine", fresh=True, differences=equal)
    assert [(tmp_path / f"mine.old-{number}" / "number").read_text() for number in (1, 2, 3)] == ["1", "2", "3"]


def test_of_several_unfinished_runs_the_newest_goes_on(tmp_path: Path) -> None:
    for number in (2, 9, 10):
        started(tmp_path / f"photos-{number}")
    assert find_run(tmp_path, "photos", differences=equal) == (tmp_path / "photos-10", True)


def test_a_finished_run_is_taken_as_it_is_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = started(tmp_path / "mine", finished=True)
    assert find_run(tmp_path, "photos", name="mine", finished=True, differences=equal) == (folder, True)
    with pytest.raises(InputError, match="started with something else"):
        find_run(tmp_path, "photos", name="mine", finished=True, differences=other)
