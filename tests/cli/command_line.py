"""The command line in this process or in one of its own, as the tests of this room type it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from vitrail import cli
from vitrail.cli import load_verbs
from vitrail.evaluation import Score


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        assert self.out.count("\n") == 1, "one JSON object on one line"
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


class Line:
    """The command line, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path) -> Said:
        self.monkeypatch.setattr(sys, "argv", ["vitrail", *map(str, arguments)])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        caught = self.capsys.readouterr()
        assert isinstance(stopped.value.code, int)
        return Said(stopped.value.code, caught.out, caught.err)

    def mistake(self, *arguments: str | Path) -> str:
        """What a mistake of the user leaves: exit code 2 and one line on stderr, nothing on stdout."""
        said = self(*arguments)
        assert (said.code, said.out) == (2, ""), said
        assert said.err.startswith("vitrail: ")
        assert said.err.count("\n") == 1
        assert said.err.endswith("\n")
        return said.err.removeprefix("vitrail: ").rstrip("\n")


def process(*arguments: str | Path, stderr_to_stdout: bool = False, **more: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "vitrail", *map(str, arguments)]
    errors = subprocess.STDOUT if stderr_to_stdout else subprocess.PIPE
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, timeout=600, check=False, **more)


def run_of(score: float = 0.5, seed: int = 0, caveat: str = "") -> Any:
    """A finished run, as the verbs see it."""
    about = {
        "steps": 1,
        "seconds": 1.0,
        "resumed": False,
        "best_epoch": None,
        "best": Path("best"),
        "folder": Path(f"run-{seed}"),
    }
    evaluation = SimpleNamespace(caveat=caveat, unlike_words="", scores={"top1": Score(score, 0.0, 1.0)}, split="test")
    return SimpleNamespace(
        evaluation=evaluation, stages=(), plan=SimpleNamespace(seed=seed), to_dict=lambda: {"seed": seed}, **about
    )


def typed(*words: object) -> str:
    ran = CliRunner().invoke(load_verbs(), [str(each) for each in words])
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return ran.stdout
