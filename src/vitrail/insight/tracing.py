"""trace: a model and pixels -> everything the model computed on the way, exact and on the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from vitrail.checks import instance, whole
from vitrail.errors import InputError
from vitrail.network.encoder import Tape
from vitrail.network.vit import ViT


class Trace(NamedTuple):
    """What a pass leaves behind; read it by name or unpack it."""

    tokens: Tensor  # (B, T, D), after the final norm
    pooled: Tensor  # what the last layer receives: (B, D), cls+mean (B, 2D), cls+distillation (B, 2, D), none (B, T, D)
    logits: Tensor  # (B, K)
    hidden: tuple[Tensor, ...]  # depth + 1 of (B, T, D), the embedding output first; empty if not asked for
    attention: tuple[Tensor, ...]  # (B, A, T, T) for each block asked for; rows sum to 1, before any head mask
    pool_weights: Tensor  # (B, T), how much of each token the pool took


def trace(
    model: ViT,
    pixels: Tensor,
    attention: bool = True,
    hidden: bool = True,
    head_mask: Tensor | None = None,
    blocks: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
) -> Trace:
    """Run the model once and keep what it computed.

    `blocks` names the blocks whose attention is wanted (all by default; -1 is the last). In those blocks explicit
    attention takes the place of the fused kernel, so `torch.autograd.grad(logit, trace.attention)` works.
    `rows` names tokens (prefix tokens first) whose attention alone is wanted, (B, A, rows, T): the fused kernel stays,
    and the rows cost next to nothing. They are computed beside it, so nothing flows back through them.
    """
    instance("model", model, ViT, error=InputError)
    for name, given in (("blocks", blocks), ("rows", rows)):
        if given is not None and not attention:
            raise InputError(f"{name} says whose attention is wanted, but attention=False: leave one of them out")
    wanted = _numbers("blocks", blocks, model.config.depth) if attention else []
    tape = Tape(wanted, hidden, [] if rows is None else _tokens(model, pixels, rows))
    encoded = model.encode(pixels, head_mask, tape)
    tokens = model.normed(encoded.tokens)
    after = model.config.final_norm == "pooled"
    vector, weights = model.pool.weigh(encoded.tokens if after else tokens, encoded.place)
    pooled = model.head.represent(model.normed(vector) if after else vector)
    return Trace(
        tokens,
        pooled,
        model.head(pooled),
        tuple(tape.hidden),
        tuple(tape.attention[block] for block in wanted),
        weights,
    )


def _tokens(model: ViT, pixels: Tensor, rows: Sequence[int]) -> list[int]:
    """Numbers of tokens, of a network that keeps them all."""
    config = model.config
    if config.merge_per_block:
        raise InputError("rows: this network merges tokens, so their numbers change: leave rows out")
    h, w = model.grid_of(pixels)
    if not _numbers("rows", rows, config.prefix + h * w):
        raise InputError("rows: expected at least one token, got none: leave rows out for all")
    return _numbers("rows", rows, config.prefix + h * w)


def _numbers(name: str, wanted: Sequence[int] | None, count: int) -> list[int]:
    """Numbers from 0; negative ones count from the end."""
    if wanted is None:
        return list(range(count))
    if not isinstance(wanted, Sequence):
        raise InputError(f"{name}: expected a list of numbers, got {wanted!r:.80}")
    for each in wanted:
        whole(name, each, -count, count - 1, error=InputError)
    return [int(each) % count for each in wanted]
