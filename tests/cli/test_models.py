"""The verb models."""

from __future__ import annotations

import pytest

from cli.command_line import Line
from vitrail.network.presets import PRESETS


def test_models_lists_every_preset(vit: Line) -> None:
    said = vit("models", "--json")
    assert said.code == 0
    rows = {row["name"]: row for row in said.json["models"]}
    assert list(rows) == list(PRESETS)
    assert rows["vit-b16"]["parameters"] == 86_567_656
    assert rows["vit-b16"]["image_size"] == [224, 224]
    assert (rows["vit-b16"]["width"], rows["vit-b16"]["depth"], rows["vit-b16"]["tokens"]) == (768, 12, 197)
    assert (rows["r50-vit-b16"]["patch"], rows["mae-b16"]["classes"]) == ([16, 16], 0)


def test_models_as_a_table(vit: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrail.network import presets

    monkeypatch.setattr(presets, "PRESETS", {name: PRESETS[name] for name in ("vit-ti16", "vit-test16")})
    said = vit("models")
    assert said.code == 0
    assert said.out.splitlines()[2].split() == ["vit-ti16", "5.72", "M", "192/12/3/768", "16", "224", "197", "1000"]
    assert said.out.splitlines()[3].split()[:3] == ["vit-test16", "2,985", "1/1/1/1"]
    assert "2 presets" in said.out


def test_models_lists_checkpoints_to_start_from(vit: Line) -> None:
    rows = {row["name"]: row for row in vit("models", "--pretrained", "--json").json["pretrained"]}
    tiny = rows["timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"]
    assert (tiny["parameters"], tiny["image_size"], tiny["licence"]) == (5_717_416, [224, 224], "Apache-2.0")
    assert "non-commercial" in rows["timm:vit_base_patch16_224.mae"]["licence"]
    said = vit("models", "--pretrained")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[:4] == [
        "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k",
        "  for a first try; quick on a CPU",
        "  5.7 M parameters, about 23 MB to fetch; images of 224 pixels",
        "  trained on the 1,000 classes of ImageNet; licence: Apache-2.0",
    ]
    assert set(rows) <= set(lines)  # a line each, to be copied
    assert "`vitrail train DATA --from NAME`" in said.out
    assert "VITRAIL_WEIGHTS" in lines[-1]
