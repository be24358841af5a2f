"""ViT-pytorch's .bin files: the numbers of a network written from its description; to Google's npz and back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from network import renames
from vitrail.errors import CheckpointError
from vitrail.weights import convert, load
from vitrail.weights.families.google import RESAMPLE
from weights import google_writer as writer
from weights.google_writer import Network
from weights.parity import SIZES, assert_equal, assert_same_bits

SIZED = Network(width=128, heads=2, head_width=64, mlp=192)


class Theirs(nn.Module):
    """A plain network under ViT-pytorch's names: cls first, positions for all, norms before, exact GELU."""

    def __init__(self, network: Network = SIZED) -> None:
        super().__init__()
        width = network.width
        self.network = network
        embeddings = nn.Module()
        embeddings.patch_embeddings = nn.Conv2d(network.channels, width, network.patch, network.patch)
        embeddings.position_embeddings = nn.Parameter(torch.zeros(1, network.grid**2 + 1, width))
        embeddings.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        encoder = nn.Module()
        encoder.layer = nn.ModuleList(self._block(network) for _ in range(network.depth))
        encoder.encoder_norm = nn.LayerNorm(width, eps=1e-6)
        self.transformer = nn.Module()
        self.transformer.embeddings, self.transformer.encoder = embeddings, encoder
        self.head = nn.Linear(width, network.classes)
        renames.randomise(self)

    @staticmethod
    def _block(network: Network) -> nn.Module:
        width = network.width
        block = nn.Module()
        block.attention_norm, block.ffn_norm = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        block.attn, block.ffn = nn.Module(), nn.Module()
        for name in ("query", "key", "value", "out"):
            setattr(block.attn, name, nn.Linear(width, width))
        block.ffn.fc1, block.ffn.fc2 = nn.Linear(width, network.mlp), nn.Linear(network.mlp, width)
        return block

    def forward(self, pixels: Tensor) -> Tensor:
        inputs = self.transformer.embeddings
        patches = inputs.patch_embeddings(pixels)
        grid = (patches.shape[2], patches.shape[3])
        places = inputs.position_embeddings[0]
        side = self.network.grid
        table = writer.zoom(places[1:].detach().double().reshape(side, side, -1).numpy(), grid)
        places = torch.cat((places[:1], torch.from_numpy(table).float().flatten(0, 1)))
        x = torch.cat((inputs.cls_token.expand(len(pixels), -1, -1), patches.flatten(2).transpose(1, 2)), dim=1)
        x = x + places
        for block in self.transformer.encoder.layer:
            y = block.attention_norm(x)
            split = [
                layer(y).unflatten(-1, (self.network.heads, -1)).transpose(1, 2)
                for layer in (block.attn.query, block.attn.key, block.attn.value)
            ]
            scores = (split[0] @ split[1].transpose(-1, -2) / math.sqrt(split[0].shape[-1])).softmax(dim=-1)
            x = x + block.attn.out((scores @ split[2]).transpose(1, 2).flatten(2))
            x = x + block.ffn.fc2(nn.functional.gelu(block.ffn.fc1(block.ffn_norm(x))))
        return self.head(self.transformer.encoder.encoder_norm(x)[:, 0])


def saved(path: Path, state: dict[str, Tensor]) -> Path:
    torch.save(state, path)
    return path


def read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".bin":
        return torch.load(path, weights_only=True)
    with np.load(path) as arrays:
        return {name: torch.from_numpy(np.array(arrays[name])) for name in arrays.files}


def test_read_and_written_back(tmp_path: Path) -> None:
    """Equal logits at three sizes; written back, the same bits, which their own network loads strictly."""
    theirs = Theirs()
    path = saved(tmp_path / "theirs.bin", theirs.state_dict())
    ours = load(path)
    assert ours.provenance.family == "jeonsworld"
    assert_equal(ours.model, theirs, SIZES)
    report = convert(path, tmp_path / "ours.bin", to="jeonsworld")
    assert (report.preprocess_carried, report.not_carried) == (True, ())
    assert_same_bits(read(tmp_path / "ours.bin"), read(path))
    fresh = Theirs()
    fresh.load_state_dict(read(tmp_path / "ours.bin"), strict=True)
    assert_equal(ours.model, fresh, SIZES)


def test_from_several_machines(tmp_path: Path) -> None:
    """What data-parallel training puts before every name is taken off."""
    theirs = Theirs()
    path = saved(tmp_path / "theirs.bin", {f"module.{name}": value for name, value in theirs.state_dict().items()})
    assert_equal(load(path).model, theirs, ((32, 32),))


def test_what_the_code_says(tmp_path: Path) -> None:
    ours = load(saved(tmp_path / "theirs.bin", Theirs().state_dict()))
    config = ours.model.config
    assert (config.activation, config.norm_eps, config.positions.resample) == ("gelu", 1e-6, RESAMPLE)
    preprocess = ours.preprocess
    assert (preprocess.resize, preprocess.interpolation, preprocess.antialias) == ("squash", "bilinear", True)
    assert (preprocess.mean, preprocess.std) == ((0.5,) * 3, (0.5,) * 3)


