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
    (b, a, t, d), s = q.shape, k.shape[2]
    rows = min(t, max(LEAST, SCORES // s))
    heads = min(a, max(1, SCORES // (rows * s)))
    images = max(1, SCORES // (rows * s * a)) if (rows, heads) == (t, a) else 1
    out = q.new_empty(b, t, a, d)  # as the next layer wants them
    bias = None if bias is None else bias.expand(b, a, t, s)
    for i, h in product(range(0, b, images), range(0, a, heads)):
        keys, values = (x[i : i + images, h : h + heads].reshape(-1, s, d) for x in (k, v))
        for r in range(0, t, rows):
            piece = q[i : i + images, h : h + heads, r : r + rows]
            queries = piece.reshape(len(keys), -1, d)
            scores = queries.new_empty(len(keys), queries.shape[1], s)
            torch.baddbmm(scores, queries, keys.mT, beta=0, alpha=d**-0.5, out=scores)
            if bias is not None:
                scores.view(*piece.shape[:3], s).add_(bias[i : i + images, h : h + heads, r : r + rows])
            gathered = torch.bmm(scores.softmax(-1), values).view(piece.shape)
            out[i : i + images, r : r + rows, h : h + heads] = gathered.transpose(1, 2)
    return out.transpose(1, 2)
