"""Token merging: tokens (B, T, D) -> fewer tokens, the most alike joined by a weighted mean, sources kept.

Bipartite soft matching (Bolya et al. 2023): patches are dealt into two sets in turn, each of the first set looks
for its nearest in the second, and the closest pairs are joined. Prefix tokens take no part. Where the answer is read
from the cls token, a pair also counts as the closer the less that token attends to the patch that would leave.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.network.attention import Attention, Kernel
from vitrail.network.config import ViTConfig
from vitrail.network.encoder import Block, BlockOutput
from vitrail.network.tokens import TokenLayout


class KeepKeys:
    """A kernel that keeps the keys (B, A, T, d) and, where asked, how the cls token attends: (B, T)."""

    def __init__(self, kernel: Kernel, wants_cls: bool, head_mask: Tensor | None) -> None:
        self.kernel, self.wants_cls, self.head_mask = kernel, wants_cls, head_mask
        self.keys: Tensor | None = None
        self.cls_attention: Tensor | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        self.keys = k
        if self.wants_cls:
            self.cls_attention = cls_attention(q, k, bias, q.shape[-1] ** -0.5, self.head_mask)
        return self.kernel(q, k, v, bias, dropout)

    def mean_keys(self, attention: Attention, normed: Tensor, layout: TokenLayout) -> Tensor:
        """Keys of every head as they are projected, before any norm and rotation, averaged: (B, T, d)."""
        keys = self.keys
        if keys is None or layout.angles is not None or attention.key_norm is not None:
            keys = attention.project(normed)[1]
        keys = keys if self.head_mask is None else keys * self.head_mask.view(-1, 1, 1)  # a silenced one has no say
        return keys.mean(dim=1)


class MergingBlock(Block):
    """A block that joins tokens between attention and MLP; side by side, after both."""

    def __init__(self, config: ViTConfig, index: int) -> None:
        super().__init__(config, index)
        self.merged = config.merged_in(index)  # tokens that go
        self.by_tokens = config.merge_by == "tokens"
        # Also by how little the cls token attends, where it gives the answer; in block 0 it has seen nothing yet.
        self.by_cls = self.by_tokens and config.pooled_tokens > 0 and index > 0

    def forward(
        self, x: Tensor, layout: TokenLayout, head_mask: Tensor | None = None, kernel: Kernel | None = None
    ) -> BlockOutput:
        normed = self.norm1(x)
        kept = KeepKeys(kernel or self.attention.kernel, self.by_cls, head_mask)
        attended = self.attention(normed, layout=layout, head_mask=head_mask, kernel=kept)
        x = x + self.branch(attended, self.scale1)
        if self.norm2 is None:  # side by side
            x = x + self.branch(self.chunked_mlp(normed), self.scale2)
        metric = x if self.by_tokens else kept.mean_keys(self.attention, normed, layout)
        x, layout = merge(x, layout, metric, self.merged, kept.cls_attention)
        if self.norm2 is not None:
            x = x + self.branch(self.chunked_mlp(self.norm2(x)), self.scale2)
        return BlockOutput(x, layout)


def build_block(config: ViTConfig, index: int) -> Block:
    """The block that a config asks for at a depth."""
    return MergingBlock(config, index) if config.merged_in(index) else Block(config, index)


class Matching(NamedTuple):
    """Who stays and who joins whom, in numbers of one table of all images' tokens; the order of tokens is kept."""

    stays: Tensor  # (B*left,): tokens that stay, rising
    leaving: Tensor  # (B*count,): tokens that do not
    into: Tensor  # (B*count,): whom they join, in the numbers after
    target: Tensor  # (B, T): for every token of an image the one it is part of after


