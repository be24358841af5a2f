"""Floats -> 8-bit integers and back: QuantParams for what a layer receives, Int8Weight for its weight."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

SMALLEST = 1e-12  # a scale: below it there is nothing to tell apart


class QuantParams(NamedTuple):
    """value = (integer - zero_point) * scale, integers of 8 bits: unsigned, or signed about zero."""

    scale: float
    zero_point: int
    signed: bool = False

    @classmethod
    def of_range(cls, low: float, high: float, symmetric: bool = False) -> QuantParams:
        """255 steps over a range; zero is always one of them, so that what is zero stays zero.

        Symmetric ones are signed, as TensorRT wants them. The scale is a float32, as every runtime stores it.
        """
        if symmetric:
            return cls(_float32(max(abs(low), abs(high)) / 127), 0, True)
        low, high = min(low, 0.0), max(high, 0.0)
        scale = _float32((high - low) / 255)
        return cls(scale, max(0, min(255, round(-low / scale))))

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest integer."""
        return (-128, 127) if self.signed else (0, 255)

    def round_trip(self, x: Tensor) -> Tensor:
        """Floats -> the floats that their integers stand for."""
        integers = ((x / self.scale).round() + self.zero_point).clamp(*self.limits)
        return (integers - self.zero_point) * self.scale


def _float32(scale: float) -> float:
    return float(np.float32(max(scale, SMALLEST)))


def to_uint8(x: Tensor, scale: float, zero_point: int) -> Tensor:
    """Floats -> unsigned bytes, in words that TorchScript has.

    In three passes: the sum and the product are one, and dropping the fraction after adding a half is rounding. A value
    halfway between two bytes goes up, and not to the even one.
    """
    return torch.add(torch.scalar_tensor(zero_point + 0.5), x, alpha=1.0 / scale).clamp_(0.0, 255.0).to(torch.uint8)


class Int8Weight(NamedTuple):
    """A weight in signed bytes about zero, one scale for each output."""

    values: Tensor  # int8 (out, in)
    scales: Tensor  # float32 (out,)

    @classmethod
    def of(cls, weight: Tensor) -> Int8Weight:
        """The nearest to a weight (out, in); an output of zeros has scale 1."""
        weight = weight.detach().float()
        scales = weight.abs().amax(dim=1) / 127
        scales = torch.where(scales > SMALLEST, scales, 1.0)
        return cls((weight / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales)

    def to_float(self) -> Tensor:
        """The weight that the bytes stand for, float32 (out, in)."""
        return self.values.float() * self.scales[:, None]
