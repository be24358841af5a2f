"""MAE from its own files: the same numbers at any size, written back bit for bit; its decoder rebuilds the same."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from network import renames
from vitrail.errors import CheckpointError
from vitrail.network.masked import MaskedDecoder
from vitrail.network.vit import ViT
from vitrail.weights import convert, load
from weights.originals import Mae
from weights.parity import CLOSE, SIZES, assert_equal, assert_same_bits
from weights.under_model import assert_there_and_back, random, saved

MAES: dict[str, dict[str, Any]] = {
    "encoder": {},
    "pre-training": {"decoder": 64},
    "published decoder": {"decoder": 512, "decoder_heads": 16},
    "fine-tuned": {"classes": 10},
}


@pytest.mark.parametrize("variant", MAES)
def test_mae(tmp_path: Path, variant: str) -> None:
    ours = assert_there_and_back(random(Mae, **MAES[variant]), "mae", tmp_path)
    config = ours.model.config
    tuned = variant == "fine-tuned"
    assert config.positions.kind == ("learned" if tuned else "sincos-2d")
    assert (config.pool, config.final_norm) == (("mean", "pooled") if tuned else ("cls", "tokens"))
    assert (ours.decoder is not None) == ("decoder" in MAES[variant])


@pytest.mark.parametrize("variant", ["pre-training", "published decoder"])
def test_the_decoder_rebuilds_the_same_pixels(tmp_path: Path, variant: str) -> None:
    """Encoder on the kept patches, decoder on all: values of every patch by row, column, channel."""
    theirs = random(Mae, **MAES[variant])
    ours = load(saved(theirs, tmp_path / "theirs.pth"))
    assert isinstance(ours.decoder, MaskedDecoder)
    assert ours.decoder.config.heads == MAES[variant].get("decoder_heads", 1)
    pixels = torch.randn(2, 3, 32, 32)
    order = torch.rand(2, 16).argsort(1)
    with torch.no_grad():
        expected = theirs.rebuild(pixels, order, kept=6)
        x, place = ours.model.tokens(ours.model.patches(pixels), (4, 4))
        kept = x[:, 1:].gather(1, order[:, :6, None].expand(-1, -1, 128))
        x = ours.model.encoder(torch.cat((x[:, :1], kept), 1), place).tokens
        got = ours.decoder(ours.model.normed(x), order.argsort(1))
    assert got.shape == (2, 16, 192)
    assert renames.gap(got, expected) < CLOSE


def test_fixed_positions_are_ours_and_stay_as_the_file_has_them(tmp_path: Path) -> None:
    """The table is a buffer that the file fills: MAE's own to the last digits, and another one bit for bit."""
    theirs = random(Mae, decoder=64)
    ours = load(saved(theirs, tmp_path / "theirs.pth"))
    fresh = ViT(ours.model.config).state_dict()["tokens.tables.0.table"]
    assert torch.allclose(fresh, theirs.pos_embed[0], atol=1e-6)
    assert "tokens.tables.0.table" not in dict(ours.model.named_parameters())
    with torch.no_grad():
        theirs.pos_embed.add_(torch.randn_like(theirs.pos_embed))
    ours = load(saved(theirs, tmp_path / "moved.pth"))
    assert torch.equal(ours.model.state_dict()["tokens.tables.0.table"], theirs.pos_embed[0])
    assert_equal(ours.model, theirs)
    convert(tmp_path / "moved.pth", tmp_path / "ours.pth", to="mae")
    assert_same_bits(torch.load(tmp_path / "ours.pth", weights_only=True)["model"], theirs.state_dict())


def test_without_the_decoder(tmp_path: Path) -> None:
    theirs = random(Mae, decoder=64)
    ours = load(saved(theirs, tmp_path / "theirs.pth"), leave_out=("decoder",))
    assert ours.decoder is None
    assert_equal(ours.model, theirs)
    state = {name: value for name, value in theirs.state_dict().items() if name != "decoder_norm.bias"}
    with pytest.raises(CheckpointError, match=r"missing decoder\.norm\.bias \[64\] \(theirs: decoder_norm\.bias\)"):
        load(saved(state, tmp_path / "short.pth"))


