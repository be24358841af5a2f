"""What torch's own exporter writes with too many nodes, or not at all: attention, and a sort that keeps ties."""

from __future__ import annotations

from typing import Any

import torch
from onnxscript import opset20 as op


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(q k' / sqrt(d) + bias) v; the networks that are exported have no causal mask."""
    if is_causal or enable_gqa or dropout_p:
        raise NotImplementedError("causal, grouped or dropping attention is not exported")
    factor = scale if scale is not None else query.shape[3] ** -0.5
    scores = op.MatMul(op.Mul(query, op.Constant(value_float=factor)), op.Transpose(key, perm=[0, 1, 3, 2]))
    if attn_mask is not None:
        scores = op.Add(scores, attn_mask)
    return op.MatMul(op.Softmax(scores, axis=-1), value)


def sort(values: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """Values and their places: TopK of all of them, where of equal ones the first comes first."""
    places: Any = op.Constant(value_ints=[dim])
    count = op.Gather(op.Shape(values), places)
    return op.TopK(values, count, axis=dim, largest=int(descending), sorted=1)


TRANSLATIONS: dict[Any, Any] = {
    torch.ops.aten.scaled_dot_product_attention.default: attention,
    torch.ops.aten.sort.stable: sort,
}
