"""tokens (B, T, D) -> tokens (B, T, D): every token gathers from the others, by a kernel that anyone may replace.

A kernel takes q, k, v (B, A, T, d), a bias for the logits and a dropout rate, and gives what each token gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.checks import check_choice, check_int
from vitrail.errors import InputError
from vitrail.network.config import QKV_BIASES, ViTConfig
from vitrail.network.positions import RelativeKeys, apply_rotary
from vitrail.network.tokens import TokenLayout

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]


def fused_kernel(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """softmax(q k' / sqrt(d) + bias) v, without ever holding the weights: torch's own."""
    return F.scaled_dot_product_attention(q, k, v, bias, dropout)


def causal_kernel(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """The same where no token sees what comes after it."""
    if bias is None:  # torch takes a bias or is_causal, never both
        return F.scaled_dot_product_attention(q, k, v, None, dropout, is_causal=True)
    return fused_kernel(q, k, v, bias.masked_fill(causal_mask(q, k), float("-inf")), dropout)


class Attention(nn.Module):
    """Multi-head attention of tokens to themselves, or to a context; `head_width` is free of `width`."""

    starts: ClassVar = {"qkv": "qkv", "query_bias": "zeros", "value_bias": "zeros", "out": "dense"}

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        *,
        qkv_bias: str = "all",
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        axis: str = "",
    ) -> None:
        super().__init__()
        check_choice("qkv_bias", qkv_bias, QKV_BIASES)
        self.axis = check_choice("axis", axis, ("", "row", "column"))  # patches see their own, and the prefix
        self.heads, self.head_width = check_int("heads", heads), check_int("head_width", head_width)
        self.dropout, self.attention_dropout = dropout, attention_dropout
        inner = heads * head_width
        self.qkv = nn.Linear(width, 3 * inner, bias=qkv_bias == "all")  # D -> 3*A*d
        self.query_bias = nn.Parameter(torch.zeros(inner)) if qkv_bias == "no-key" else None  # (A*d,)
        self.value_bias = nn.Parameter(torch.zeros(inner)) if qkv_bias == "no-key" else None
        self.query_norm = nn.LayerNorm(head_width, norm_eps) if qk_norm else None
        self.key_norm = nn.LayerNorm(head_width, norm_eps) if qk_norm else None
        self.out = nn.Linear(inner, width)  # A*d -> D
        self.relative: RelativeKeys | None = None
        self.kernel: Kernel = fused_kernel

    @classmethod
    def of_block(cls, config: ViTConfig, block: int) -> Attention:
        """The attention of one block; axial ones see rows in even blocks and columns in odd ones."""
        alike = ("qkv_bias", "qk_norm", "norm_eps", "dropout", "attention_dropout")
        axis = ("column" if block % 2 else "row") if config.axial else ""
        options = {name: getattr(config, name) for name in alike}
        attention = cls(config.width, len(config.heads_of(block)), config.per_head, axis=axis, **options)
        if config.positions.kind == "relative":
            attention.relative = RelativeKeys(config)
        return attention

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        layout: TokenLayout | None = None,
        head_mask: Tensor | None = None,
        kernel: Kernel | None = None,
    ) -> Tensor:
        """Tokens after attention (B, T, D); a kernel given here serves this call alone."""
        if self.axis and layout is None:
            raise InputError(f"attention along a {self.axis} needs to know the grid: give layout")
        q, k, v = self.project(x, context)  # (B, A, T, d) each
        if self.query_norm is not None and self.key_norm is not None:  # over d, each head by itself
            q, k = self.query_norm(q), self.key_norm(k)
        if layout is not None and layout.angles is not None:
            q, k = (apply_rotary(x, layout.angles, layout.prefix) for x in (q, k))
        kernel = kernel or self.kernel
        rate = self.attention_dropout if self.training else 0.0
        if layout is not None and self.axis and kernel is fused_kernel:  # others see the whole, under a mask
            gathered = self._along_axis(q, k, v, layout, rate)
        else:
            gathered = kernel(q, k, v, self._bias(q, layout), rate)  # (B, A, T, d)
        if head_mask is not None:  # scaling what a head gathered is scaling its rows of weights
            gathered = gathered * head_mask.view(-1, 1, 1)
        x = self.out(gathered.transpose(1, 2).flatten(2))  # (B, T, A*d) -> (B, T, D)
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def project(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head: (B, A, T, d) each."""
        b, t, _ = x.shape
        if context is None:
            qkv: Tensor = self.qkv(x)  # (B, T, 3*A*d)
            if self.query_bias is not None and self.value_bias is not None:
                qkv = qkv + torch.cat((self.query_bias, torch.zeros_like(self.query_bias), self.value_bias))
            q, k, v = qkv.reshape(b, t, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4).unbind(0)
            return q, k, v
        bias: Tensor | None = self.qkv.bias
        biases = (self.query_bias, None, self.value_bias) if bias is None else bias.chunk(3)
        q, k, v = (
            F.linear(source, weight, bias).reshape(b, source.shape[1], self.heads, self.head_width).transpose(1, 2)
            for source, weight, bias in zip((x, context, context), self.qkv.weight.chunk(3), biases, strict=True)
        )
        return q, k, v

    def _bias(self, q: Tensor, layout: TokenLayout | None) -> Tensor | None:
        """What is added to the logits: relative keys, an axial mask, or how many each merged token stands for."""
        bias: Tensor | None = None
        if layout is None:
            return bias
        if self.relative is not None:
            bias = self.relative(q, layout.grid, layout.prefix)  # (B, A, T, T)
        elif self.axis:
            mask = axial_mask(layout, self.axis, q.device)  # (T, T)
            bias = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))
        elif layout.counts is not None:  # proportional attention (ToMe)
            bias = layout.counts.log()[:, None, None, :].to(q.dtype)  # (B, 1, 1, T)
        return bias

    def _along_axis(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, rate: float) -> Tensor:
        """Patches see their row or column and the prefix tokens; prefix tokens see everything."""
        (h, w), r, b = layout.grid, layout.prefix, q.shape[0]
        count, order = (h, (0, 2, 1, 3, 4)) if self.axis == "row" else (w, (0, 3, 1, 2, 4))

        def lines(x: Tensor) -> Tensor:  # (B, A, N, d) -> (B*lines, A, along, d)
            cells = x[:, :, r:].reshape(b, self.heads, h, w, -1)  # (B, A, h, w, d)
            return cells.permute(order).flatten(0, 1)

        def with_prefix(x: Tensor) -> Tensor:  # the prefix before every line
            prefix = x[:, None, :, :r].expand(-1, count, -1, -1, -1).flatten(0, 1)
            return torch.cat((prefix, lines(x)), dim=2)

        patches = fused_kernel(lines(q), with_prefix(k), with_prefix(v), None, rate)  # (B*lines, A, along, d)
        back = (0, 2, 1, 3, 4) if self.axis == "row" else (0, 2, 3, 1, 4)
        patches = patches.unflatten(0, (b, count)).permute(back).flatten(2, 3)  # (B, A, N, d)
        prefix = fused_kernel(q[:, :, :r], k, v, None, rate) if r else q[:, :, :0]  # (B, A, R, d)
        return torch.cat((prefix, patches), dim=2)  # (B, A, T, d)


def causal_mask(q: Tensor, k: Tensor) -> Tensor:
    """True where a causal token may not look: at what comes after it; (T, S)."""
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)


def axial_mask(layout: TokenLayout, axis: str, device: torch.device) -> Tensor:
    """True where a patch may not look: outside its row or column; (T, T)."""
    (h, w), r = layout.grid, layout.prefix
    patch = torch.arange(h * w, device=device)  # (N,), row by row
    line = patch // w if axis == "row" else patch % w
    return F.pad(line[:, None] != line[None, :], (r, 0, r, 0), value=False)