def test_the_head_of_a_linear_probe_is_left_out_by_name(tmp_path: Path) -> None:
    """MAE's probe has a batch norm before its layer, which no head of ours has."""
    theirs = random(Mae)
    head = nn.Sequential(nn.BatchNorm1d(128, affine=False), nn.Linear(128, 10))
    state = theirs.state_dict() | {f"head.{name}": value for name, value in head.state_dict().items()}
    path = saved(state, tmp_path / "probe.pth")
    with pytest.raises(CheckpointError, match=r"not used head\.0\.running_mean.*leave_out=\('head',\)"):
        load(path)
    assert_equal(load(path, leave_out=("head",)).model, theirs)


@pytest.mark.parametrize("variant", ["encoder", "fine-tuned"])
def test_mae_as_timm_reads_it(timm: ModuleType, tmp_path: Path, variant: str) -> None:
    from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

    theirs = random(Mae, **MAES[variant])
    path = saved(theirs, tmp_path / "theirs.pth")
    pool = "avg" if variant == "fine-tuned" else "token"
    witness = VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=128,
        depth=2,
        num_heads=2,
        mlp_ratio=2,
        num_classes=10 if variant == "fine-tuned" else 0,
        global_pool=pool,
    ).eval()
    witness.load_state_dict(checkpoint_filter_fn(torch.load(path, weights_only=True), witness), strict=True)
    assert_equal(load(path).model, witness, SIZES[:1])


def test_mae_as_transformers_rebuilds(transformers: ModuleType, tmp_path: Path) -> None:
    """transformers' ViTMAE with our tensors under its names: the same pixels from the same kept patches."""
    ours = load(saved(random(Mae, decoder=64), tmp_path / "theirs.pth"))
    assert ours.decoder is not None
    config = transformers.ViTMAEConfig(
        image_size=32,
        patch_size=8,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        decoder_hidden_size=64,
        decoder_intermediate_size=128,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=1,
        layer_norm_eps=1e-6,
        mask_ratio=0.5,
    )
    witness = transformers.ViTMAEForPreTraining(config).eval()
    state = witness.state_dict()
    encoder = {name.removeprefix("vit."): value for name, value in state.items() if name.startswith("vit.")}
    given = {f"vit.{name}": value for name, value in renames.to_theirs(renames.HF, ours.model, encoder).items()}
    given |= decoder_names(ours.decoder)
    witness.load_state_dict({name: given[name].reshape(value.shape) for name, value in state.items()}, strict=True)
    pixels, noise = torch.randn(2, 3, 32, 32), torch.rand(2, 16)
    order = noise.argsort(1)
    with torch.no_grad():
        expected = witness(pixels, noise=noise).logits
        x, place = ours.model.tokens(ours.model.patches(pixels), (4, 4))
        kept = x[:, 1:].gather(1, order[:, :8, None].expand(-1, -1, 128))
        x = ours.model.encoder(torch.cat((x[:, :1], kept), 1), place).tokens
        got = ours.decoder(ours.model.normed(x), order.argsort(1))
    assert renames.gap(got, expected) < CLOSE


def decoder_names(decoder: MaskedDecoder) -> dict[str, torch.Tensor]:
    """Our decoder's tensors under transformers' names."""
    ends = {
        "entry": "decoder_embed",
        "norm": "decoder_norm",
        "predict": "decoder_pred",
        "mask_token": "mask_token",
        "positions.table": "decoder_pos_embed",
    }
    inside = {
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attention.out": "attention.o_proj",
        "mlp.up": "mlp.fc1",
        "mlp.down": "mlp.fc2",
    }
    found = {}
    for name, value in decoder.state_dict().items():
        if name.startswith("encoder.blocks."):
            block, _, rest = name.removeprefix("encoder.blocks.").partition(".")
            part, _, leaf = rest.rpartition(".")
            before = f"decoder.decoder_layers.{block}."
            if part == "attention.qkv":
                for letter, third in zip("qkv", value.chunk(3), strict=True):
                    found[f"{before}attention.{letter}_proj.{leaf}"] = third
            else:
                found[f"{before}{inside[part]}.{leaf}"] = value
        else:
            part, _, leaf = name.rpartition(".")
            found[f"decoder.{ends[name]}" if name in ends else f"decoder.{ends[part]}.{leaf}"] = value
    return found
