"""Resampling as matrices: how much of each old place goes into each new one, (new, old), in plain arithmetic.

F.interpolate hides its arithmetic in one operator, which other runtimes have not, or have with other numbers. These
matrices are built from sizes that may be known only when the graph runs, by operators that every runtime has alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.network.config import Resample

CUBIC_SHARP = -0.75  # torch's constant without antialiasing
CUBIC_SMOOTH = -0.5  # with it; Pillow's too


def weights(old: int, new: int, policy: Resample, keep: Tensor) -> Tensor:
    """(new, old), as F.interpolate resamples a side of `old` places to `new`, a number or a symbol.

    `keep` is 1 where both sides stay as they are, else 0: a table on its own grid is never resampled.
    """
    count = size_tensor(new)
    if policy.align_corners:
        step = over(old - 1, torch.clamp(count - 1, min=1))  # one place alone reads the first
        return sharp(steps(new) * step, old, policy.mode)
    ratio = over(old, count)
    if policy.offset:
        ratio = torch.where(_plain(count, old, policy, keep) > 0, ratio, over(old, count + policy.offset))
    if policy.antialias:
        return smooth((steps(new) + 0.5) * ratio, ratio, torch.arange(old, dtype=torch.float32), policy.mode)
    if policy.mode == "nearest":
        return _nearest(steps(new) * ratio, old)
    return sharp((steps(new) + 0.5) * ratio - 0.5, old, policy.mode)


def _plain(count: Tensor, old: int, policy: Resample, keep: Tensor) -> Tensor:
    """1 where an offset is left out: on the table's own grid, and where torch takes a short cut along one side."""
    if policy.mode == "bicubic" and not policy.antialias:
        return keep
    plain = torch.maximum(keep, same(count, old))
    return torch.maximum(plain, same(count, 2 * old)) if policy.mode == "nearest" else plain


def same(count: Tensor, old: int) -> Tensor:
    """1 where a size is that number, else 0."""
    return (count == old).to(count.dtype)


def size_tensor(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A size as a tensor without dimensions, also where it is a symbol."""
    return torch.full((), count, dtype=dtype)


def over(number: float, count: Tensor) -> Tensor:
    """A true division; a plain number over a tensor would become a product with a rounded reciprocal."""
    return torch.full_like(count, number) / count


def steps(count: int) -> Tensor:
    """0, 1, 2 … as floats."""
    return torch.arange(count, dtype=torch.float32)


def smooth(centres: Tensor, ratio: Tensor, places: Tensor, mode: str) -> Tensor:
    """The kernel as wide as the step where that is above 1, rows summing to 1; centres from the first edge on."""
    stretch = torch.clamp(ratio, min=1.0)
    away = ((places[None, :] + 0.5 - centres[:, None]) / stretch).abs()
    found = triangle(away) if mode == "bilinear" else cubic(away, CUBIC_SMOOTH)
    return found / found.sum(dim=1, keepdim=True)


def sharp(centres: Tensor, old: int, mode: str) -> Tensor:
    """The kernel one step wide, whatever the ratio; what lies outside is brought to the edge."""
    beyond = torch.arange(-2, old + 2, dtype=centres.dtype)
    inside = torch.minimum(torch.clamp(beyond, min=0.0), size_tensor(old, centres.dtype) - 1)
    places = torch.arange(old, dtype=centres.dtype)
    folded = torch.clamp(1 - (inside[:, None] - places[None, :]).abs(), min=0.0)  # (old + 4, old), one 1 a row
    away = (beyond[None, :] - centres[:, None]).abs()
    return (triangle(away) if mode == "bilinear" else cubic(away, CUBIC_SHARP)) @ folded


def _nearest(sources: Tensor, old: int) -> Tensor:
    chosen = torch.clamp(torch.floor(sources), max=old - 1)
    away = (torch.arange(old, dtype=torch.float32)[None, :] - chosen[:, None]).abs()
    return torch.clamp(1 - away, min=0)  # whole numbers: 1 where they meet, 0 elsewhere


def triangle(away: Tensor) -> Tensor:
    return torch.clamp(1 - away, min=0)


def cubic(away: Tensor, a: float) -> Tensor:
    """Keys' kernel for distances from 0 up; 0 from 2 on."""
    near = ((a + 2) * away - (a + 3)) * away * away + 1
    capped = torch.clamp(away, max=2.0)
    far = ((capped - 5) * capped + 8) * capped * a - 4 * a
    return torch.where(away <= 1, near, far)
