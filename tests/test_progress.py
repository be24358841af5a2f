"""Bars for who works in Python: late, alone, on stderr, and only where somebody watches."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrail import progress
from vitrail.progress import counting, late_bar

SOURCE = Path(__file__).resolve().parents[1] / "src"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress._Screen, "taken", False)
    yield
    assert progress._Screen.taken is False


def test_nobody_watches_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    with counting(None, None, 3) as done:
        assert done is None
    assert capsys.readouterr() == ("", "")


def test_who_listens_already_gets_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[int] = []
    with counting(told.append, True, 3) as done:
        assert done is not None
        done(2)
    assert told == [2]
    assert capsys.readouterr().err == ""


def test_a_bar_that_is_asked_for_is_drawn_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with counting(None, True, 3) as done:
        assert done is not None
        done(2)
        done(1)
    printed = capsys.readouterr()
    assert printed.err == "\r2/3 images\r3/3 images\r          \r"  # a notebook shows the last of it: nothing
    assert printed.out == ""


def test_a_bar_turns_to_another_thing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A training looks at images, then it takes steps."""
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    with late_bar(True, "steps", None) as bar:
        assert bar is not None
        bar.move(1, 2, thing="images looked at")
        bar.move(1, 5, "loss 0.5", "steps")
        bar.move(2, 5, "loss 0.4", "steps")
    lines = [line.strip() for line in capsys.readouterr().err.split("\r") if line.strip()]
    assert lines == ["1/2 images looked at", "1/5 steps loss 0.5", "2/5 steps loss 0.4"]


def test_one_bar_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    with late_bar(True, "steps", 2) as outer:
        assert outer is not None
        with late_bar(True, "images", 2) as inner:
            assert inner is None
    with late_bar(False, "steps", 2), late_bar(True, "images", 2) as inner:
        assert inner is None  # silence is for all that is called inside


def test_short_work_shows_no_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 1e9)
    with counting(None, True, 3) as done:
        assert done is not None
        done(3)
    assert capsys.readouterr().err == ""


def stumble() -> None:
    with late_bar(True, "images", 2) as bar:
        assert bar is not None
        bar.advance(1)
        raise RuntimeError


def test_an_error_leaves_the_screen_free(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError):
        stumble()
    with late_bar(True, "images", 2) as bar:
        assert bar is not None


AT_A_TERMINAL = """
import sys
from vitrail import progress
progress.PATIENCE = 0.0
import vitrail
from vitrail.data import read_data
data = read_data("vitrail:fashion").part("test").select(range(40))
vitrail.evaluate("vitrail:fashion", data, batch=8, resamples=0, **eval(sys.argv[1]))
"""


@pytest.mark.parametrize("options, drawn", [("{}", True), ("dict(progress=False)", False)])
def test_at_a_terminal_evaluate_shows_a_bar_and_no_wish_is_a_command(options: str, drawn: bool) -> None:
    """stderr is a terminal, as it is for somebody at a prompt."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-c", AT_A_TERMINAL, options]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    printed, _ = run.communicate(timeout=120)
    assert run.returncode == 0, seen
    assert printed == b""
    assert (b"40/40 images" in seen) == drawn
    assert seen == b"" or drawn
