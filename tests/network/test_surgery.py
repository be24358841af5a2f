"""Surgery: whatever is changed about a network, what was frozen, its modes and its memory options stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from vitrail.checkpoint import Checkpoint
from vitrail.errors import InputError
from vitrail.images import Preprocess
from vitrail.insight.pruning import prune_channels, prune_heads
from vitrail.network import ViT, ViTConfig, rebuild, with_head, with_merging
from vitrail.quantisation.folding import fold
from vitrail.quantisation.pooled_block import pool_only
from vitrail.weights import with_channels, with_classes, with_size
from vitrail.weights.adaptation import adapt_channels

FROZEN = {"patches.projection.weight", "tokens.cls", "encoder.blocks.1.mlp.up.weight", "encoder.blocks.2.norm1.bias"}
EVAL = {"encoder.blocks.1", "encoder.blocks.1.mlp", "norm"}


def build() -> ViT:
    """A small model in training, but for some parts, with some parameters frozen and both memory options on."""
    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 3, "heads": 4, "mlp_width": 24, "classes": 5}
    model = ViT(ViTConfig(**sizes, layer_scale=0.5, initialisation="timm")).train()
    for name in FROZEN:
        model.get_parameter(name).requires_grad_(False)
    for name in EVAL:
        model.get_submodule(name).training = False
    model.encoder.checkpointing, model.encoder.mlp_chunk = True, 3
    return model


def on_checkpoint(change: Callable[[Checkpoint], Checkpoint]) -> Callable[[ViT], ViT]:
    preprocess = Preprocess(size=16, mean=0.5, std=0.25)
    return lambda model: change(Checkpoint(model, preprocess, tuple("abcde"))).model


SURGERIES: dict[str, Callable[[ViT], ViT]] = {
    "rebuild": lambda model: rebuild(model, replace(model.config, dropout=0.1)),
    "new head": lambda model: with_head(model, 3),
    "merging": lambda model: with_merging(model, 2),
    "pruned heads": lambda model: prune_heads(model, {0: [1], 2: [0, 3]}),
    "pruned channels": lambda model: prune_channels(model, {block: [0, 5] for block in range(3)}),
    "channels": lambda model: adapt_channels(model, 5),
    "same channels": lambda model: adapt_channels(model, 3),
    "classes by name": on_checkpoint(lambda checkpoint: with_classes(checkpoint, ["b", "new"])),
    "grey": on_checkpoint(lambda checkpoint: with_channels(checkpoint, 1)),
    "more bands": on_checkpoint(lambda checkpoint: with_channels(checkpoint, 6)),
    "size": on_checkpoint(lambda checkpoint: with_size(checkpoint, 24)),
    "folded": fold,
    "pooled tokens only": lambda model: pool_only(rebuild(model, model.config)),
}


@pytest.mark.parametrize("kind", SURGERIES)
def test_what_was_frozen_its_modes_and_its_memory_options_stay(kind: str) -> None:
    model = build()
    changed = SURGERIES[kind](model)
    assert changed is not model
    frozen = {name for name, parameter in changed.named_parameters() if not parameter.requires_grad}
    assert frozen == FROZEN
    assert {name for name, module in changed.named_modules() if not module.training} == EVAL
    assert (changed.encoder.checkpointing, changed.encoder.mlp_chunk) == (True, 3)
    assert [block.mlp_chunk for block in changed.encoder.blocks] == [3, 3, 3]
    pixels = torch.randn(2, changed.config.channels, *changed.config.image_size)
    assert changed(pixels).isfinite().all()


def test_a_new_head_learns_though_the_old_one_was_frozen() -> None:
    changed = with_head(build().requires_grad_(False), 3)
    trained = {name for name, parameter in changed.named_parameters() if parameter.requires_grad}
    assert trained == {"head.classify.weight", "head.classify.bias"}


def test_rebuilt_networks_share_their_tensors_and_leave_out_what_has_no_use() -> None:
    model = build().eval()
    pixels = torch.randn(2, 3, 16, 16)
    same = rebuild(model, model.config)
    assert torch.equal(same(pixels), model(pixels))
    theirs = model.state_dict()
    assert all(value.data_ptr() == theirs[name].data_ptr() for name, value in same.state_dict().items())
    bare = rebuild(model, replace(model.config, classes=0, layer_scale=None))
    assert set(theirs) - set(bare.state_dict()) == {
        *("head.classify.weight", "head.classify.bias"),
        *(f"encoder.blocks.{block}.scale{number}.gamma" for block in range(3) for number in (1, 2)),
    }
    with pytest.raises(RuntimeError, match="head.representation.weight"):  # never made up
        rebuild(model, replace(model.config, representation_width=8))
    with pytest.raises(InputError, match="model: expected ViT"):
        with_merging("vit-b16", 1)  # type: ignore[arg-type]