def test_heads_are_asked_for(tmp_path: Path) -> None:
    """No tensor says them: 64 values a head, or what is given."""
    narrow = Network(heads=4)  # of 64 values
    theirs = Theirs(narrow)
    path = saved(tmp_path / "theirs.bin", theirs.state_dict())
    assert load(path).model.config.heads == 1
    assert_equal(load(path, override={"heads": 4}).model, theirs)
    thin = saved(tmp_path / "thin.bin", Theirs(Network(width=32, heads=4, head_width=8)).state_dict())
    with pytest.raises(CheckpointError, match="override={'heads': N}"):
        load(thin)


@pytest.mark.row("001.08")
def test_a_larger_size_without_the_head(tmp_path: Path) -> None:
    theirs = Theirs()
    path = saved(tmp_path / "theirs.bin", theirs.state_dict())
    ours = load(path, override={"image_size": 56}, leave_out=("head",)).model
    assert (ours.config.image_size, ours.config.classes) == ((56, 56), 0)
    theirs.head = nn.Identity()
    assert_equal(ours, theirs, ((56, 56),))


@pytest.mark.row("001.08")
def test_google_to_vit_pytorch_and_back(tmp_path: Path) -> None:
    """What load_from does: per-head kernels become square ones; the form of GELU is named, then accepted."""
    arrays = writer.draw(SIZED)
    path = writer.save(tmp_path / "google.npz", writer.vit_jax(arrays))
    with pytest.raises(CheckpointError, match="activation: gelu_tanh, and it would come back as gelu"):
        convert(path, tmp_path / "refused.bin", to="jeonsworld")
    assert not (tmp_path / "refused.bin").exists()
    convert(path, tmp_path / "ours.bin", to="jeonsworld", override={"activation": "gelu"})
    state = read(tmp_path / "ours.bin")
    block = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1"
    google = read(path)
    expected = google[f"{block}/query/kernel"].reshape(128, 128).t()
    assert torch.equal(state["transformer.encoder.layer.1.attn.query.weight"], expected)
    assert torch.equal(
        state["transformer.encoder.layer.1.attn.out.weight"], google[f"{block}/out/kernel"].reshape(128, 128).t()
    )
    kernel = google["embedding/kernel"].permute(3, 2, 0, 1)
    assert torch.equal(state["transformer.embeddings.patch_embeddings.weight"], kernel)
    theirs = Theirs()
    theirs.load_state_dict(state, strict=True)
    assert_equal(load(path, override={"activation": "gelu"}).model, theirs)
    convert(tmp_path / "ours.bin", tmp_path / "back.npz", to="google", override={"activation": "gelu_tanh"})
    assert_same_bits(read(tmp_path / "back.npz"), google)
    convert(tmp_path / "ours.bin", tmp_path / "bv.npz", to="big_vision", override={"activation": "gelu_tanh"})
    convert(tmp_path / "bv.npz", tmp_path / "again.bin", to="jeonsworld", override={"activation": "gelu"})
    assert_same_bits(read(tmp_path / "again.bin"), state)


def test_hybrids_are_refused(tmp_path: Path) -> None:
    """The same names hold another computation than Google's: both are named."""
    state = Theirs().state_dict() | {"transformer.embeddings.hybrid_model.root.conv.weight": torch.ones(64, 3, 7, 7)}
    with pytest.raises(CheckpointError, match="a hybrid of ViT-pytorch.*Google's pads as SAME"):
        load(saved(tmp_path / "hybrid.bin", state))
    google = writer.save(tmp_path / "google.npz", writer.vit_jax(writer.draw(Network(patch=2, resnet=()))))
    with pytest.raises(CheckpointError, match="jeonsworld has no place for stem.root.weight"):
        convert(google, tmp_path / "out.bin", to="jeonsworld", override={"activation": "gelu"})


@pytest.mark.parametrize(
    "network, message",
    [
        (Network(representation=48), "no place for head.representation.weight"),
        (Network(heads=3, head_width=8), "heads share the width, and here 3 of 8 do not make 64"),
        (Network(pool="gap"), "ViT-pytorch has a cls token with a position"),
        (Network(), "heads: 4, and it would come back as 1"),
    ],
)
def test_what_vit_pytorch_has_no_place_for(tmp_path: Path, network: Network, message: str) -> None:
    path = writer.save(tmp_path / "google.npz", writer.vit_jax(writer.draw(network)))
    with pytest.raises(CheckpointError, match=message):
        convert(path, tmp_path / "out.bin", to="jeonsworld", override={"activation": "gelu"})
    assert [each.name for each in tmp_path.iterdir()] == ["google.npz"]


@pytest.mark.fault("W9")
@pytest.mark.parametrize(
    "name, value, message",
    [
        ("head.bias", torch.ones(8), r"head.classify.bias: expected \[7\], got head.bias \[8\]"),
        ("transformer.encoder.layer.1.ffn.fc1.bias", None, r"missing encoder.blocks.1.mlp.up.bias \[192\]"),
        ("pre_logits.weight", torch.ones(3), "not used pre_logits.weight"),
        ("transformer.encoder.layer.0.attn.key.weight", torch.ones(64, 128), "attention.qkv.weight: expected"),
        ("transformer.embeddings.patch_embeddings.weight", torch.ones(128, 3, 0, 8), "patch_size"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, value: Any, message: str) -> None:
    state = dict(Theirs().state_dict())
    state[name] = value
    if value is None:
        del state[name]
    with pytest.raises(CheckpointError, match=message):
        load(saved(tmp_path / "wrong.bin", state))
