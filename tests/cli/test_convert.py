"""The verb convert."""

from __future__ import annotations

from pathlib import Path

import pytest

import vitrail
from cli.command_line import Line
from vitrail.cli import convert


def test_convert_says_how_equal_both_are(vit: Line, foreign: Path, tmp_path: Path) -> None:
    said = vit("convert", foreign, tmp_path / "out", "--to", "timm", "--set", "mean=0.25")
    assert said.code == 0, said.err
    for words in (
        "32 tensors written for timm",
        "bit for bit the same",
        "differ by at most 0",
        "100 % agree",
        "carried",
    ):
        assert words in said.out
    assert vitrail.load(tmp_path / "out").preprocess.mean == (0.25,) * 3
    assert "already there" in vit.mistake("convert", foreign, tmp_path / "out", "--to", "timm")


def test_the_families_named_in_help_are_those_there_are() -> None:
    from vitrail.weights import FAMILIES

    assert sorted(convert.FAMILIES) == sorted(["vitrail", *FAMILIES])


def test_convert_as_json(vit: Line, foreign: Path, tmp_path: Path) -> None:
    report = vit("convert", foreign, tmp_path / "o.safetensors", "--to", "vitrail", "--json").json
    assert report["identical"] == report["tensors"] == 32
    assert report["relative_difference"] == 0.0
    assert report["preprocess_carried"] is True
    assert (tmp_path / "o.safetensors").is_file()


@pytest.mark.parametrize(
    "words, reason",
    [
        (("--to", "tim"), "did you mean 'timm'"),
        (("--to", "google"), "expected NAME.npz"),
        (("--to", "timm", "--set", "norm_eps=1e-12"), "norm_eps: 1e-12"),
        (("--to", "timm", "--set", "activation"), "expected NAME=VALUE"),
        (("--to", "timm", "--set", "activaton=relu"), "did you mean 'activation'"),
        (("--to", "timm", "--leave-out", "text"), "no tensor has such a name"),
    ],
)
def test_convert_refuses_in_one_line(
    vit: Line, foreign: Path, tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    assert reason in vit.mistake("convert", foreign, tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()
