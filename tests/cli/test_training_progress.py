"""What a training says on the terminal while it runs, and at its end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.pseudo_terminal import in_terminal
from vitrail.cli import training_progress
from vitrail.evaluation.results import Score
from vitrail.training.runs import BestEpoch


@pytest.mark.parametrize("epoch, waited, told", [(1, 0.31, True), (1, 0.29, False), (3, 0.31, True), (4, 0.31, False)])
def test_an_epoch_that_waits_for_images_says_what_to_do(
    epoch: int, waited: float, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"epoch": epoch, "loss": 1.0, "val_score": 0.5, "seconds": {"compute": 1 - waited, "data": waited}}
    with training_progress.training_bar() as callbacks:
        callbacks.epoch(row)
    said = capsys.readouterr().err
    assert f"epoch {epoch}: loss 1.000, validation 50.0 %; {1 - waited:.1f} s computing" in said
    assert ("31 % of the time goes into waiting for images: try --cache FOLDER" in said) == told


def run(resumed: bool = False) -> Any:
    """What is shown of a training, and no more of it."""
    scores = {"top1": Score(0.875, 0.8, 0.95), "loss": Score(0.3456, 0.3, 0.4)}
    return SimpleNamespace(
        evaluation=SimpleNamespace(split="test", scores=scores, unlike_words="4 %; promised: 5 %", caveat=""),
        stages=(SimpleNamespace(name="probe", score=Score(0.5, 0.4, 0.6)),),
        steps=12,
        seconds=3.4,
        resumed=resumed,
        best_epoch=BestEpoch(7, 12, "top1", 0.912),
        best=Path("my runs/a/best.safetensors"),
        folder=Path("my runs/a"),
        to_dict=lambda: {"run": "a", "steps": 12},
    )


def test_scores_are_shown_in_per_cent_and_the_loss_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    training_progress.report_run(run(), as_json=False)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for row in (
        "on test images 95 % interval",
        "accuracy of probe 50.0 % 40.0 to 60.0 %",
        "accuracy 87.5 % 80.0 to 95.0 %",
        "loss 0.346 0.300 to 0.400",
        "unlike training 4 %; promised: 5 %",
    ):
        assert row in lines
    assert "best epoch: 7 of 12, validation accuracy 91.2 %" in lines
    assert "12 steps; 3 s" in lines
    assert "try it vitrail predict 'my runs/a/best.safetensors' IMAGE" in lines
    training_progress.report_run(run(resumed=True), as_json=False)
    assert "12 steps; 3 s since it went on" in capsys.readouterr().out
    short = run()
    short.steps, short.best_epoch = 1, None
    training_progress.report_run(short, as_json=False)
    said = capsys.readouterr().out
    assert "\n1 step; 3 s\n" in said
    assert "best epoch" not in said


def test_machines_get_the_result_alone(capsys: pytest.CaptureFixture[str]) -> None:
    training_progress.report_run(run(), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"run": "a", "steps": 12}


def test_the_score_of_the_last_validation_stays(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"epoch": 5, "loss": 1.0, "seconds": {"compute": 1.0, "data": 0.0}}
    with training_progress.training_bar() as callbacks:
        callbacks.epoch(row)
        callbacks.epoch(row | {"epoch": 6, "val_score": 0.25})
        callbacks.epoch(row | {"epoch": 7})
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == "vitrail: epoch 5: loss 1.000; 1.0 s computing, 0.0 s waiting for images"
    assert "validation 25.0 %" in second
    assert "epoch 7: loss 1.000, validation 25.0 %" in third


def test_a_training_at_a_terminal_leaves_whole_lines_and_no_bar(photos: Path, start: Path, tmp_path: Path) -> None:
    session = in_terminal("train", photos, "--from", start, "--epochs", "3", "--batch", "8", "--out", tmp_path)
    assert session.code == 0, session.lines
    assert "\u2501" in session.raw  # there was a bar
    text = "\n".join(session.lines)
    assert "\u2501" not in text
    assert "step 0/" not in text
    epochs = (
        r"vitrail: epoch (\d): loss \d\.\d{3}, validation \d+\.\d %; [\d.]+ s computing, [\d.]+ s waiting for images"
    )
    complaints = [line for line in session.lines if "vitrail: " in line]
    assert all(line.startswith("vitrail: ") and line.count("vitrail: ") == 1 for line in complaints)
    assert [match[1] for line in complaints if (match := re.fullmatch(epochs, line))] == ["1", "2", "3"]
    assert "vitrail: 1 of 62 images cannot be read, and is skipped" in complaints
    assert [line for line in complaints if re.fullmatch(r"vitrail: linear probe: \d+\.\d % on test", line)]
