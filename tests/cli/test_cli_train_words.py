"""The words of `vitrail train` and `vitrail inspect` that people can count on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import vitrail.training
from vitrail.cli import app
from vitrail.network import ViT, ViTConfig
from vitrail.network.presets import PRESETS
from vitrail.training import Options


class _Recorded(Exception):  # noqa: N818
    """Raised in the place of a training, once its options are known."""


def options(monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[Any, Options]:
    """What the training would be asked for."""
    seen: list[tuple[Any, Options]] = []

    def run(data: Any, given: Options) -> None:
        seen.append((data, given))
        raise _Recorded

    monkeypatch.setattr(vitrail.training, "run", run)
    CliRunner().invoke(app, ["train", *map(str, words)])
    return seen[0]


@pytest.mark.row("001.10")
def test_the_flags_of_a_training_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, data, model, starting weights, size, batch, rate, length, seed: as ViT-pytorch's train.py has them."""
    data, given = options(
        monkeypatch,
        *("photos", "--name", "one", "--model", "vit-b16", "--size", "160x288", "--batch", 48, "--lr", "0.03"),
        *("--epochs", 2.5, "--seed", 42, "--recipe", "jeonsworld-cifar", "--out", tmp_path),
    )
    assert data == "photos"
    assert (given.name, given.model, given.size, given.batch, given.lr) == ("one", "vit-b16", (160, 288), 48, 0.03)
    assert (given.epochs, given.minutes, given.seed, given.recipe) == (2.5, None, 42, "jeonsworld-cifar")
    assert (given.start, Path(given.out)) == (None, tmp_path)
    _, given = options(monkeypatch, "photos", "--from", "net.npz", "--minutes", 3)
    assert (given.start, given.model, given.epochs, given.minutes) == ("net.npz", None, None, 3)
    run = tmp_path / "runs" / "photos-7"
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    _, given = options(monkeypatch, "photos", "--resume", run)
    assert (Path(given.out), given.name) == (run.parent, "photos-7")


@pytest.mark.row("003.12")
def test_inspect_prints_the_shapes_that_a_forward_pass_has() -> None:
    said = CliRunner().invoke(app, ["inspect", "vit-b16", "--json"]).stdout
    walk = {step["name"]: step["shape"] for step in json.loads(said)["walk"]}
    assert (walk["pixels"], walk["patches"]) == ([1, 3, 224, 224], [1, 196, 768])
    assert (walk["tokens"], walk["block 11"], walk["logits"]) == ([1, 197, 768], [1, 197, 768], [1, 1000])
    printed = CliRunner().invoke(app, ["inspect", "vit-b16"]).stdout
    for shape in ("1 3 224 224", "1 196 768", "1 197 768", "1 1000"):
        assert shape in " ".join(printed.replace("x", " ").replace(",", " ").replace("(", " ").split())


@pytest.mark.row("003.12")
def test_the_walk_is_what_the_network_does(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ViTConfig(
        image_size=(16, 24), patch_size=8, width=12, depth=2, heads=2, mlp_width=20, classes=7, registers=2
    )
    monkeypatch.setitem(PRESETS, "small", config)
    walk = json.loads(CliRunner().invoke(app, ["inspect", "small", "--json"]).stdout)["walk"]
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