def most_joined(patches: int, count: int) -> int:
    """How many of so many patches can be joined at once: half of them, so that at least one stays."""
    return min(count, patches // 2)


def cls_attention(q: Tensor, k: Tensor, bias: Tensor | None, scale: float, mask: Tensor | None = None) -> Tensor:
    """How much the cls token attends to each, mean over heads: q and k (B, A, T, d), bias (B, 1, 1, T) -> (B, T)."""
    precise = torch.promote_types(q.dtype, torch.float32)
    logits = (k * (q[:, :, :1] * scale)).sum(dim=-1, dtype=precise)  # (B, A, T); products so thin are slower than sums
    if bias is not None:
        logits = logits + bias[:, :, 0]
    row = logits.softmax(dim=-1)
    if mask is None:  # or factors (A,) of heads: a silenced one has no say
        return row.mean(dim=1)
    return (row * mask.abs().view(-1, 1)).mean(dim=1).clamp(min=1e-9)  # all alike where every head is silenced


def match(metric: Tensor, count: int, prefix: int = 0, weights: Tensor | None = None) -> Matching:
    """Which `count` patches to join, by cosine likeness of metric (B, T, d), where no more than half of them are.

    With weights (B, T) those are joined first whose distance, 1 - cosine, times the root of their own weight is least.
    """
    b, t, _ = metric.shape
    left = t - count
    # likeness in bf16 has steps of 1/256 near 1: which of the closest are joined would be left to rounding
    metric = metric[:, prefix:].to(torch.promote_types(metric.dtype, torch.float32))
    metric = F.normalize(metric, dim=-1)
    scores = metric[:, 0::2] @ metric[:, 1::2].transpose(1, 2)  # (B, ceil(N/2), floor(N/2))
    partner = scores.argmax(dim=-1, keepdim=True)
    best = scores.gather(2, partner)[..., 0]  # not `max`: one exporter got that wrong
    if weights is not None:  # below 1e-6 a distance is rounding, and the weight alone decides
        best = (1 - best).clamp(min=1e-6) * -weights[:, prefix::2].sqrt()
    # Where two pairs are equally close the first is joined, on every machine: a stable sort, which exporters get in
    if best.device.type == "cpu":  # plain operators, and by a handicap that is far below the rounding of a likeness
        handicap = torch.arange(best.shape[1], dtype=torch.float64) * -1e-14
        first = (best + handicap).topk(count, dim=-1).indices  # (B, count), numbers in the first set
    else:  # not every device has numbers so fine
        first = best.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    image = torch.arange(b, device=metric.device)[:, None]
    start = image * t + prefix  # of the patches of each image, in one table of all
    leaving = (first * 2 + start).flatten()
    partners = (partner[..., 0].gather(1, first) * 2 + (start + 1)).flatten()

    staying = torch.ones(b * t, dtype=torch.long, device=metric.device).scatter_(0, leaving, 0)
    rank = staying.cumsum(dim=0) - 1  # the new number of every token that stays
    into = rank.index_select(0, partners)
    # an order with all that leave at its end, which is cut off: no shape depends on values, and no slot is filled twice
    numbers = torch.arange(b * t, device=metric.device)
    slot = torch.where(staying == 1, rank, numbers - rank + (b * left - 1))
    stays = torch.empty_like(slot).scatter_(0, slot, numbers)[: b * left]
    target = rank.scatter(0, leaving, into).view(b, t) - image * left
    return Matching(stays, leaving, into, target)


def merge(
    x: Tensor, layout: TokenLayout, metric: Tensor, count: int, weights: Tensor | None = None
) -> tuple[Tensor, TokenLayout]:
    """Join tokens x (B, T, D) by metric (B, T, d) and weights (B, T); the layout says what each then holds."""
    r = layout.prefix
    b, t, _ = x.shape
    count = most_joined(t - r, count)
    if not count:  # one patch left has no partner
        return x, layout
    matching = match(metric, count, r, weights)
    ones = torch.ones(b, t, device=x.device)  # fp32: counts exact
    counts, share = join_counts(ones if layout.counts is None else layout.counts, matching)
    points = layout.coordinates
    if points is not None:
        points = join(F.pad(points.expand(b, -1, -1), (0, 0, r, 0)), matching, share)[:, r:]
    patch_to_token = matching.target[:, r:] - r  # (B, N) of those before
    if layout.patch_to_token is not None:
        patch_to_token = patch_to_token.gather(1, layout.patch_to_token)  # (B, N) of the original ones
    return join(x, matching, share), TokenLayout(layout.grid, r, points, counts, patch_to_token)


def join_counts(counts: Tensor, matching: Matching) -> tuple[Tensor, Tensor]:
    """Counts of tokens before (B, T) -> after (B, left); and of each that leaves, its share of the one it joins."""
    before = counts.flatten()
    joining = before.index_select(0, matching.leaving)
    after = before.index_select(0, matching.stays).scatter_add_(0, matching.into, joining)
    return after.view(counts.shape[0], -1), joining / after.index_select(0, matching.into)


def join(x: Tensor, matching: Matching, share: Tensor) -> Tensor:
    """Rows of x (B, T, D) that stay, each moved towards those that join it: a mean weighted by size."""
    # Rows are picked out of one long table: several times as fast as adding all up under an index for each value.
    b, _, width = x.shape
    table = x.flatten(0, 1)  # (B*T, D)
    precise = torch.promote_types(x.dtype, torch.float32)  # sums of many in half precision would drift
    kept = table.index_select(0, matching.stays).to(precise)  # (B*left, D)
    gone = table.index_select(0, matching.leaving).to(precise)  # (B*count, D)
    step = (gone - kept.index_select(0, matching.into)) * share[:, None]
    kept = kept.scatter_add_(0, matching.into[:, None].expand(-1, width), step.to(precise))
    return kept.view(b, -1, width).to(x.dtype)


def unmerge(patches: Tensor, layout: TokenLayout) -> Tensor:
    """Give every original patch the token that holds it: (B, left, D) -> (B, N, D)."""
    if layout.patch_to_token is None:
        return patches
    return patches.gather(1, layout.patch_to_token[..., None].expand(-1, -1, patches.shape[-1]))
