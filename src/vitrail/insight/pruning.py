"""prune_heads: a model and heads to cut -> a smaller model that computes what masking them did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from vitrail.checks import instance, whole
from vitrail.errors import InputError
from vitrail.network.config import ViTConfig
from vitrail.network.vit import ViT


def prune_heads(model: ViT, heads: Mapping[int, Iterable[int]]) -> ViT:
    """Cut heads out of blocks: {block: heads}, by their original numbers.

    The new model's config keeps the numbers of the heads left, so masks, further cuts and figures still mean the
    heads as trained. Cutting one that is already gone changes nothing.
    """
    instance("model", model, ViT, error=InputError)
    old = model.config
    kept = _kept_after(old, heads)
    full = tuple(tuple(range(old.heads)) for _ in range(old.depth))
    config = replace(old, kept_heads=None if kept == full else kept)
    state = model.state_dict()
    for block in range(old.depth):
        left = [old.heads_of(block).index(head) for head in kept[block]]
        if len(left) < len(old.heads_of(block)):
            _cut(state, block, left, old)
    with torch.device("meta"):
        smaller = ViT(config)
    smaller.load_state_dict({name: value.clone() for name, value in state.items()}, assign=True)
    for name, parameter in model.named_parameters():
        smaller.get_parameter(name).requires_grad_(parameter.requires_grad)
    smaller.encoder.like(model.encoder)
    return smaller.train(model.training)


def _kept_after(config: ViTConfig, heads: Mapping[int, Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """The heads left in each block, or an error that names the block and the head."""
    kept = [config.heads_of(block) for block in range(config.depth)]
    if not isinstance(heads, Mapping):
        raise InputError(f"heads to prune: expected {{block: [heads]}}, got {heads!r:.80}")
    for block, numbers in heads.items():
        whole("block to prune", block, 0, config.depth - 1, error=InputError)
        if not isinstance(numbers, Iterable):
            raise InputError(f"heads of block {block}: expected a list of numbers, got {numbers!r:.80}")
        cut = list(numbers)
        for head in cut:
            whole(f"head to prune from block {block}", head, 0, config.heads - 1, error=InputError)
        left = tuple(head for head in kept[block] if head not in cut)
        if not left:
            raise InputError(f"pruning {sorted(set(cut))} would leave block {block} without heads: keep at least one")
        kept[block] = left
    return tuple(kept)


def _cut(state: dict[str, Tensor], block: int, left: list[int], config: ViTConfig) -> None:
    """Keep only the rows and columns of the heads left, in the weights of one block."""
    heads, width = len(config.heads_of(block)), config.per_head
    prefix = f"encoder.blocks.{block}.attention."

    def rows(tensor: Tensor, parts: int) -> Tensor:  # (parts * heads * width, …)
        return tensor.reshape(parts, heads, width, *tensor.shape[1:])[:, left].flatten(0, 2)

    for name, parts in (("qkv.weight", 3), ("qkv.bias", 3), ("query_bias", 1), ("value_bias", 1)):
        if prefix + name in state:
            state[prefix + name] = rows(state[prefix + name], parts)
    state[prefix + "out.weight"] = state[prefix + "out.weight"].unflatten(1, (heads, width))[:, left].flatten(1)
    mixed = f"tokens.rotary.mixed.{block}"
    if mixed in state:
        state[mixed] = state[mixed][left]
