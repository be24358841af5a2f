"""trace: a model and pixels -> everything the model computed on the way, exact and on the graph."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_int, check_type
from vitrail.errors import InputError
from vitrail.inference.recognisers import as_checkpoint
from vitrail.network.attention import Kernel, causal_kernel, causal_mask, fused_kernel
from vitrail.network.heads import AttentionPool, Pool
from vitrail.network.tokens import TokenLayout
from vitrail.network.vit import ViT
from vitrail.reporting.html_page import counted
from vitrail.reporting.object_card import Card


class Trace(NamedTuple):
    """What a pass leaves behind; read it by name or unpack it."""

    tokens: Tensor  # (B, T, D), after the final norm
    pooled: Tensor  # what the last layer receives: (B, D), cls+mean (B, 2D), cls+distillation (B, 2, D), none (B, T, D)
    logits: Tensor  # (B, K)
    hidden: tuple[Tensor, ...]  # depth + 1 of (B, T, D), the embedding output first; empty if not asked for
    attention: tuple[Tensor, ...]  # (B, A, T, T) for each block asked for; rows sum to 1, before any head mask
    pool_weights: Tensor  # (B, T), how much of each token the pool took

    def card(self) -> Card:
        """Shapes for a REPL and a notebook, never numbers."""
        return Card(
            f"Trace: {counted(len(self.logits), 'image')}, {_kind(self.logits)} on {self.logits.device}",
            (
                ("tokens", _shape(self.tokens)),
                ("pooled", _shape(self.pooled)),
                ("logits", _shape(self.logits)),
                ("hidden", _shapes(self.hidden, "state")),
                ("attention", _shapes(self.attention, "block")),
                ("pool_weights", _shape(self.pool_weights)),
            ),
        )

    def __repr__(self) -> str:
        return self.card().as_text()

    def _repr_html_(self) -> str:
        return self.card().as_html()


class LaidOutTrace(NamedTuple):
    """A trace, and where its tokens stood: `token_rows.spread` takes a row of them to the patches."""

    trace: Trace
    layouts: tuple[TokenLayout, ...]  # of the tokens that enter each block; last, of those that leave: as `hidden`


class KeepWeights:
    """A kernel that keeps the weights (B, A, T, S) it gathers by, on the graph; rows sum to 1.

    With `rows`, only those tokens' weights are computed, beside the fused kernel, which stays.
    """

    def __init__(self, rows: Sequence[int] = (), causal: bool = False) -> None:
        self.rows, self.causal = list(rows), causal
        self.weights = torch.empty(0)  # of the first call: gradient checkpointing calls a second time

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        weights = self._weigh(q, k, bias)
        self.weights = self.weights if self.weights.numel() else weights
        if self.rows:
            return (causal_kernel if self.causal else fused_kernel)(q, k, v, bias, dropout)
        return (F.dropout(weights, dropout) if dropout else weights) @ v

    def _weigh(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        """Softmax of the scaled products: (B, A, T, S), or the rows asked for of it."""
        logits: Tensor = (self._rows_of(q) * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        if bias is not None:
            logits = logits + self._rows_of(bias)
        if self.causal:
            logits = logits.masked_fill(self._rows_of(causal_mask(q, k)), float("-inf"))
        return logits.softmax(dim=-1)

    def _rows_of(self, x: Tensor) -> Tensor:
        return x[..., torch.tensor(self.rows), :] if self.rows and x.shape[-2] > 1 else x


class Recorder:
    """Looks on while the encoder runs: keeps layouts, and hidden states and attention weights where they are wanted."""

    def __init__(self, blocks: Sequence[int] = (), hidden: bool = False, rows: Sequence[int] = ()) -> None:
        self.weights = {block: KeepWeights(rows) for block in blocks}
        self.wants_hidden = hidden
        self.hidden: list[Tensor] = []
        self.layouts: list[TokenLayout] = []

    def __call__(self, block: int, tokens: Tensor, layout: TokenLayout) -> Kernel | None:
        self.layouts.append(layout)
        if self.wants_hidden:
            self.hidden.append(tokens)
        return self.weights.get(block)


def trace(
    model: ViT | Checkpoint | str | os.PathLike[str],
    pixels: Tensor,
    attention: bool = True,
    hidden: bool = True,
    head_mask: Tensor | None = None,
    blocks: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
) -> Trace:
    """Run the model once and keep what it computed; of a checkpoint, or the path of one, its model.

    `blocks` names the blocks whose attention is wanted (all by default; -1 is the last). In those blocks explicit
    attention takes the layout of the fused kernel, so `torch.autograd.grad(logit, trace.attention)` works.
    `rows` names tokens (prefix tokens first) whose attention alone is wanted, (B, A, rows, T): the fused kernel stays,
    and the rows cost next to nothing. They are computed beside it, so nothing flows back through them.

    - model: a ViT, a Checkpoint, the path of one, or a run's folder.
    - pixels: prepared pixels (B, C, H, W), as `checkpoint.transform` gives them.
    - attention: keep the weights of attention.
    - hidden: keep the tokens before the first block and after every block.
    - head_mask: (heads,) or (depth, heads), 1 keeps a head, 0 silences it.
    - blocks: the blocks whose attention is wanted; None: all.
    - rows: the tokens whose attention alone is wanted; None: all.
    """
    network = (
        model if isinstance(model, nn.Module) else as_checkpoint(model, usual=getattr(pixels, "device", "cpu")).model
    )
    return trace_with_layouts(network, pixels, attention, hidden, head_mask, blocks, rows).trace


def trace_with_layouts(
    model: ViT,
    pixels: Tensor,
    attention: bool = True,
    hidden: bool = True,
    head_mask: Tensor | None = None,
    blocks: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
) -> LaidOutTrace:
    """The same as `trace`, with where the tokens stood: in a network that merges them, what each one holds."""
    check_type("model", model, ViT, error=InputError)
    for name, given in (("blocks", blocks), ("rows", rows)):
        if given is not None and not attention:
            raise InputError(f"{name} says whose attention is wanted, but attention=False: leave one of them out")
    wanted = _numbers("blocks", blocks, model.config.depth) if attention else []
    recorder = Recorder(wanted, hidden, [] if rows is None else _tokens(model, pixels, rows))
    encoded = model.encode(pixels, head_mask, recorder)
    tokens = model.normed(encoded.tokens)
    after = model.config.final_norm == "pooled"
    vector, weights = weigh_pool(model.pool, encoded.tokens if after else tokens, encoded.layout)
    pooled = model.head.represent(model.normed(vector) if after else vector)
    record = Trace(
        tokens,
        pooled,
        model.head(pooled),
        tuple(recorder.hidden),
        tuple(recorder.weights[block].weights for block in wanted),
        weights,
    )
    return LaidOutTrace(record, tuple(recorder.layouts))


class Pooled(NamedTuple):
    """The pooled vector, and how much of each token went into it: weights (B, T)."""

    vector: Tensor
    weights: Tensor


def weigh_pool(pool: Pool | AttentionPool, tokens: Tensor, layout: TokenLayout) -> Pooled:
    """What a pool makes of tokens (B, T, D), with its weights; those of attention pooling averaged over its heads."""
    if isinstance(pool, Pool):
        return Pooled(pool(tokens, layout), pool_weights(tokens, layout, pool.pool))
    kept = KeepWeights()
    vector = pool(tokens, layout, kept)
    return Pooled(vector, F.pad(kept.weights.mean(dim=1)[:, 0], (layout.prefix, 0)))


def pool_weights(tokens: Tensor, layout: TokenLayout, pool: str) -> Tensor:
    """How much of each token a plain pool takes: (B, T), rows sum to 1."""
    if pool == "cls+mean":
        return (pool_weights(tokens, layout, "cls") + pool_weights(tokens, layout, "mean")) / 2
    weights = tokens.new_zeros(tokens.shape[:2])
    if pool == "mean":
        weights[:, layout.prefix :] = 1 if layout.counts is None else layout.counts[:, layout.prefix :]
    elif pool == "none":
        weights[:] = 1
    else:
        weights[:, : 2 if pool == "cls+distillation" else 1] = 1
    return weights / weights.sum(dim=1, keepdim=True)


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
        check_int(name, each, -count, count - 1, error=InputError)
    return [int(each) % count for each in wanted]


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _shapes(tensors: Sequence[Tensor], thing: str) -> str:
    """How many tensors there are, and their shapes, each once."""
    each = dict.fromkeys(map(_shape, tensors))
    return f"{counted(len(tensors), thing)} of {', '.join(each)}" if tensors else "not asked for"


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
