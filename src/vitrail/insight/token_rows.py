"""Rows over tokens (B, …, T), such as attention's, and over patches (B, …, R+N): from one to the other and back."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.network.tokens import TokenLayout


def spread(row: Tensor, layout: TokenLayout) -> Tensor:
    """What tokens have (B, …, T), shared out among the patches that each holds: (B, …, R+N); sums stay."""
    if layout.patch_to_token is None or layout.counts is None:
        return row
    r = layout.prefix
    each = row / _for_each(layout.counts, row)
    return torch.cat((row[..., :r], each[..., r:].gather(-1, _for_each(layout.patch_to_token, row))), dim=-1)


def collect(row: Tensor, layout: TokenLayout) -> Tensor:
    """What the patches have (B, …, R+N), summed up in the tokens that hold them: (B, …, T)."""
    if layout.patch_to_token is None or layout.counts is None:
        return row
    r = layout.prefix
    empty = row.new_zeros(*row.shape[:-1], layout.counts.shape[1] - r)
    return torch.cat((row[..., :r], empty.scatter_add(-1, _for_each(layout.patch_to_token, row), row[..., r:])), dim=-1)


def carry(row: Tensor, after: TokenLayout, before: TokenLayout) -> Tensor:
    """A row over tokens after a merging, taken back to those before it, each by its share of the mean."""
    return collect(spread(row, after), before)


def _for_each(values: Tensor, rows: Tensor) -> Tensor:
    """Values of an image (B, n), the same for each of its rows (B, …, m): (B, …, n)."""
    return values.view(len(rows), *[1] * (rows.ndim - 2), -1).expand(*rows.shape[:-1], -1)
