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
) -> Trace:
    """Run the model once and keep what it computed.

    `blocks` names the blocks whose attention is wanted (all by default; -1 is the last). In those blocks explicit
    attention takes the place of the fused kernel, so `torch.autograd.grad(logit, trace.attention)` works.
    """
    instance("model", model, ViT, error=InputError)
    if blocks is not None and not attention:
        raise InputError("blocks names blocks whose attention is wanted, but attention=False: leave one of them out")
    wanted = _numbers(blocks, model.config.depth) if attention else []
    tape = Tape(wanted, hidden)
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


def _numbers(blocks: Sequence[int] | None, depth: int) -> list[int]:
    """Block numbers from 0; negative ones count from the end."""
    if blocks is None:
        return list(range(depth))
    if not isinstance(blocks, Sequence):
        raise InputError(f"blocks: expected a list of numbers, got {blocks!r:.80}")
    for block in blocks:
        whole("blocks", block, -depth, depth - 1, error=InputError)
    return [int(block) % depth for block in blocks]
