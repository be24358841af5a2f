"""The verb optimize."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from cli.command_line import Line, typed
from shipping.conftest import operators_read_once

__all__ = ["operators_read_once"]  # a fixture

pytestmark = pytest.mark.usefixtures("fixed_times")


def test_optimize_judged_by_its_own_answers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("optimize", place / "net.safetensors", "--data", place / "loose", "--unlabelled", "--max-drop", 30)
    for extra in ("openvino", "onnxscript"):  # quicker
        monkeypatch.setitem(sys.modules, extra, None)
    shown: list[str] = []
    monkeypatch.setattr("vitrail.cli.optimize.busy", lambda what: nullcontext(shown.append))
    told = typed(*words, "--out", place / "best", "--batch", 4, "--no-merging", "--plot", place / "plot.png")
    assert told.splitlines()[1].split() == ["way", "batch", "readers", "images/s", "eager", "lost", "answers"]
    assert shown[0].startswith("trying the checkpoint as it is (step 1 of ")
    assert any(each.startswith("trying packed int8 (step ") and each.endswith(" left)") for each in shown)
    assert "\npacked int8, batch 4, 1 reader: 4.00 times the checkpoint as it is" in told
    [best] = [line for line in told.splitlines() if line.endswith("best")]
    assert best.split()[:6] == ["packed", "int8", "4", "1", "60", "4.00"]
    assert (place / "plot.png").is_file()
    assert (place / "best.safetensors").is_file()


@pytest.mark.parametrize("there", ["best.safetensors", "best.onnx", "best.bin", "plot.png"])
def test_what_is_there_already_is_not_written_over(there: str, vit: Line, place: Path, tmp_path: Path) -> None:
    """Nobody knows beforehand which ending wins, so none of them may be taken."""
    (tmp_path / there).write_bytes(b"older")
    words = ("optimize", place / "net.safetensors", "--data", place / "data", "--out", tmp_path / "best.xml")
    said = vit.mistake(*words, "--plot", tmp_path / "plot.png")
    assert f"{tmp_path / there} is there already: give another name, or --force to write over it" in said
