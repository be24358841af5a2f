"""A network asked once, with what explanations are made of: its trace, and gradients of a target at parts of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from torch import Tensor

from vitrail.checkpoint import Checkpoint
from vitrail.errors import InputError
from vitrail.images import Source
from vitrail.insight.targets import Aim
from vitrail.insight.tracing import LaidOutTrace, trace_with_layouts
from vitrail.network.encoder import Block
from vitrail.network.surgery import eval_mode
from vitrail.network.tokens import TokenLayout
from vitrail.network.vit import ViT


class Answer(NamedTuple):
    """Logits (n, K) and embedding (n, D) of some images."""

    logits: Tensor
    embedding: Tensor


@contextmanager
def frozen(model: ViT) -> Iterator[None]:
    """In evaluation, and without gradients of weights, which no explanation needs; left as it was.

    Also where no gradient is taken: torch may round otherwise where weights ask for one.
    """
    free = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with eval_mode(model):
        for parameter in free:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in free:
                parameter.requires_grad_(True)


def vector_of(pooled: Tensor) -> Tensor:
    """One embedding an image; of a cls and a distillation token, or of all tokens, their mean."""
    return pooled.mean(dim=1) if pooled.ndim == 3 else pooled


def answer(model: ViT, pixels: Tensor) -> Answer:
    """What the network says, with gradients where the caller has them on."""
    pooled = model.embed(pixels)
    logits = model.head(pooled)
    return Answer(logits.float(), vector_of(pooled).float())


def asked(model: ViT, pixels: Tensor) -> Answer:
    """What the network says, in evaluation and without gradients."""
    with frozen(model), torch.no_grad():
        return answer(model, pixels)


def traced(
    model: ViT, pixels: Tensor, blocks: Sequence[int] | None = None, rows: Sequence[int] | None = None
) -> LaidOutTrace:
    """Attention without gradients, and where its tokens stood."""
    with frozen(model), torch.no_grad():
        return trace_with_layouts(model, pixels, hidden=False, blocks=blocks, rows=rows)


def traced_hidden(model: ViT, pixels: Tensor) -> LaidOutTrace:
    """The tokens before and after every block without gradients, and where they stood."""
    with frozen(model), torch.no_grad():
        return trace_with_layouts(model, pixels, attention=False)


def pixels_of(checkpoint: Checkpoint, images: Sequence[Source]) -> Tensor:
    """Images as the network takes them, (B, C, H, W)."""
    return torch.from_numpy(checkpoint.preprocess.batch(images)).to(next(checkpoint.model.parameters()))


class Gradients(NamedTuple):
    """Values inside a network, the gradients there, what the pool reads (B, T), and where the tokens stood."""

    values: list[Tensor]
    gradients: list[Tensor]
    pool_weights: Tensor
    layouts: tuple[TokenLayout, ...]  # of the tokens that enter each block; last, of those that leave


def attention_with_gradients(model: ViT, pixels: Tensor, aims: Sequence[Aim]) -> Gradients:
    """Every block's attention, and the gradient of each image's aim there.

    The row of a merged token is the rows of all it holds at once, so its gradient is theirs added up: it is divided by
    their number, as the row that stands for each of them.
    """
    with frozen(model), torch.enable_grad():
        record = trace_with_layouts(model, _on_graph(pixels), hidden=False)
        inside = _gradients(record, list(record.trace.attention), aims)
    slopes = [
        slope if layout.counts is None else slope / layout.counts[:, None, :, None]
        for slope, layout in zip(inside.gradients, record.layouts[:-1], strict=True)
    ]
    return inside._replace(gradients=slopes)


def tokens_with_gradients(model: ViT, pixels: Tensor, aims: Sequence[Aim], block: int) -> Gradients:
    """The tokens as a block's attention receives them, after its norm, and the gradient there."""
    kept: list[Tensor] = []
    norm = cast(Block, model.encoder.blocks[block]).norm1
    hook = norm.register_forward_hook(lambda module, given, normed: kept.append(normed))
    with hook, frozen(model), torch.enable_grad():
        return _gradients(trace_with_layouts(model, _on_graph(pixels), attention=False, hidden=False), kept, aims)


def _on_graph(pixels: Tensor) -> Tensor:
    """No gradient is taken at them: they only put the network on the graph, whose weights are frozen."""
    return pixels.detach().requires_grad_(True)


def _gradients(record: LaidOutTrace, inside: list[Tensor], aims: Sequence[Aim]) -> Gradients:
    seen = record.trace
    slopes = torch.autograd.grad(total(aims, seen.logits, seen.pooled), inside, allow_unused=True)
    kept = [torch.zeros_like(of) if each is None else each for each, of in zip(slopes, inside, strict=True)]
    return Gradients(
        [each.detach().float() for each in inside],
        [each.float() for each in kept],
        seen.pool_weights.detach().float(),
        record.layouts,
    )


def total(aims: Sequence[Aim], logits: Tensor, pooled: Tensor) -> Tensor:
    """The sum of all images' aims: each has gradients of its own, since images do not meet in a network."""
    embedding = vector_of(pooled)
    each = [aim.of(logits[row : row + 1], embedding[row : row + 1]) for row, aim in enumerate(aims)]
    value = torch.cat(each).sum()
    if not value.requires_grad:
        raise InputError("target: this function of the output has no gradient: use method 'occlusion', or a smooth one")
    return value
