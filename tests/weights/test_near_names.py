"""What was probably meant by a name or path that leads to no checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitrail.errors import CheckpointError
from vitrail.weights import load
from vitrail.weights.near_names import near_path

TINY = "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.mark.parametrize(
    "typed, meant",
    [
        (TINY.removeprefix("timm:"), TINY),
        ("vit_tiny_patch16_224", TINY),
        ("tim:vit_tiny_patch16_224", TINY),
        ("TIMM:other", "timm:other"),
        ("HF:facebook/dinov2-small", "hf:facebook/dinov2-small"),
        ("facebook/dinov2-smal", "hf:facebook/dinov2-small"),
        ("google/vit-base-patch16-224", "hf:google/vit-base-patch16-224"),
        ("runs/photo-1", "runs/photos-1"),
        ("runs/photos-1/best.safetensor", "runs/photos-1/best.safetensors"),
    ],
)
def test_what_is_near_is_named(typed: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "photos-1").mkdir(parents=True)
    (tmp_path / "runs" / "photos-1" / "best.safetensors").touch()
    (tmp_path / "runs" / "photo-1.txt").touch()
    with pytest.raises(CheckpointError) as told:
        load(typed)
    assert str(told.value) == f"no checkpoint {typed}: did you mean {meant!r}?"


def test_a_preset_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = "that is a preset, which has no weights: `vitrail train --model {}` trains it from nothing"
    assert near_path("vit-l16") == words.format("vit-l16")
    assert near_path("vit-ti16") == f"{words.format('vit-ti16')}; trained weights for it: {TINY}"


def test_what_is_like_nothing_is_told_what_is_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for typed in ("nothing.pt", "C:/nets/a.pt", "nets/a.pt", "photos/a", "a/b/c"):
        with pytest.raises(CheckpointError, match=f"no checkpoint {typed}: expected a file or folder of weights, or a"):
            load(typed)
