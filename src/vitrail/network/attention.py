"""tokens (B, T, D) -> tokens (B, T, D): every token gathers from the others.

The fused kernel by default, plain matrices where they train faster (`few`); the exact weights, on the graph, for those
who ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.checks import choice, whole
from vitrail.errors import ConfigError, InputError
from vitrail.network import few
from vitrail.network.config import QKV_BIASES, ViTConfig
from vitrail.network.merging import heed
from vitrail.network.positions import RelativeKeys, Rotation, turn
from vitrail.network.tokens import Place

Gather = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # q, k, v and bias -> what they gather


class Attended(NamedTuple):
    """What attention hands on; weights (B, A, T, S) only where they were asked for."""

    output: Tensor  # (B, T, D)
    keys: Tensor  # (B, A, S, d), before any turn
    weights: Tensor | None
    heeded: Tensor | None = None  # (B, S): how much the first token attends to each, where that was asked for


class Attention(nn.Module):
    """Multi-head attention of tokens to themselves, or to a context; `head_width` is free of `width`."""

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
        causal: bool = False,
        line: str = "",
    ) -> None:
        super().__init__()
        if causal and line:
            raise ConfigError("causal attention sees all before a token, axial one line: leave one of them out")
        choice("qkv_bias", qkv_bias, QKV_BIASES)
        choice("line", line, ("", "row", "column"))
        self.heads, self.head_width = whole("heads", heads), whole("head_width", head_width)
        self.dropout, self.attention_dropout = dropout, attention_dropout
        self.causal, self.line = causal, line
        inner = heads * head_width
        self.qkv = nn.Linear(width, 3 * inner, bias=qkv_bias == "all")
        self.query_bias = nn.Parameter(torch.zeros(inner)) if qkv_bias == "no-key" else None
        self.value_bias = nn.Parameter(torch.zeros(inner)) if qkv_bias == "no-key" else None
        self.query_norm = nn.LayerNorm(head_width, norm_eps) if qk_norm else None
        self.key_norm = nn.LayerNorm(head_width, norm_eps) if qk_norm else None
        self.out = nn.Linear(inner, width)
        self.relative: RelativeKeys | None = None
        self.gather: Gather | None = None  # in the place of the fused kernel, where a packed network has a faster one

    @classmethod
    def of_block(cls, config: ViTConfig, block: int, causal: bool = False) -> Attention:
        """The attention of one block; axial ones see rows in even blocks and columns in odd ones."""
        attention = cls(
            config.width,
            len(config.heads_of(block)),
            config.per_head,
            qkv_bias=config.qkv_bias,
            qk_norm=config.qk_norm,
            norm_eps=config.norm_eps,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            causal=causal,
            line=("column" if block % 2 else "row") if config.axial else "",
        )
        if config.positions.kind == "relative":
            attention.relative = RelativeKeys(config)
        return attention

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        place: Place | None = None,
        rotation: Rotation | None = None,
        head_mask: Tensor | None = None,
        onto: Tensor | None = None,
    ) -> Tensor:
        """Tokens after attention, by the fused kernel."""
        return self.attend(x, context, place=place, rotation=rotation, head_mask=head_mask, onto=onto).output

    def attend(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        place: Place | None = None,
        rotation: Rotation | None = None,
        head_mask: Tensor | None = None,
        explicit: bool = False,
        rows: Sequence[int] = (),
        onto: Tensor | None = None,
        first: int = 0,
        heeds: bool = False,
    ) -> Attended:
        """The same, with the keys, and with the exact weights where `explicit`.

        Those of a few tokens alone, named by `rows`, are computed beside the fused kernel, which stays. A packed `out`
        can add what it gives `onto` other tokens. With `first` only so many tokens, of the prefix, gather. With `heeds`
        comes how much the first token attends to each.
        """
        if self.line and place is None:
            raise InputError(f"attention along a {self.line} needs to know the grid: give place")
        q, k, v = self._project(x, context)  # (B, A, T, d) each
        keys = k
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if rotation is not None and place is not None:
            q, k = turn(q, rotation, place.prefix), turn(k, rotation, place.prefix)
        bias = self._bias(q, place)
        heeded = heed(q, k, bias, self.head_width**-0.5, head_mask) if heeds else None
        if first:
            q = q[:, :, :first]
            bias = bias[..., :first, :] if bias is not None and bias.shape[-2] > 1 else bias
        weights = self._weigh(q, k, bias, place, rows) if explicit else None
        if weights is not None and not rows:
            gathered = F.dropout(weights, self.attention_dropout, self.training) @ v
        elif self.line and place is not None and not first:
            gathered = self._along_lines(q, k, v, place)
        elif bias is None and not self.causal and self.training and not self._dropping and few.suits(q, k):
            gathered = few.gather(q, k, v)
        elif self.gather is not None and not self.causal:
            gathered = self.gather(q, k, v, bias)
        else:
            if self.causal and bias is not None:  # the kernel takes a bias or is_causal, never both
                bias = bias.masked_fill(unseen(q, k), float("-inf"))
            gathered = F.scaled_dot_product_attention(
                q, k, v, bias, self._dropping, is_causal=self.causal and bias is None
            )
        if head_mask is not None:  # scaling what a head gathered is scaling its rows of weights
            gathered = gathered * head_mask.view(-1, 1, 1)
        gathered = gathered.transpose(1, 2).flatten(2)  # (B, T, A*d)
        output = self.out(gathered) if onto is None else self.out(gathered, onto)
        output = F.dropout(output, self.dropout, self.training) if self.dropout else output
        return Attended(output, keys, weights, heeded)

    @property
    def _dropping(self) -> float:
        return self.attention_dropout if self.training else 0.0

    def _project(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head: (B, A, T, d) each."""
        b, t, _ = x.shape
        if context is None:
            qkv: Tensor = self.qkv(x)  # (B, T, 3*A*d)
            if self.query_bias is not None and self.value_bias is not None:
                qkv = qkv + torch.cat((self.query_bias, torch.zeros_like(self.query_bias), self.value_bias))
            q, k, v = qkv.reshape(b, t, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4).unbind(0)
            return q, k, v
        weights, biases = self.qkv.weight.chunk(3), self._biases()
        q, k, v = (
            F.linear(source, weight, bias).reshape(b, source.shape[1], self.heads, self.head_width).transpose(1, 2)
            for source, weight, bias in zip((x, context, context), weights, biases, strict=True)
        )
        return q, k, v

    def _biases(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The biases of queries, keys and values, apart."""
        bias: Tensor | None = self.qkv.bias
        if bias is None:
            return self.query_bias, None, self.value_bias
        query, key, value = bias.chunk(3)
        return query, key, value

    def _bias(self, q: Tensor, place: Place | None) -> Tensor | None:
        """What is added to the logits: relative keys, or the sizes of merged tokens (proportional attention)."""
        if place is None:
            return None
        bias: Tensor | None = None
        if self.relative is not None:
            bias = self.relative(q, place.grid, place.prefix)
        elif place.sizes is not None:
            bias = place.sizes.log()[:, None, None, :].to(q.dtype)  # (B, 1, 1, T)
        return bias

    def _weigh(
        self, q: Tensor, k: Tensor, bias: Tensor | None, place: Place | None, rows: Sequence[int] = ()
    ) -> Tensor:
        """Softmax of the scaled products: (B, A, T, S), or the rows asked for of it; every row sums to 1."""

        def picked(x: Tensor) -> Tensor:
            return x[..., list(rows), :] if rows and x.shape[-2] > 1 else x

        every, q = q, picked(q)
        logits: Tensor = (q * self.head_width**-0.5) @ k.transpose(-2, -1)
        if bias is not None:
            logits = logits + picked(bias)
        if self.causal:
            logits = logits.masked_fill(picked(unseen(every, k)), float("-inf"))
        if self.line and place is not None:
            logits = logits.masked_fill(picked(off_line(place, self.line, q.device)), float("-inf"))
        return logits.softmax(dim=-1)

    def _along_lines(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        """Patches see their row or column and the prefix tokens; prefix tokens see everything."""
        (h, w), r = place.grid, place.prefix
        b = q.shape[0]

        def lines(x: Tensor) -> Tensor:  # (B, A, N, d) -> (B*lines, A, along, d)
            cells = x[:, :, r:].reshape(b, self.heads, h, w, -1)  # (B, A, h, w, d)
            cells = cells.permute(0, 2, 1, 3, 4) if self.line == "row" else cells.permute(0, 3, 1, 2, 4)
            return cells.flatten(0, 1)

        def beside(x: Tensor) -> Tensor:  # the prefix before every line
            count = h if self.line == "row" else w
            prefix = x[:, None, :, :r].expand(-1, count, -1, -1, -1).flatten(0, 1)
            return torch.cat((prefix, lines(x)), dim=2)

        patches = F.scaled_dot_product_attention(lines(q), beside(k), beside(v), None, self._dropping)
        patches = patches.reshape(b, h if self.line == "row" else w, *patches.shape[1:])  # (B, lines, A, along, d)
        order = (0, 2, 1, 3, 4) if self.line == "row" else (0, 2, 3, 1, 4)
        patches = patches.permute(order).flatten(2, 3)  # (B, A, N, d)
        if not r:
            return patches
        prefix = F.scaled_dot_product_attention(q[:, :, :r], k, v, None, self._dropping)
        return torch.cat((prefix, patches), dim=2)


def unseen(q: Tensor, k: Tensor) -> Tensor:
    """True where a causal token may not look: at what comes after it; (T, S)."""
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)


def off_line(place: Place, line: str, device: torch.device) -> Tensor:
    """True where a patch may not look: outside its row or column; (T, T)."""
    (h, w), r = place.grid, place.prefix
    patch = torch.arange(h * w, device=device)
    number = patch // w if line == "row" else patch % w
    off = number[:, None] != number[None, :]  # (N, N)
    return F.pad(off, (r, 0, r, 0), value=False)
