"""The verbs that look inside: explain, prune, inspect --figures; what they write, print and refuse."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import vitrail
from cli.test_cli import Line, file, folder, vit
from vitrail.evaluation import Score

__all__ = ["file", "folder", "vit"]  # fixtures


@pytest.mark.row("VE.3")
def test_explain_writes_images_and_says_what_they_are_worth(
    vit: Line, file: Path, folder: Path, tmp_path: Path
) -> None:
    said = vit("explain", file, folder / "1.png", "--method", "relevance", "--method", "rollout", "--out", tmp_path)
    assert said.code == 0
    assert "relevance: deletion 0." in said.out
    names = {"1-relevance.png", "1-rollout.png", "1-card.png"}
    assert names <= {each.name for each in tmp_path.iterdir()}
    for name in names - {"1-card.png"}:
        with Image.open(tmp_path / name) as drawn:
            assert drawn.size == (50, 40)


@pytest.mark.row("VE.3")
def test_explain_as_json(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    found = vit("explain", file, folder / "2.png", "--json", "--target", "[dog]", "--out", tmp_path).json
    [row] = found["explained"]
    [one] = row["explanations"]
    assert (one["method"], one["target"]) == ("relevance", "[dog]")
    expected = vitrail.explain(vitrail.load(file), folder / "2.png", "relevance", "[dog]")
    np.testing.assert_allclose(one["map"], expected.map, atol=1e-6)
    assert one["scores"]["gain"] == pytest.approx(expected.scores.gain, abs=1e-6)  # type: ignore[union-attr]


def test_options_versus_heads_and_film(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    options = ("--option", "fusion=max", "--option", "discard=0.5", "--method", "rollout", "--no-check")
    more = ("--target", "cat", "--versus", "cow", "--heads", "--film", "--out", tmp_path)
    said = vit("explain", file, folder / "1.png", *options, *more)
    assert said.code == 0
    assert "cat rather than cow" in said.out
    assert "rollout (fusion max, discard 0.5): not checked" in said.out
    assert {"1-heads.png", "1-blocks.gif"} <= {each.name for each in tmp_path.iterdir()}
    query = vit(
        "explain", file, folder / "1.png", "--method", "attention", "--option", "query=[1,2]", "--out", tmp_path
    )
    assert query.code == 0


@pytest.mark.row("VE.3")
def test_images_of_one_name_do_not_overwrite_each_other(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    Image.new("RGB", (30, 30), (9, 90, 9)).save(tmp_path / "other" / "1.jpg")
    out = tmp_path / "out"
    said = vit("explain", file, folder / "1.png", tmp_path / "other" / "1.jpg", "--no-check", "--out", out)
    assert said.code == 0
    assert {"1-relevance.png", "1-2-relevance.png"} <= {each.name for each in out.iterdir()}


def test_a_broken_image_does_not_stop_the_others(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    said = vit("explain", file, folder, "--no-check", "--out", tmp_path)
    assert said.code == 2
    assert "3 broken.png" in said.err
    assert len(list(tmp_path.glob("*-relevance.png"))) == 3


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("--method", "rolout"), "expected one of attention, rollout, gradient-rollout, relevance, grad-cam"),
        (("--target", "cot"), "no class 'cot': did you mean 'cow' or 'cat'"),
        (("--target", "3"), "a class from 0 to 2"),
        (("--versus", "cat"), "name the first with --target"),
        (("--option", "fusion=max"), "relevance has no such option"),
        (("--method", "rollout", "--option", "fusion=sum"), "fusion 'sum' is unknown"),
    ],
)
def test_mistakes_of_explain(
    vit: Line, file: Path, folder: Path, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    assert expected in vit.mistake("explain", file, folder / "1.png", *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
    assert lines[1].split() == ["accuracy,", "%", "90", "80", "88", "-2.00", "points"]
    assert lines[2].split() == ["parameters,", "M", "4", "3", "3", "-25.0", "%"]
    assert lines[3].split() == ["GFLOPs", "4", "3", "3", "-25.0", "%"]
    assert lines[4].startswith("speed             1.50 times")
    assert lines[5:7] == ["heads cut         block 0: 1 2", "channels cut      8 of every MLP"]
    assert vit(*out).out.splitlines()[1].split() == ["accuracy,", "%", "90", "80", "-10.00", "points"]


def test_mistakes_of_prune(vit: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "keep=0.7" in vit.mistake("prune", "vitrail:fashion", "--data", "vitrail:fashion")
    assert "FILE.safetensors" in vit.mistake("prune", "vitrail:fashion", "--keep", "0.5", "--out", "a.txt")
    assert "name the images" in vit.mistake("prune", "vitrail:fashion", "--keep", "0.5")
    assert not list(tmp_path.iterdir())


@pytest.mark.row("000.28", "P.9", "P.8")
def test_inspect_draws_figures(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    said = vit(
        "inspect", file, "--figures", tmp_path / "out", "--images", folder / "1.png", "--images", folder / "2.png"
    )
    assert said.code == 0
    assert "index.html" in said.out
    names = {each.name for each in (tmp_path / "out").iterdir()}
    assert {"index.html", "positions.png", "filters.png", "distance.png", "norms.png", "colours.png"} <= names
    assert "importance of heads" in said.out
    assert "without weights" in vit.mistake("inspect", "vit-ti16", "--figures", tmp_path / "more")
    assert "--figures" in vit.mistake("inspect", file, "--images", folder / "1.png")
