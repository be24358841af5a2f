"""What the tests of all families share: sizes, the measure, tensors compared bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from network import renames

SIZES = ((32, 32), (48, 48), (40, 24))  # native, larger, and not square; for patches of 8
CLOSE = 1e-5  # of the largest absolute value, in fp32
Read = Callable[[Tensor], Tensor]


def assert_equal(ours: Read, theirs: Read, sizes: tuple[tuple[int, int], ...] = SIZES, channels: int = 3) -> None:
    """Equal values at every size; two different images, so that nothing mixes them."""
    for size in sizes:
        pixels = torch.randn(2, channels, *size)
        with torch.no_grad():
            difference = renames.gap(ours(pixels), theirs(pixels))
        assert difference < CLOSE, f"at {size}: {difference:.2e} of the largest value"


def assert_same_bits(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """The same names with the same shapes, kinds of number and bits."""
    assert set(ours) == set(theirs), f"only ours: {set(ours) - set(theirs)}, only theirs: {set(theirs) - set(ours)}"
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert ours[name].shape == value.shape, name
        assert torch.equal(ours[name], value), name
