"""The verb inspect: shapes, costs, figures, and how weights were read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import vitrail
from cli.command_line import Line
from vitrail.cli import load_verbs
from vitrail.images.ood_detector import OodDetector
from vitrail.network import ViT, ViTConfig
from vitrail.network.presets import PRESETS


@pytest.mark.row("003.13")
def test_inspect_a_preset(vit: Line) -> None:
    seen = vit("inspect", "vit-ti16", "--json").json
    assert seen["parameters"] == 5_717_416
    assert seen["flops"] == 2 * seen["multiply_adds"]
    assert seen["attention_matrix"] == [197, 197]
    assert seen["attention_bytes"] == 12 * 3 * 197 * 197 * 4
    assert [step["name"] for step in seen["walk"]][:3] == ["pixels", "patches", "tokens"]
    assert seen["walk"][-1] == {"name": "logits", "shape": [1, 1000], "parameters": 193_000}
    assert sum(step["parameters"] for step in seen["walk"]) == seen["parameters"]
    assert ViTConfig.from_dict(seen["config"]) == PRESETS["vit-ti16"]
    text = vit("inspect", "vit-ti16").out
    for part in ("vit-ti16, one image of 224x224", "5,717,416", "197 x 197", "1 x 196 x 192"):
        assert part in text


def test_inspect_at_another_size(vit: Line) -> None:
    seen = vit("inspect", "vit-ti16", "--size", "160x288", "--json").json
    assert seen["image_size"] == [160, 288]
    assert seen["tokens"] == 1 + 10 * 18
    assert seen["walk"][0]["shape"] == [1, 3, 160, 288]
    assert vit("inspect", "vit-ti16", "--size", "384", "--json").json["tokens"] == 577
    assert "225x225 does not divide into patches of 16x16" in vit.mistake("inspect", "vit-ti16", "--size", "225")
    for wrong in ("big", "1x2x3", "-16", "16x", "²", "9999999999999999", "16.5"):
        assert "--size: expected 384 or 160x288" in vit.mistake("inspect", "vit-ti16", f"--size={wrong}")
    assert "image_size: expected a whole number from 1" in vit.mistake("inspect", "vit-ti16", "--size", "0")


def test_inspect_a_checkpoint(vit: Line, file: Path) -> None:
    seen = vit("inspect", file, "--json").json
    assert seen["classes"] == ["cat", "[dog]", "cow"]
    assert seen["preprocess"]["size"] == [32, 32]
    assert (seen["source"], seen["licence"], seen["metrics"]) == ("photos/", "CC0-1.0", {"top1": 0.5})
    assert seen["task"] == "single-label"
    text = vit("inspect", file).out
    assert text.startswith(f"{file}, one image of 32x32\n")
    assert "cat, [dog], cow" in text


def test_inspect_says_whether_unlike_images_are_known(vit: Line, file: Path, tmp_path: Path) -> None:
    loaded = vitrail.load(file)
    width = vitrail.embed(loaded, [np.zeros((32, 32, 3), np.uint8)]).shape[1]
    ood = OodDetector.fit(np.eye(width), np.ones((29, width)))
    vitrail.save(replace(loaded, ood=ood), tmp_path / "wary.safetensors")
    words = "at most 5 % of images like the training ones, set on 29 images"
    text = vit("inspect", tmp_path / "wary.safetensors").out
    assert f"unlike images     are marked; a false alarm for {words}\n" in text
    seen = vit("inspect", tmp_path / "wary.safetensors", "--json").json
    assert seen["unlike"] == words
    assert "ood" not in seen  # hundreds of lines of base 64
    assert "unlike" not in vit("inspect", file).out


def test_inspect_speaks_in_words(vit: Line, file: Path, tmp_path: Path) -> None:
    loaded = vitrail.load(file)
    assert loaded.provenance is not None
    metrics = {"val_score": 0.9, "test_top1": 0.5, "test_loss": 1.25, "epoch": 3, "speed": 12.5}
    told = replace(loaded, reject=0.74, temperature=1.23456, provenance=replace(loaded.provenance, metrics=metrics))
    vitrail.save(told, tmp_path / "strict.safetensors")
    lines = vit("inspect", tmp_path / "strict.safetensors").out.splitlines()
    scores = "validation accuracy 90.0 %, test accuracy 50.0 %, test loss 1.250, epoch 3, speed 12.5"
    assert {"minimum confidence 74 %", "temperature       1.235", f"metrics           {scores}"} <= set(lines)
    assert [line for line in lines if line.startswith("preprocess        size 32x32, resize crop, ")]
    several = replace(told, task="multi-label")
    vitrail.save(several, tmp_path / "several.safetensors")
    assert "validation mean average precision 90.0 %, test" in vit("inspect", tmp_path / "several.safetensors").out
    assert not [line for line in lines if "{" in line]


def test_a_name_that_is_nothing(vit: Line, tmp_path: Path) -> None:
    assert "no preset 'vit-b61': did you mean 'vit-b16'" in vit.mistake("inspect", "vit-b61")
    assert "no preset 'vit-b61': did you mean 'vit-b16'" in vit.mistake("bench", "vit-b61")
    assert vit.mistake("inspect", "qqq").endswith("no preset 'qqq': `vitrail models` lists the presets")
    (tmp_path / "photos-1").mkdir()
    for verb in ("inspect", "bench"):
        near = f"did you mean {str(tmp_path / 'photos-1')!r}?"
        assert vit.mistake(verb, tmp_path / "photo-1").endswith(near)
    (tmp_path / "photos-1").rmdir()
    assert "no weights in this folder" in vit.mistake("inspect", tmp_path)
    assert "did you mean 'vitrail:glass'" in vit.mistake("inspect", "vitrail:glas")
    (tmp_path / "a.png").touch()
    assert "no checkpoint" in vit.mistake("predict", tmp_path / "none.safetensors", tmp_path)


def test_inspect_shows_how_weights_were_read(vit: Line, foreign: Path) -> None:
    said = vit("inspect", foreign, "--tensors")
    for words in ("family            timm", "timm's default", "convolution kernel flattened", "blocks.1.mlp.fc2.bias"):
        assert words in said.out
    told = vit("inspect", foreign, "--tensors", "--json").json
    assert len(told["mapping"]) == 32
    assert {"name": "norm_eps", "value": "1e-06", "why": "timm's default"} in told["settings"]


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


@pytest.mark.row("003.12")
def test_inspect_prints_the_shapes_that_a_forward_pass_has() -> None:
    said = CliRunner().invoke(load_verbs(), ["inspect", "vit-b16", "--json"]).stdout
    walk = {step["name"]: step["shape"] for step in json.loads(said)["walk"]}
    assert (walk["pixels"], walk["patches"]) == ([1, 3, 224, 224], [1, 196, 768])
    assert (walk["tokens"], walk["block 11"], walk["logits"]) == ([1, 197, 768], [1, 197, 768], [1, 1000])
    printed = CliRunner().invoke(load_verbs(), ["inspect", "vit-b16"]).stdout
    for shape in ("1 3 224 224", "1 196 768", "1 197 768", "1 1000"):
        assert shape in " ".join(printed.replace("x", " ").replace(",", " ").replace("(", " ").split())


@pytest.mark.row("003.12")
def test_the_walk_is_what_the_network_does(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ViTConfig(
        image_size=(16, 24), patch_size=8, width=12, depth=2, heads=2, mlp_width=20, classes=7, registers=2
    )
    monkeypatch.setitem(PRESETS, "small", config)
    walk = json.loads(CliRunner().invoke(load_verbs(), ["inspect", "small", "--json"]).stdout)["walk"]
    model, seen = ViT(config).eval(), []
    watched = {"patches": model.patches, "block 0": model.encoder.blocks[0], "block 1": model.encoder.blocks[1]}
    watched |= {"norm": model.norm, "logits": model.head}
    for name, part in watched.items():
        part.register_forward_hook(
            lambda _, given, out, name=name: seen.append((name, out if isinstance(out, torch.Tensor) else out[0]))
        )
    model(torch.zeros(1, 3, 16, 24))
    shapes = {name: list(value.shape) for name, value in seen}
    assert shapes == {step["name"]: step["shape"] for step in walk if step["name"] in shapes}
    assert shapes.keys() == watched.keys()
    assert sum(step["parameters"] for step in walk) == sum(each.numel() for each in model.parameters())
