"""Attention of packed networks in bf16: q, k, v (B, A, T, d) -> gathered (B, A, T, d), by products of matrices.

torch's fused kernel takes bf16 no faster than fp32 on a processor that multiplies bf16 but has no tiles (AMX); oneDNN's
batched products do. Scores are held for a few images, heads or queries at a time, so memory grows with the tokens only.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from vitrail.shipping.kernels import has_bf16_units, has_tiles

SCORES = 1 << 20  # held at once: 2 MB, which stay in the cache
LEAST = 64  # queries at once: fewer would leave the processor waiting


def suits(kind: torch.dtype) -> bool:
    """Whether `gather` is the faster way for this kind of numbers on this processor."""
    return kind == torch.bfloat16 and has_bf16_units() and not has_tiles()


def gather(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q k' / sqrt(d) + bias) v, a piece at a time."""
    (b, a, t, _), s = q.shape, k.shape[2]
    if b * a * t * s <= SCORES:
        return _gather_whole(q, k, v, bias)
    rows = min(t, max(LEAST, SCORES // s))
    heads = min(a, max(1, SCORES // (rows * s)))
    images = max(1, SCORES // (rows * s * a)) if (rows, heads) == (t, a) else 1
    bias = None if bias is None else bias.expand(b, a, t, s)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for i, h, r in product(range(0, b, images), range(0, a, heads), range(0, t, rows)):
        some = slice(i, i + images), slice(h, h + heads)
        piece = (*some, slice(r, r + rows))
        out[piece] = _gather_whole(q[piece], k[some], v[some], None if bias is None else bias[piece])
    return out


def _gather_whole(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    queries, keys, values = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)  # (B*A, T, d)
    scores = queries.new_empty(*queries.shape[:2], keys.shape[1])
    torch.baddbmm(scores, queries, keys.mT, beta=0, alpha=q.shape[-1] ** -0.5, out=scores)  # (B*A, T, S)
    if bias is not None:
        scores.view(*q.shape[:3], -1).add_(bias)
    return torch.bmm(scores.softmax(-1), values).view(q.shape)
