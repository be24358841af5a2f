"""prune_heads, prune_channels: a model and parts to cut -> a smaller model that computes what masking them did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from vitrail.checks import check_int, check_type
from vitrail.errors import InputError
from vitrail.network.config import ViTConfig
from vitrail.network.surgery import rebuild
from vitrail.network.vit import ViT


def prune_heads(model: ViT, heads: Mapping[int, Iterable[int]]) -> ViT:
    """Cut heads out of blocks: {block: heads}, by their original numbers.

    The new model's config keeps the numbers of the heads left, so masks, further cuts and figures still mean the
    heads as trained. Cutting one that is already gone changes nothing.

    - model: a ViT, which stays as it is.
    - heads: numbers of heads under the numbers of their blocks.
    """
    check_type("model", model, ViT, error=InputError)
    old = model.config
    kept = _kept_after(old, heads)
    full = tuple(tuple(range(old.heads)) for _ in range(old.depth))
    config = replace(old, kept_heads=None if kept == full else kept)
    state = model.state_dict()
    for block in range(old.depth):
        left = [old.heads_of(block).index(head) for head in kept[block]]
        if len(left) < len(old.heads_of(block)):
            _cut(state, block, left, old)
    return rebuild(model, config, _cloned(state))


def prune_channels(model: ViT, channels: Mapping[int, Iterable[int]]) -> ViT:
    """Cut channels out of the MLPs: {block: channels}, as many of every block, so that the config keeps one MLP width.

    What a channel carried is gone, as if it were always 0.
    """
    check_type("model", model, ViT, error=InputError)
    old = model.config
    cut = _channels_to_cut(old, channels)
    state = model.state_dict()
    for block, numbers in cut.items():
        prefix = f"encoder.blocks.{block}.mlp."
        left = [channel for channel in range(old.mlp_width) if channel not in numbers]
        chosen = torch.tensor(left, dtype=torch.long).to(state[prefix + "down.weight"].device)
        parts = 2 if old.mlp == "swiglu" else 1
        for name in ("up.weight", "up.bias"):
            value = state[prefix + name]
            state[prefix + name] = value.unflatten(0, (parts, -1)).index_select(1, chosen).flatten(0, 1)
        state[prefix + "down.weight"] = state[prefix + "down.weight"].index_select(1, chosen)
    width = old.mlp_width - len(next(iter(cut.values()), ()))
    return rebuild(model, replace(old, mlp_width=width), _cloned(state))


def _channels_to_cut(config: ViTConfig, channels: Mapping[int, Iterable[int]]) -> dict[int, set[int]]:
    """The same number of channels of every block, or an error that says what is wrong."""
    if config.pool == "map":
        raise InputError("attention pooling has an MLP of the same width: its channels cannot be cut, heads can")
    cut = _numbers_by_block("channel", channels, config.depth, config.mlp_width)
    counts = {len(cut.get(block, ())) for block in range(config.depth)}
    if len(counts) > 1:
        raise InputError(f"channels to prune: expected as many of every block, got from {min(counts)} to {max(counts)}")
    if counts == {config.mlp_width}:
        raise InputError(f"pruning all {config.mlp_width} channels would leave the MLPs empty: keep at least one")
    return cut


def _cloned(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}


def _kept_after(config: ViTConfig, heads: Mapping[int, Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """The heads left in each block, or an error that names the block and the head."""
    kept = [config.heads_of(block) for block in range(config.depth)]
    for block, cut in _numbers_by_block("head", heads, config.depth, config.heads).items():
        kept[block] = tuple(head for head in kept[block] if head not in cut)
        if not kept[block]:
            raise InputError(f"pruning {sorted(cut)} would leave block {block} without heads: keep at least one")
    return tuple(kept)


def _numbers_by_block(part: str, given: Mapping[int, Iterable[int]], depth: int, count: int) -> dict[int, set[int]]:
    """{block: heads or channels}, of `count` in each of `depth` blocks, or an error that names what cannot be cut."""
    if not isinstance(given, Mapping):
        raise InputError(f"{part}s to prune: expected {{block: [{part}s]}}, got {given!r:.80}")
    by_block = {}
    for block, numbers in given.items():
        check_int("block to prune", block, 0, depth - 1, error=InputError)
        if not isinstance(numbers, Iterable):
            raise InputError(f"{part}s of block {block}: expected a list of numbers, got {numbers!r:.80}")
        check = partial(check_int, f"{part} to prune from block {block}", least=0, most=count - 1, error=InputError)
        by_block[block] = set(map(check, numbers))
    return by_block


def _cut(state: dict[str, Tensor], block: int, left: list[int], config: ViTConfig) -> None:
    """Keep only the rows and columns of the heads left, in the weights of one block."""
    heads, width = len(config.heads_of(block)), config.per_head
    prefix = f"encoder.blocks.{block}.attention."
    chosen = torch.tensor(left, dtype=torch.long).to(state[prefix + "out.weight"].device)

    def rows(tensor: Tensor, parts: int) -> Tensor:  # (parts * heads * width, …)
        return tensor.reshape(parts, heads, width, *tensor.shape[1:]).index_select(1, chosen).flatten(0, 2)

    for name, parts in (("qkv.weight", 3), ("qkv.bias", 3), ("query_bias", 1), ("value_bias", 1)):
        if prefix + name in state:
            state[prefix + name] = rows(state[prefix + name], parts)
    columns = state[prefix + "out.weight"].unflatten(1, (heads, width))
    state[prefix + "out.weight"] = columns.index_select(1, chosen).flatten(1)
    mixed = f"tokens.rotary.mixed.{block}"
    if mixed in state:
        state[mixed] = state[mixed].index_select(0, chosen)
