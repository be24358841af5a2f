"""Attention in ONNX: fewer nodes than torch's own exporter writes, in a form that ONNX Runtime joins into matrices."""

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


TRANSLATIONS = {torch.ops.aten.scaled_dot_product_attention.default: attention}
