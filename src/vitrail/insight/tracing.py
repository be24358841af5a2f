"""trace: a model and pixels -> everything the model computed on the way, exact and on the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from vitrail.checks import instance, whole
from vitrail.errors import InputError
from vitrail.network.encoder import Tape
from vitrail.network.tokens import Place
from vitrail.network.vit import ViT


class Trace(NamedTuple):
    """What a pass leaves behind; read it by name or unpack it."""

    tokens: Tensor  # (B, T, D), after the final norm
    pooled: Tensor  # what the last layer receives: (B, D), cls+mean (B, 2D), cls+distillation (B, 2, D), none (B, T, D)
    logits: Tensor  # (B, K)
    hidden: tuple[Tensor, ...]  # depth + 1 of (B, T, D), the embedding output first; empty if not asked for
    attention: tuple[Tensor, ...]  # (B, A, T, T) for each block asked for; rows sum to 1, before any head mask
    pool_weights: Tensor  # (B, T), how much of each token the pool took


class Watched(NamedTuple):
    """A trace, and where its tokens stood: `vitrail.network.merging.spread` takes a row of them to the patches."""

    trace: Trace
    places: tuple[Place, ...]  # of the tokens that enter each block; last, of those that leave: as `hidden`


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
    return watch(model, pixels, attention, hidden, head_mask, blocks, rows).trace


def watch(
    model: ViT,
    pixels: Tensor,
    attention: bool = True,
    hidden: bool = True,
    head_mask: Tensor | None = None,
    blocks: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
) -> Watched:
    """The same as `trace`, with where the tokens stood: in a network that merges them, what each one holds."""
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
    found = Trace(
        tokens,
        pooled,
        model.head(pooled),
        tuple(tape.hidden),
        tuple(tape.attention[block] for block in wanted),
        weights,
    )
    return Watched(found, tuple(tape.places))


def _tokens(model: ViT, pixels: Tensor, rows: Sequence[int]) -> list[int]:
    """Numbers of tokens; where they merge, those of patches change from block to block."""
    config = model.config
    h, w = model.grid_of(pixels)
    wanted = _numbers("rows", rows, config.prefix + h * w)
    if not wanted:
        raise InputError("rows: expected at least one token, got none: leave rows out for all")
    if config.merge_per_block and max(wanted) >= config.prefix:
        raise InputError(
            f"rows: this network merges tokens, so the numbers of patches change from block to block: expected some of "
            f"its {config.prefix} prefix tokens, got {max(wanted)}: leave rows out for all"
        )
    return wanted


def _numbers(name: str, wanted: Sequence[int] | None, count: int) -> list[int]:
    """Numbers from 0; negative ones count from the end."""
    if wanted is None:
        return list(range(count))
    if not isinstance(wanted, Sequence):
        raise InputError(f"{name}: expected a list of numbers, got {wanted!r:.80}")
    for each in wanted:
        whole(name, each, -count, count - 1, error=InputError)
    return [int(each) % count for each in wanted]
