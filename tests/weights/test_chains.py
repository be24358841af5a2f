"""From one family to another and back: the same files, bit for bit, for every pair that can carry the network."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.images import Preprocess
from vitrail.network import Positions, Resample, Rotary, ViT, ViTConfig
from vitrail.network.masked import MaskedDecoder
from vitrail.weights import FAMILIES, convert
from vitrail.weights.reading.weight_files import open_contents
from weights.parity import assert_same_bits

SMALL: dict[str, Any] = {"image_size": 16, "patch_size": 8, "width": 64, "depth": 1, "heads": 1, "mlp_width": 128}
TWO_HEADS: dict[str, Any] = {"width": 128, "heads": 2}
BARE = Positions(prefix=False)

# A network, and the families that can carry all of it.
GROUPS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "plain": ({}, ("timm", "transformers", "torchvision", "deit", "jeonsworld")),
    "tanh": ({"activation": "gelu_tanh"}, ("google", "timm", "transformers")),
    "representation": ({"representation_width": 96}, ("torchvision",)),
    "without a head": ({"classes": 0}, ("dino", "timm", "transformers")),
    "distilled": ({"distillation_token": True, "pool": "cls+distillation"}, ("deit", "timm", "transformers")),
    "DeiT-III": ({"layer_scale": 1.0, "positions": BARE}, ("deit", "timm")),
    "DINOv2": ({"layer_scale": 1.0, "classes": 0}, ("dinov2", "timm", "transformers")),
    "DINOv2, gated": (
        {"layer_scale": 1.0, "classes": 0, "mlp": "swiglu", "activation": "silu", "mlp_width": 88},
        ("dinov2", "timm", "transformers"),
    ),
    "DINOv2, registers": ({"layer_scale": 1.0, "classes": 0, "registers": 4}, ("dinov2", "timm", "transformers")),
    "DINOv3": (
        {
            "rotary": Rotary("dinov3"),
            "positions": Positions("none"),
            "registers": 4,
            "qkv_bias": "no-key",
            "layer_scale": 1.0,
            "norm_eps": 1e-5,
            "classes": 0,
        },
        ("dinov3", "timm", "transformers"),
    ),
    "CLIP": (
        {
            "embedding_norm": True,
            "activation": "quick_gelu",
            "patch_bias": False,
            "head_bias": False,
            "norm_eps": 1e-5,
            "classes": 16,
        },
        ("clip", "transformers"),
    ),
    "SigLIP": (
        {"cls_token": False, "pool": "map", "activation": "gelu_tanh", "positions": BARE, "classes": 0},
        ("big_vision", "timm", "transformers", "timm-naflex"),
    ),
    "mean": ({"cls_token": False, "pool": "mean", "positions": BARE}, ("timm", "transformers", "timm-naflex")),
    "MAE": ({"classes": 0}, ("mae", "transformers")),
    "vit-pytorch": ({**TWO_HEADS, "patch_norms": True, "qkv_bias": "none", "norm_eps": 1e-5}, ("lucidrains",)),
    "vit-pytorch, old": ({**TWO_HEADS, "qkv_bias": "none", "norm_eps": 1e-5}, ("lucidrains", "transformers")),
}
PAIRS = [
    (name, first, second)
    for name, (_, families) in GROUPS.items()
    for first, second in (permutations(families, 2) if len(families) > 1 else [(families[0], families[0])])
]
ENDINGS = {"folder": "", "npz": ".npz", "pickle": ".pth"}


def network(name: str) -> Checkpoint:
    torch.manual_seed(0)
    model = ViT(ViTConfig(**{**SMALL, "classes": 10, **GROUPS[name][0]})).eval()
    renames.randomise(model)
    checkpoint = Checkpoint(model, Preprocess(model.config.image_size))
    if name != "MAE":
        return checkpoint
    table = Positions("sincos-2d", resample=Resample(antialias=False))
    stack = {**SMALL, "width": 64, "heads": 1, "mlp_width": 256, "classes": 192, "pool": "none", "positions": table}
    decoder = MaskedDecoder(ViTConfig(**stack), 64).eval()
    renames.randomise(decoder)
    return replace(checkpoint, decoder=decoder)


def written(folder: Path, number: int, source: Any, family: str) -> Path:
    out = folder / f"{number}-{family}{ENDINGS[FAMILIES[family].container]}"
    convert(source, out, to=family)
    return out


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return {name: stored.read() for name, stored in open_contents(path).tensors.items()}


@pytest.mark.parametrize("name, first, second", PAIRS)
def test_there_and_back(tmp_path: Path, name: str, first: str, second: str) -> None:
    start = written(tmp_path, 1, network(name), first)
    there = written(tmp_path, 2, start, second)
    back = written(tmp_path, 3, there, first)
    found, expected = tensors(back), tensors(start)
    for extra in [each for each in found if each not in expected and each.endswith("mask_token")]:
        assert not found.pop(extra).any()  # what a family's own class asks for, and the network never had
    assert_same_bits(found, expected)


def test_a_decoder_that_would_come_back_changed_is_refused(tmp_path: Path) -> None:
    checkpoint = network("MAE")
    assert checkpoint.decoder is not None
    other = MaskedDecoder(replace(checkpoint.decoder.config, heads=4), 64).eval()
    with pytest.raises(CheckpointError, match="decoder's heads: 4"):
        convert(replace(checkpoint, decoder=other), tmp_path / "out.pth", to="mae")
    convert(replace(checkpoint, decoder=other), tmp_path / "out", to="transformers")  # its config.json can say it


def test_every_family_takes_part() -> None:
    assert {family for _, families in GROUPS.values() for family in families} == set(FAMILIES)
