"""Names of tensors as each version of transformers has them; missing ones and those too many."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitrail.errors import CheckpointError
from vitrail.weights import convert, load
from weights.parity import assert_same_bits
from weights.transformers_cases import (
    CASES,
    SMALL,
    Case,
    build,
    edited,
    saved,
)

IN_MEMORY = (
    *("ViT", "ViT without pooler", "ViT, classes", "DeiT, both heads", "MSN, classes", "I-JEPA", "DINOv2"),
    *("DINOv2, gated", "DINOv2, registers, classes", "DINOv3, gated", "CLIP", "SigLIP", "SigLIP 2"),
)


@pytest.mark.parametrize("name", IN_MEMORY)
def test_names_as_version_5_has_them_in_memory(transformers: ModuleType, tmp_path: Path, name: str) -> None:
    """A state dict saved by hand, beside its config.json or alone in a pickle, is the same network."""
    case = CASES[name]
    model = build(transformers, case)
    folder = saved(model, tmp_path / "folder")
    expected = load(folder)
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    by_hand = load(folder)
    assert by_hand.model.config == expected.model.config
    assert_same_bits(by_hand.model.state_dict(), expected.model.state_dict())
    torch.save(state, tmp_path / "alone.bin")
    config = expected.model.config
    override = {"heads": 4} | {name: getattr(config, name) for name in ("activation", "norm_eps", "rotary")}
    alone = load(tmp_path / "alone.bin", override=override)
    assert_same_bits(alone.model.state_dict(), expected.model.state_dict())
    assert alone.model.config.pool == config.pool
    assert alone.model.config.positions.resample == config.positions.resample


def test_another_prefix_and_the_numbers_of_positions(transformers: ModuleType, tmp_path: Path) -> None:
    """Older files keep position_ids, which say nothing new: right ones are passed over, wrong ones refused."""
    folder = saved(build(transformers, CASES["CLIP"]), tmp_path / "theirs")
    stored = load_file(folder / "model.safetensors")
    expected = load(folder).model.state_dict()
    older = {f"vision_model.{name}": value for name, value in stored.items()}
    save_file(older | {"vision_model.embeddings.position_ids": torch.arange(17)[None]}, folder / "model.safetensors")
    assert_same_bits(load(folder).model.state_dict(), expected)
    convert(folder, tmp_path / "ours", to="transformers")
    assert_same_bits(load_file(tmp_path / "ours" / "model.safetensors"), older)
    wrong = torch.arange(17).flip(0)[None]
    save_file(older | {"vision_model.embeddings.position_ids": wrong}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="position_ids"):
        load(folder)


def test_a_mask_token_is_kept(transformers: ModuleType, tmp_path: Path) -> None:
    folder = saved(build(transformers, CASES["DINOv3"]), tmp_path / "theirs")
    stored = load_file(folder / "model.safetensors")["embeddings.mask_token"]
    assert torch.equal(load(folder).extras["mask_token"], stored[0])
    model = build(transformers, Case("ViTForMaskedImageModeling", "ViTConfig", {**SMALL, "encoder_stride": 8}))
    folder = saved(model, tmp_path / "masked")
    ours = load(folder, leave_out=("decoder",))
    assert torch.equal(ours.extras["mask_token"], model.vit.embeddings.mask_token[0].detach())
    report = convert(folder, tmp_path / "ours", to="transformers", leave_out=("decoder",))
    assert report.not_carried[0] == "extras.mask_token"


@pytest.mark.fault("W9")
def test_tensors_that_are_missing_or_too_many(transformers: ModuleType, vit_folder: Path, tmp_path: Path) -> None:
    """LayerScale that is gone; a pooler that no classifier asks; patches of nothing; two biases of three."""
    folder = saved(build(transformers, CASES["DINOv2"]), tmp_path / "dinov2")
    stored = load_file(folder / "model.safetensors")
    gone = {name: value for name, value in stored.items() if "layer_scale2" not in name}
    save_file(gone, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing encoder.blocks.0.scale2.gamma"):
        load(folder)
    folder = edited(vit_folder, tmp_path / "pooler")
    stored = load_file(folder / "model.safetensors")
    more = {"vit.pooler.dense.weight": torch.randn(64, 64), "vit.pooler.dense.bias": torch.randn(64)}
    save_file(stored | more, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"leave_out=\('pooler',\)"):
        load(folder)
    assert load(folder, leave_out=("pooler",)).model.config.representation_width == 0
    name = "vit.embeddings.patch_embeddings.projection.weight"
    save_file(stored | {name: torch.zeros(64, 3, 0, 0)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="patch_size"):
        load(folder)
    key = "vit.encoder.layer.0.attention.attention.key.bias"
    save_file({name: value for name, value in stored.items() if name != key}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=key):
        load(folder)
