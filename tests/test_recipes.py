"""The recipes run: each study from its first step to its table and plot, on a handful of pictures."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

RECIPES = Path(__file__).resolve().parents[1] / "recipes"


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten classes of noise, four pictures each to train on, and one to be judged by."""
    dice = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("few") / "few.npz"
    train, test = np.arange(40) % 10, np.arange(10)
    pictures = dice.integers(0, 255, (50, 28, 28), dtype=np.uint8)
    np.savez(path, train_images=pictures[:40], train_labels=train, test_images=pictures[40:], test_labels=test)
    return path


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    monkeypatch.syspath_prepend(str(RECIPES))
    runpy.run_path(str(RECIPES / name), run_name="__main__")


@pytest.mark.parametrize(
    "name, title, count",
    [
        pytest.param("positions.py", "positions", 7, marks=pytest.mark.row("P.16")),
        pytest.param("pool.py", "pool", 4, marks=pytest.mark.row("P.16", "003.10")),
        pytest.param("shapes.py", "shapes", 9, marks=pytest.mark.row("P.12")),
        pytest.param("larger.py", "larger", 7, marks=pytest.mark.row("003.18")),
        pytest.param("data_size.py", "data-size", 15, marks=pytest.mark.row("P.15")),
    ],
)
def test_a_study_gives_a_table_and_a_plot(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, title: str, count: int
) -> None:
    run(monkeypatch, name, "--data", few, "--steps", 2, "--seeds", 1, "--out", tmp_path)
    rows = json.loads((tmp_path / f"{title}.json").read_text())
    assert len(rows) == count
    assert all(0 <= score <= 1 for row in rows for score in row["scores"])
    with Image.open(tmp_path / f"{title}.png") as plot:
        assert plot.size[0] == 1050


def test_from_scratch_and_fine_tuned(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "scratch.py", "--data", few, "--epochs", 1, "--out", tmp_path)
    assert "report.html" in capsys.readouterr().out
    start = tmp_path / "few-1" / "best.safetensors"
    for place, name in enumerate(("probe.py", "finetune.py"), start=2):
        more = ("--epochs", 1) if name == "finetune.py" else ()
        run(monkeypatch, name, few, "--from", start, *more, "--out", tmp_path)
        said = capsys.readouterr().out
        assert said.startswith("k-NN")
        assert "linear probe" in said
        assert f"few-{place}" in said
