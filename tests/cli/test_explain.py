"""The verb explain."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from cli.command_line import Line
from evaluation.markup import read


@pytest.mark.row("VE.3")
def test_explain_writes_images_and_says_what_they_are_worth(
    vit: Line, file: Path, folder: Path, tmp_path: Path
) -> None:
    said = vit("explain", file, folder / "1.png", "--method", "relevance", "--method", "rollout", "--out", tmp_path)
    assert said.code == 0
    assert re.search(r"relevance: faithfulness: (none|weak|fair|strong), [+-]0\.\d\d; ", said.out)
    assert re.search(
        r"    deletion: (good|poor|no better), 0\.\d\d; the answer falls .*at random \(0\.\d\d\)", said.out
    )
    assert f"all on one page: {tmp_path / 'index.html'}" in said.out
    page = read((tmp_path / "index.html").read_text())
    assert [each.attributes["alt"].split(",")[0] for each in page.all("img")] == ["the image", "relevance", "rollout"]
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
    judged = expected.verdicts
    assert one["verdict"] == judged[0].word
    assert [each["name"] for each in one["verdicts"]] == [each.name for each in judged]
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
    assert said.code == 3
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


def test_how_an_answer_is_marked_stands_behind_it(vit: Line, wary: Path, folder: Path, tmp_path: Path) -> None:
    said = vit("explain", wary, folder / "10.png", "--no-check", "--out", tmp_path)
    assert re.search(r"10\.png: \S+ [\d.]+ %; unlike anything it was trained on\n", said.out)
    plain = vit("explain", wary, folder / "1.png", "--no-check", "--out", tmp_path)
    assert re.search(r"1\.png: \S+ [\d.]+ %\n", plain.out)
