"""A network -> the same one computing as int8 would, in floats: what an exported int8 file is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.exporters.qdq import Steps
from vitrail.network.vit import ViT
from vitrail.packed.packing import Range
from vitrail.quantisation.folding import shared


class RoundedLinear(nn.Module):
    """A linear layer whose input and weight are rounded to bytes and back."""

    def __init__(self, linear: nn.Linear, ends: Range, symmetric: bool) -> None:
        super().__init__()
        self.steps = Steps.of_range(*ends, symmetric)
        scales = (linear.weight.detach().abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-12)
        self.weight = nn.Parameter((linear.weight.detach() / scales).round().clamp(-127, 127) * scales)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        least, most = (0, 255) if self.steps.kind == "uint8" else (-128, 127)
        whole = ((x / self.steps.scale).round() + self.steps.zero).clamp(least, most)
        return F.linear((whole - self.steps.zero) * self.steps.scale, self.weight, self.bias)


def rounded(model: ViT, ranges: Mapping[str, Range], symmetric: bool = False) -> ViT:
    """The network with these layers rounded; the one given stays as it is."""
    made = shared(model).eval()
    with torch.no_grad():
        for name, ends in ranges.items():
            parent, _, last = name.rpartition(".")
            layer = cast(nn.Linear, made.get_submodule(name))
            setattr(made.get_submodule(parent), last, RoundedLinear(layer, ends, symmetric))
    return made.requires_grad_(False)
