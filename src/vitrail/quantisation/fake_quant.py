"""Fake quantisation: a network and a plan -> one that rounds weights and activations as int8 and bf16 would.

It runs on any machine, in floats: plans are searched on it, and exported int8 files are compared with it.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.network.surgery import rebuild
from vitrail.network.vit import ViT
from vitrail.quantisation.quant_params import Int8Weight, QuantParams
from vitrail.quantisation.quant_plan import QuantPlan, Range, quantisable


class FakeInt8Linear(nn.Module):
    """A linear layer whose input and weight are rounded to bytes and back."""

    def __init__(self, linear: nn.Linear, ends: Range, symmetric: bool = False) -> None:
        super().__init__()
        self.params = QuantParams.of_range(*ends, symmetric)
        self.weight = nn.Parameter(Int8Weight.of(linear.weight).to_float().to(linear.weight.dtype), requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.params.round_trip(x), self.weight, self.bias)


class FakeBf16Linear(nn.Module):
    """A linear layer whose input, weight and output are rounded to bf16 and back."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(_through_bf16(linear.weight.detach()), requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return _through_bf16(F.linear(_through_bf16(x), self.weight, self.bias))


def _through_bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


def fake_quantise(model: ViT, plan: QuantPlan, symmetric: bool = False) -> ViT:
    """The network that rounds as the plan says; the one given stays as it is."""
    rounding = rebuild(model, model.config).eval()  # on the very same tensors
    rest = {*quantisable(model), "patches.projection"} - set(plan.int8) if plan.precision == "bf16" else ()
    for name in (*plan.int8, *rest):
        parent, _, last = name.rpartition(".")
        linear = cast(nn.Linear, rounding.get_submodule(name))
        layer = FakeInt8Linear(linear, plan.int8[name], symmetric) if name in plan.int8 else FakeBf16Linear(linear)
        setattr(rounding.get_submodule(parent), last, layer)
    return rounding.requires_grad_(False)
