"""Token merging: tokens (B, T, D) -> fewer tokens, the most alike joined by a weighted mean, sources kept.

Bipartite soft matching (Bolya et al. 2023): patches are dealt into two sets in turn, each of the first set looks
for its nearest in the second, and the closest pairs are joined. Prefix tokens take no part. Where the answer is read
from the first token, a pair also counts as the closer the less that token heeds the patch that would leave.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.network.tokens import Place


class Matching(NamedTuple):
    """Who stays and who joins whom, in numbers of one table of all images' tokens; the order of tokens is kept."""

    stays: Tensor  # (B*left,): tokens that stay, rising
    joins: Tensor  # (B*count,): tokens that do not
    into: Tensor  # (B*count,): whom they join, in the numbers after
    target: Tensor  # (B, T): for every token of an image the one it is part of after


def most_joined(patches: int, count: int) -> int:
    """How many of so many patches can be joined at once: half of them, so that at least one stays."""
    return min(count, patches // 2)


def heed(q: Tensor, k: Tensor, bias: Tensor | None, scale: float, mask: Tensor | None = None) -> Tensor:
    """How much the first token attends to each, mean over heads: q and k (B, A, T, d), bias (B, 1, 1, T) -> (B, T).

    A mask (A,) scales heads: a silenced one has no say. By sums, since products of so thin matrices are slower.
    """
    precise = torch.promote_types(q.dtype, torch.float32)
    logits = (k * (q[:, :, :1] * scale)).sum(dim=-1, dtype=precise)  # (B, A, T)
    if bias is not None:
        logits = logits + bias[:, :, 0]
    row = logits.softmax(dim=-1)
    if mask is None:
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
    best = scores.gather(2, partner)[..., 0]  # not `max`: OpenVINO 2026.4 was wrong where a row is added to that
    if weights is not None:  # below 1e-6 a distance is rounding, and the weight alone decides
        best = (1 - best).clamp(min=1e-6) * -weights[:, prefix::2].sqrt()
    # Where two pairs are equally close the first is joined, whatever the machine or runtime: a stable sort in operators
    # that ONNX has. The handicap is far below the rounding of a likeness.
    handicap = torch.arange(best.shape[1], dtype=torch.float64, device=metric.device) * -1e-14
    first = (best + handicap).topk(count, dim=-1).indices  # (B, count), numbers in the first set
    image = torch.arange(b, device=metric.device)[:, None]
    start = image * t + prefix  # of the patches of each image, in one table of all
    joins = (first * 2 + start).flatten()
    partners = (partner[..., 0].gather(1, first) * 2 + (start + 1)).flatten()

    staying = torch.ones(b * t, dtype=torch.long, device=metric.device).scatter_(0, joins, 0)
    place = staying.cumsum(dim=0) - 1  # the new number of every token that stays
    into = place.index_select(0, partners)
    # an order with all that leave at its end, which is cut off: no shape depends on values, and no slot is filled twice
    numbers = torch.arange(b * t, device=metric.device)
    slot = torch.where(staying == 1, place, numbers - place + (b * left - 1))
    stays = torch.empty_like(slot).scatter_(0, slot, numbers)[: b * left]
    target = place.scatter(0, joins, into).view(b, t) - image * left
    return Matching(stays, joins, into, target)


def merge(x: Tensor, place: Place, metric: Tensor, count: int, weights: Tensor | None = None) -> tuple[Tensor, Place]:
    """Join tokens x (B, T, D) by metric (B, T, d) and weights (B, T); place keeps sizes, sources, mean coordinates."""
    r = place.prefix
    b, t, _ = x.shape
    count = most_joined(t - r, count)
    if not count:  # one patch left has no partner
        return x, place
    matching = match(metric, count, r, weights)
    ones = torch.ones(b, t, device=x.device)  # fp32: counts exact
    sizes, share = join_sizes(ones if place.sizes is None else place.sizes, matching)
    places = place.places
    if places is not None:
        places = join(F.pad(places.expand(b, -1, -1), (0, 0, r, 0)), matching, share)[:, r:]
    sources = matching.target[:, r:] - r
    sources = sources if place.sources is None else sources.gather(1, place.sources)
    return join(x, matching, share), Place(place.grid, r, places, sizes, sources)


def join_sizes(sizes: Tensor, matching: Matching) -> tuple[Tensor, Tensor]:
    """Sizes of tokens before (B, T) -> after (B, left); and of each that leaves, its share of the one it joins."""
    before = sizes.flatten()
    joining = before.index_select(0, matching.joins)
    after = before.index_select(0, matching.stays).scatter_add_(0, matching.into, joining)
    return after.view(sizes.shape[0], -1), joining / after.index_select(0, matching.into)


def join(x: Tensor, matching: Matching, share: Tensor) -> Tensor:
    """Rows of x (B, T, D) that stay, each moved towards those that join it: a mean weighted by size.

    Whole rows are picked out of one long table, and only those that change are computed with: several times as fast
    as adding up all rows under an index for each value.
    """
    b, _, width = x.shape
    table = x.flatten(0, 1)  # (B*T, D)
    precise = torch.promote_types(x.dtype, torch.float32)  # sums of many in half precision would drift
    kept = table.index_select(0, matching.stays).to(precise)  # (B*left, D)
    gone = table.index_select(0, matching.joins).to(precise)  # (B*count, D)
    step = (gone - kept.index_select(0, matching.into)) * share[:, None]
    kept = kept.scatter_add_(0, matching.into[:, None].expand(-1, width), step.to(precise))
    return kept.view(b, -1, width).to(x.dtype)


def unmerge(patches: Tensor, place: Place) -> Tensor:
    """Give every original patch the token that holds it: (B, left, D) -> (B, N, D)."""
    if place.sources is None:
        return patches
    return patches.gather(1, place.sources[..., None].expand(-1, -1, patches.shape[-1]))


def spread(row: Tensor, place: Place) -> Tensor:
    """What tokens have (B, …, T), shared out among the patches that each holds: (B, …, R+N); sums stay."""
    if place.sources is None or place.sizes is None:
        return row
    r = place.prefix
    each = row / _for_each(place.sizes, row)
    return torch.cat((row[..., :r], each[..., r:].gather(-1, _for_each(place.sources, row))), dim=-1)


def collect(row: Tensor, place: Place) -> Tensor:
    """What the patches have (B, …, R+N), summed up in the tokens that hold them: (B, …, T)."""
    if place.sources is None or place.sizes is None:
        return row
    r = place.prefix
    empty = row.new_zeros(*row.shape[:-1], place.sizes.shape[1] - r)
    return torch.cat((row[..., :r], empty.scatter_add(-1, _for_each(place.sources, row), row[..., r:])), dim=-1)


def carry(row: Tensor, after: Place, before: Place) -> Tensor:
    """A row over tokens after a merging, taken back to those before it, each by its share of the mean."""
    return collect(spread(row, after), before)


def _for_each(values: Tensor, rows: Tensor) -> Tensor:
    """Values of an image (B, n), the same for each of its rows (B, …, m): (B, …, n)."""
    return values.view(len(rows), *[1] * (rows.ndim - 2), -1).expand(*rows.shape[:-1], -1)
