"""The names that timm, DeiT, DINO and MAE share: what their shapes say of the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.network.config import ResNetStem
from vitrail.weights.families.block_names import mlp_of, only, resnet_layers, resnet_rows, sizes_of, under_model
from vitrail.weights.reading.contents import WeightContents
from vitrail.weights.reading.weight_files import open_contents


def names(width: int = 128, inner: int = 128, classes: int = 10, depth: int = 3) -> dict[str, Tensor]:
    """Tensors of a network with patches of 8 x 4 in two channels."""
    tensors = {
        "cls_token": torch.zeros(1, 1, width),
        "pos_embed": torch.zeros(1, 17, width),
        "patch_embed.proj.weight": torch.zeros(width, 2, 8, 4),
        "patch_embed.proj.bias": torch.zeros(width),
        "norm.weight": torch.zeros(width),
        "head.weight": torch.zeros(classes, width),
        "head.bias": torch.zeros(classes),
    }
    for number in range(depth):
        tensors |= {
            f"blocks.{number}.norm1.weight": torch.zeros(width),
            f"blocks.{number}.attn.qkv.weight": torch.zeros(3 * inner, width),
            f"blocks.{number}.attn.qkv.bias": torch.zeros(3 * inner),
            f"blocks.{number}.mlp.fc1.weight": torch.zeros(96, width),
            f"blocks.{number}.mlp.fc2.weight": torch.zeros(width, 96),
        }
    return tensors


@pytest.fixture
def contents(tmp_path: Path) -> Any:
    """The contents of a file with these tensors."""

    def write(tensors: dict[str, Tensor], under: str = "") -> WeightContents:
        torch.save({under: tensors} if under else tensors, tmp_path / "x.pt")
        return open_contents(tmp_path / "x.pt")

    return write


def test_sizes_are_those_of_the_shapes(contents: Any) -> None:
    settings, why = sizes_of(contents(names()), {})
    assert settings == {
        "patch_size": (8, 4),
        "channels": 2,
        "width": 128,
        "depth": 3,
        "heads": 2,
        "head_width": 0,
        "patch_bias": True,
        "cls_token": True,
        "qkv_bias": "all",
        "qk_norm": False,
        "classes": 10,
        "head_bias": True,
        "initialisation": "timm",
    }
    assert "64" in why


def test_what_is_not_there_is_not_claimed(contents: Any) -> None:
    gone = ("cls_token", "patch_embed.proj.bias", "head.weight", "head.bias", "blocks.0.attn.qkv.bias")
    tensors = {name: value for name, value in names().items() if name not in gone}
    settings = sizes_of(contents(tensors), {}).settings
    assert [settings[name] for name in ("cls_token", "patch_bias", "qkv_bias", "classes")] == [False, False, "none", 0]
    assert settings["head_bias"]  # without a head there is none to lack a bias


def test_norms_of_the_queries_say_how_wide_a_head_is(contents: Any) -> None:
    tensors = names(inner=96) | {"blocks.0.attn.q_norm.weight": torch.zeros(24)}
    settings, why = sizes_of(contents(tensors), {})
    assert (settings["heads"], settings["head_width"], settings["qk_norm"]) == (4, 24, True)
    assert why == "the norms of the queries say so"


@pytest.mark.parametrize("up, gated", [(96, False), (192, True)])
def test_a_gated_mlp_is_twice_as_wide_going_up(contents: Any, up: int, gated: bool) -> None:
    layers = {"up": torch.zeros(up, 128), "down": torch.zeros(128, 96)}
    wanted = {"mlp_width": 96} | ({"mlp": "swiglu", "activation": "silu"} if gated else {})
    assert mlp_of(contents(names() | layers), "up", "down") == wanted


def test_names_that_are_plain_and_no_others(contents: Any) -> None:
    plain = {name: value for name, value in names().items() if not name.startswith("head")}
    assert only(contents(plain))
    assert not only(contents(names()))
    assert only(contents(names()), r"head\.(weight|bias)")
    assert not only(contents(plain | {"blocks.0.attn.extra.weight": torch.zeros(1)}))
    assert not only(contents({"norm.weight": torch.zeros(1)}))


def test_weights_under_model_are_told_from_others(contents: Any) -> None:
    assert under_model(contents(names(), "model"))
    assert not under_model(contents(names()))
    assert not under_model(contents(names(), "state_dict"))


def test_units_of_a_resnet_are_counted_and_named(contents: Any) -> None:
    units = {f"b.stages.{stage}.blocks.{unit}.conv1.weight": torch.zeros(1) for stage, unit in ((0, 0), (0, 1), (1, 0))}
    assert resnet_layers(contents(names() | units), "b.") == (2, 1)
    rows = {row.ours: row.theirs for row in resnet_rows("b.", ResNetStem((2, 1)))}
    assert rows["stem.root"] == "b.stem.conv"
    assert rows["stem.stages.0.1.norm3"] == "b.stages.0.blocks.1.norm3"
    assert rows["stem.stages.1.0.shortcut"] == "b.stages.1.blocks.0.downsample.conv"
    assert len(rows) == 2 + 3 * 8
