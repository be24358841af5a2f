"""Attention of packed networks: q, k, v (B, A, T, d) -> gathered (B, A, T, d).

fp32 goes by torch's fused kernel, which takes bf16 no faster than fp32 on a processor that multiplies bf16 but has no
tiles (AMX): there oneDNN's batched products serve. Both hold few scores at a time: memory grows with the tokens only.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.quantisation.cpu_features import has_bf16_units, has_tiles

SCORES = 1 << 20  # held at once: 2 MB, which stay in the cache
LEAST = 64  # queries at once: fewer would leave the processor waiting


def prefers_products(dtype: torch.dtype) -> bool:
    """Whether products are faster than torch's fused kernel for this kind of numbers on this processor."""
    return dtype == torch.bfloat16 and has_bf16_units() and not has_tiles()


def packed_kernel(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """The kernel of packed networks: softmax(q k' / sqrt(d) + bias) v. They learn nothing, so there is no dropout."""
    return scaled_attention(q, k, v, bias, False, prefers_products(q.dtype))


# What follows is in words that TorchScript has.


def scaled_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scaled: bool, products: bool) -> Tensor:
    """By products or by the fused kernel; queries may be `scaled` already."""
    if not products:
        scale = 1.0 if scaled else q.size(3) ** -0.5
        return F.scaled_dot_product_attention(q, k, v, bias, scale=scale)
    if bias is not None:
        bias = bias.expand(q.size(0), q.size(1), -1, -1).flatten(0, 1)
    keys, values = k.flatten(0, 1), v.flatten(0, 1)  # copied one by one: at once takes longer
    return attention_by_products(q.flatten(0, 1), keys, values, bias, scaled).view(q.size())


def attention_by_products(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    scaled: bool = False,
    most: int = SCORES,
    least: int = LEAST,
) -> Tensor:
    """The same of (B*A, T, d) by products, at most so many scores at a time."""
    count, t, s = q.size(0), q.size(1), k.size(1)
    out = torch.empty([count, t, q.size(2)], dtype=q.dtype)
    rows = min(t, max(least, most // s))
    heads = max(1, most // (rows * s)) if rows == t else 1
    for i in range(0, count, heads):
        for r in range(0, t, rows):
            some = bias
            if bias is not None:
                some = bias[i : i + heads] if bias.size(1) == 1 else bias[i : i + heads, r : r + rows]
            queries, gathered = q[i : i + heads, r : r + rows], out[i : i + heads, r : r + rows]
            weights = _attention_weights(queries, k[i : i + heads], some, scaled)
            if rows == t:  # one after another in memory, as oneDNN writes them
                torch.bmm(weights, v[i : i + heads], out=gathered)
            else:
                gathered.copy_(torch.bmm(weights, v[i : i + heads]))
    return out


def _attention_weights(q: Tensor, k: Tensor, bias: Tensor | None, scaled: bool) -> Tensor:
    """softmax(q k' / sqrt(d) + bias) (B*A, T, S), in the place of the scores."""
    keys, scale = k.transpose(1, 2), 1.0 if scaled else q.size(2) ** -0.5
    if bias is not None:
        scores = torch.baddbmm(bias, q, keys, alpha=scale)
    elif scaled:
        scores = torch.bmm(q, keys)
    else:
        scores = torch.empty([q.size(0), q.size(1), k.size(1)], dtype=q.dtype)
        torch.baddbmm(scores, q, keys, beta=0, alpha=scale, out=scores)
    return torch.softmax(scores, -1, out=scores)
