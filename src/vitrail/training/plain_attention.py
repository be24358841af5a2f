"""A kernel of attention for training among few tokens on a CPU: q, k, v (B, A, T, d) -> gathered (B, A, T, d).

The fused kernel recomputes its weights on the way back, which pays for many tokens. For few of them it is faster there
to keep the weights and to multiply matrices; `benchmarks/training.py` shows by how much.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vitrail.network.attention import Attention, fused_kernel

MOST_TOKENS = {torch.float32: 128, torch.bfloat16: 256}  # tokens; above it the fused kernel wins


@contextmanager
def plain_kernels(model: nn.Module) -> Iterator[None]:
    """Inside, every attention of the model that has the fused kernel takes this one."""
    attentions = install(model)
    try:
        yield
    finally:
        for attention in attentions:
            attention.kernel = fused_kernel


def install(model: nn.Module) -> list[Attention]:
    """Give every attention that has the fused kernel this one, but axial ones: their lines are short; those it got."""
    parts = (part for part in model.modules() if isinstance(part, Attention))
    attentions = [part for part in parts if part.kernel is fused_kernel and not part.axis]
    for attention in attentions:
        attention.kernel = plain_kernel
    return attentions


def is_faster(q: Tensor, k: Tensor) -> bool:
    """Whether plain matrices are the faster way; tracers know the fused kernel better."""
    return (
        q.device.type == "cpu"
        and q.requires_grad
        and torch.is_grad_enabled()
        and max(q.shape[-2], k.shape[-2]) <= MOST_TOKENS.get(q.dtype, 0)
        and not torch.compiler.is_exporting()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    )


def plain_kernel(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """softmax(q k' / sqrt(d)) v, with the weights kept for the way back; the fused kernel where that is better."""
    if torch.is_autocast_enabled(q.device.type):  # biases and norms in fp32 make fp32 of some of them
        q, k, v = (x.to(torch.get_autocast_dtype(x.device.type)) for x in (q, k, v))
    if bias is not None or dropout or not is_faster(q, k):
        return fused_kernel(q, k, v, bias, dropout)
    if torch.compiler.is_compiling():  # it finds the way back itself
        weights: Tensor = (q * q.shape[-1] ** -0.5 @ k.mT).softmax(-1)
        return weights @ v
    batch = q.shape[:-2]
    flat = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))  # (B*A, T, d)
    gathered: Tensor = _PlainAttention.apply(*flat)[0]  # type: ignore[no-untyped-call]
    return gathered.reshape(*batch, *gathered.shape[1:])


class _PlainAttention(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.bmm(q, k.mT).mul_(q.shape[-1] ** -0.5).softmax(-1, dtype=q.dtype)
        return torch.bmm(weights, v), weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, weights = ctx.saved_tensors
        of_weights = torch.bmm(grad, v.mT)
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype).mul_(q.shape[-1] ** -0.5)
        return torch.bmm(of_scores, k), torch.bmm(of_scores.mT, q), torch.bmm(weights.mT, grad)
