"""The verb prune."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import vitrail
from cli.command_line import Line
from cli.pseudo_terminal import in_terminal
from vitrail.evaluation import Score


def test_prune_writes_an_ordinary_checkpoint(vit: Line, tmp_path: Path) -> None:
    out = tmp_path / "small.safetensors"
    said = vit("prune", "vitrail:fashion", "--data", "vitrail:fashion", "--keep", "0.5", "--out", out)
    assert said.code == 0
    assert "judged by test images, ranked on train" in said.out
    config = vitrail.load(out).model.config
    assert sum(len(config.heads_of(block)) for block in range(4)) == 8
    again = vit("inspect", out, "--json").json
    assert again["config"]["kept_heads"] == [list(config.heads_of(block)) for block in range(4)]


def test_prune_says_what_the_cut_changed(vit: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By fixed numbers: each row from the network as it was to the last state, in points or in per cent."""
    before, cut, after = (
        SimpleNamespace(accuracy=Score(share, 0.0, 1.0), parameters=size, multiply_adds=work)
        for share, size, work in ((0.9, 4e6, 2e9), (0.8, 3e6, 1.5e9), (0.88, 3e6, 1.5e9))
    )
    about = {"heads": {0: (1, 2)}, "channels": 8, "split": "test", "ranked_by": "train", "to_dict": dict}
    found = SimpleNamespace(before=before, cut=cut, after=after, speed=1.5, checkpoint=None, **about)
    monkeypatch.setattr(vitrail.insight, "prune", lambda *given, **options: found)
    monkeypatch.setattr(vitrail.evaluation, "data_for", lambda *given: None)
    monkeypatch.setattr(vitrail.checkpoint, "save", lambda *given: None)
    out = ("prune", "vitrail:fashion", "--keep", "0.5", "--out", tmp_path / "a.safetensors")
    lines = vit(*out, "--tune", "1", "--channels").out.splitlines()
    assert lines[1].split() == ["accuracy", "90.0", "%", "80.0", "%", "88.0", "%", "-2.00", "points"]
    assert lines[2].split() == ["parameters,", "M", "4", "3", "3", "-25.0", "%"]
    assert lines[3].split() == ["GFLOPs", "4", "3", "3", "-25.0", "%"]
    assert lines[4].startswith("speed             1.50 times")
    assert lines[5:7] == ["heads cut         2 (heads 1 and 2 of block 0)", "channels cut      8 of every MLP"]
    assert vit(*out).out.splitlines()[1].split() == ["accuracy", "90.0", "%", "80.0", "%", "-10.00", "points"]


def test_what_is_there_already_is_not_written_over(vit: Line, tmp_path: Path) -> None:
    out = tmp_path / "a.safetensors"
    out.write_bytes(b"older")
    said = vit.mistake("prune", "vitrail:fashion", "--keep", "0.5", "--out", out)
    assert said == f"{out} is there already: give another name, or --force to write over it"
    assert out.read_bytes() == b"older"


def test_mistakes_of_prune(vit: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "keep=0.7" in vit.mistake("prune", "vitrail:fashion", "--data", "vitrail:fashion")
    assert "FILE.safetensors" in vit.mistake("prune", "vitrail:fashion", "--keep", "0.5", "--out", "a.txt")
    assert "name the images" in vit.mistake("prune", "vitrail:fashion", "--keep", "0.5")
    assert not list(tmp_path.iterdir())


def test_tuning_shows_its_bar_at_a_terminal(tmp_path: Path) -> None:
    """It comes after a second, and what is told meanwhile stands in lines of its own."""
    words = ("prune", "vitrail:fashion", "--data", "vitrail:fashion", "--keep", "0.5", "--tune", "0.3")
    session = in_terminal(*words, "--out", tmp_path / "small.safetensors")
    assert session.code == 0, session.lines
    assert "\u2501" in session.raw
    assert "\u2501" not in "\n".join(session.lines)
    assert [line for line in session.lines if line.startswith("vitrail: tuning for 0.3 epochs: ")]
