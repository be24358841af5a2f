"""The names that timm, DeiT, DINO and MAE share: what their shapes say of the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.network.config import ResNetStem
from vitrail.weights.families import timm
from vitrail.weights.families.block_names import ENDS, PLAIN_MLP, only, under_model
from vitrail.weights.families.timm import BLOCKS, resnet_layers, resnet_rows
from vitrail.weights.family import sizes_of
from vitrail.weights.reading.contents import WeightContents
from vitrail.weights.reading.weight_files import open_contents

ROWS = (*ENDS, *BLOCKS, *PLAIN_MLP)


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
    settings, why = sizes_of(contents(names()), ROWS, {})
    assert settings == {
        "patch_size": (8, 4),
        "channels": 2,
        "width": 128,
        "depth": 3,
        "heads": 2,
        "head_width": 0,
        "mlp_width": 96,
        "classes": 10,
    }
    assert "64" in why


def test_what_is_not_there_is_not_claimed(contents: Any) -> None:
    given = {"image_size": (32, 16)}
    whole = timm.describe(contents(names()), given).config
    assert (whole.cls_token, whole.patch_bias, whole.qkv_bias, whole.classes) == (True, True, "all", 10)
    assert (whole.qk_norm, whole.head_bias, whole.initialisation) == (False, True, "timm")
    gone = ("cls_token", "patch_embed.proj.bias", "head.weight", "head.bias", "blocks.0.attn.qkv.bias")
    tensors = {name: value for name, value in names().items() if name not in gone}
    tensors["pos_embed"] = torch.zeros(1, 16, 128)
    less = timm.describe(contents(tensors), given).config
    assert (less.cls_token, less.patch_bias, less.qkv_bias, less.classes) == (False, False, "none", 0)
    assert less.head_bias  # without a head there is none to lack a bias


def test_norms_of_the_queries_say_how_wide_a_head_is(contents: Any) -> None:
    tensors = names(inner=96) | {"blocks.0.attn.q_norm.weight": torch.zeros(24)}
    settings, why = sizes_of(contents(tensors), ROWS, {})
    assert (settings["heads"], settings["head_width"]) == (4, 24)
    assert why == "the norms of the queries say so"
    assert timm.describe(contents(tensors), {"image_size": (32, 16)}).config.qk_norm


@pytest.mark.parametrize("up, gated", [(96, False), (192, True)])
def test_a_gated_mlp_is_twice_as_wide_going_up(contents: Any, up: int, gated: bool) -> None:
    tensors = names() | {"blocks.0.mlp.fc1.weight": torch.zeros(up, 128)}
    config = timm.describe(contents(tensors), {"image_size": (32, 16)}).config
    assert (config.mlp_width, config.mlp, config.activation) == (
        96,
        *(("swiglu", "silu") if gated else ("plain", "gelu")),
    )


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
