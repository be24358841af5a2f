"""TensorBoard's events say what the log says, no more and no less."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from training import tiny
from vitrail.errors import MissingExtraError
from vitrail.training import train
from vitrail.training.job import Callbacks
from vitrail.training.loop import fit
from vitrail.training.record import Record
from vitrail.training.tensorboard import SCALARS, TensorBoardLog, with_tensorboard

accumulator: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def _read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def _logged(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for row in Record(folder / "metrics.jsonl").rows():
        for name, tag in SCALARS[row["event"]].items():
            if name in row:
                found.setdefault(tag, []).append((row["step"], pytest.approx(row[name], rel=1e-6)))
    return found


@pytest.mark.row("001.11")
def test_every_row_of_the_log_is_a_scalar(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 12)
    fit(replace(job, callbacks=with_tensorboard(Callbacks(), tmp_path)))
    found = _read(tmp_path / "tensorboard")
    assert found == _logged(tmp_path)
    assert {"train/loss", "train/lr", "val/loss", "val/score", "epoch/loss"} <= set(found)


def test_what_the_log_takes_back_is_taken_back(tmp_path: Path) -> None:
    fit(tiny.job(tmp_path, 12))
    board, log = TensorBoardLog(tmp_path), Record(tmp_path / "metrics.jsonl")
    board.update()
    first = len((tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)[0])
    log.cut(first)
    log.add(event="rollback", step=0, rate=0.5, why="a test")
    board.update()
    assert _read(tmp_path / "tensorboard") == _logged(tmp_path)


def test_rows_that_came_again_otherwise_replace_the_first(tmp_path: Path) -> None:
    fit(tiny.job(tmp_path, 12))
    path = tmp_path / "metrics.jsonl"
    board, log = TensorBoardLog(tmp_path), Record(path)
    board.update()
    log.cut(len(path.read_text().splitlines(keepends=True)[0]))
    log.add(event="rollback", step=0, rate=0.5, why="a test")
    for step in range(1, 30):  # longer than it was
        log.add(event="step", step=step, loss=0.25, lr=1e-3)
    board.update()
    assert _read(tmp_path / "tensorboard") == _logged(tmp_path)


@pytest.mark.row("001.11")
def test_without_the_library_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"vitrail\[tensorboard\]"):
        train(tiny.make_images(), tensorboard=True, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
