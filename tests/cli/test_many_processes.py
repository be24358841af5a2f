"""Verbs in many processes: who starts them, who is heard, and what ends the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import typer

from vitrail.cli import openmp
from vitrail.cli.many_processes import joined_processes, start_processes
from vitrail.errors import InputError
from vitrail.training.processes import ALONE, Processes, current


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    from vitrail.scale import launching

    seen: list[Any] = []

    def launch(count: int, arguments: list[str], log: Any, *, threads: int | None) -> int:
        seen.append((count, arguments, threads))
        return 143

    monkeypatch.setattr(launching, "launch", launch)
    monkeypatch.setattr(sys, "argv", ["vitrail", "train", "photos", "--processes", "3"])
    monkeypatch.setattr(openmp, "ours", {})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return seen


def started(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))


def test_the_very_command_is_started_and_ends_as_it_ends(launched: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["-m", "vitrail", "train", "photos", "--processes", "3"]
    for threads, expected in (("", None), ("2", 2)):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        with pytest.raises(typer.Exit) as end:
            start_processes(3)
        assert end.value.exit_code == 143
        assert launched.pop() == (3, command, expected)
    monkeypatch.setattr(openmp, "ours", {"OMP_NUM_THREADS": "2"})  # chosen for one process, by us
    with pytest.raises(typer.Exit):
        start_processes(3)
    assert launched.pop()[2] is None


def test_one_process_and_those_of_a_launcher_start_no_others(
    launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    start_processes(1)
    started(monkeypatch, 0, 3)
    start_processes(3)
    assert launched == []
    with joined_processes(1, needed=False):
        assert current() is ALONE


def test_what_one_can_do_alone_the_others_leave_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, 1, 2)
    with pytest.raises(typer.Exit) as end, joined_processes(1, needed=False):
        pytest.fail("the second process has nothing to do")
    assert end.value.exit_code == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_is_heard(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started(monkeypatch, rank, 2)
    mine = Processes()
    mine.rank, mine.world = rank, 2

    @contextmanager
    def joined() -> Iterator[Processes]:
        yield mine

    monkeypatch.setattr("vitrail.scale.joined", joined)
    with joined_processes(2):
        print("out")
        print("err", file=sys.stderr)
    print("after")
    heard = capsys.readouterr()
    assert (heard.out, heard.err) == (("after\n", "") if rank else ("out\nafter\n", "err\n"))
    with (
        pytest.raises(InputError, match="--processes 4, and 2 were started: leave --processes out"),
        joined_processes(4),
    ):
        pytest.fail("as many as were asked for are not there")
    assert "RANK" in os.environ
