"""Token merging: tokens (B, T, D) -> fewer tokens, the most alike joined by a weighted mean, sources kept.

Bipartite soft matching (Bolya et al. 2023): patches are dealt into two sets in turn, each of the first set looks
for its nearest in the second, and the closest pairs are joined. Prefix tokens take no part.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.network.tokens import Place


class Matching(NamedTuple):
    """For every patch token, which token it goes into: (B, N) numbers below `left`."""

    target: Tensor
    left: int


def match(metric: Tensor, count: int) -> Matching:
    """Which `count` patches to join, by cosine likeness of metric (B, N, d); the order of patches is kept."""
    b, n, _ = metric.shape
    count = min(count, n // 2)
    if not count:  # one patch left has no partner
        return Matching(torch.arange(n, device=metric.device).expand(b, n), n)
    metric = F.normalize(metric, dim=-1)
    first, second = metric[:, 0::2], metric[:, 1::2]
    scores = first @ second.transpose(1, 2)  # (B, ceil(N/2), floor(N/2))
    best, partner = scores.max(dim=-1)
    joined = best.argsort(dim=-1, descending=True, stable=True)[:, :count]  # (B, count), numbers in the first set

    leaves = torch.zeros(b, n, dtype=torch.bool, device=metric.device)
    leaves.scatter_(1, joined * 2, True)
    place = (~leaves).long().cumsum(dim=1) - 1  # the new number of every patch that stays
    partners = partner.gather(1, joined) * 2 + 1  # in numbers of all patches
    target = place.scatter(1, joined * 2, place.gather(1, partners))
    return Matching(target, n - count)


def merge(x: Tensor, place: Place, metric: Tensor, count: int) -> tuple[Tensor, Place]:
    """Join tokens x (B, T, D) by metric (B, T, d); place keeps sizes, sources and mean coordinates."""
    r = place.prefix
    b, t, _ = x.shape
    target, left = match(metric[:, r:], count)
    sizes = place.sizes if place.sizes is not None else torch.ones(b, t, device=x.device)  # fp32: counts stay exact
    weight = sizes[:, r:, None]
    total = _pour(weight, target, left)  # (B, left, 1)
    patches = (_pour(x[:, r:] * weight, target, left) / total).to(x.dtype)
    places = place.places
    if places is not None:
        places = _pour(places.expand(b, -1, -1) * weight, target, left) / total
    sources = target if place.sources is None else target.gather(1, place.sources)
    return torch.cat((x[:, :r], patches), dim=1), Place(
        place.grid, r, places, torch.cat((sizes[:, :r], total[..., 0]), dim=1), sources
    )


def unmerge(patches: Tensor, place: Place) -> Tensor:
    """Give every original patch the token that holds it: (B, left, D) -> (B, N, D)."""
    if place.sources is None:
        return patches
    return patches.gather(1, place.sources[..., None].expand(-1, -1, patches.shape[-1]))


def _pour(x: Tensor, target: Tensor, left: int) -> Tensor:
    """Sum the rows of x (B, N, D) that go into the same target: (B, left, D)."""
    empty = x.new_zeros(x.shape[0], left, x.shape[2])
    return empty.scatter_add(1, target[..., None].expand_as(x), x)
