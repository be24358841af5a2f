"""What this machine can do at best: the rate of its matrix products, in each precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.inference.timing import interleaved
from vitrail.packed import large_products
from vitrail.quantisation.cpu_features import has_bf16_units

Shape = tuple[int, int, int]
SHAPE = (3152, 768, 3072)  # rows, in and out of the largest layer of ViT-B/16, 16 images


def limits(rounds: int = 3, shape: Shape = SHAPE) -> dict[str, float]:
    """GFLOP/s of a large product: the faster of plain torch and packed, for fp32, int8, and bf16 where it has units."""
    with torch.inference_mode():
        return rates(interleaved(products(shape), rounds), shape)


def rates(seconds: Mapping[str, float], shape: Shape = SHAPE) -> dict[str, float]:
    """What times of products come to: GFLOP/s in each precision, of the fastest way."""
    best: dict[str, float] = {}
    for key, took in seconds.items():
        name = key.split()[0]
        best[name] = max(best.get(name, 0.0), 2 * math.prod(shape) / took / 1e9)
    return best


def products(shape: Shape = SHAPE) -> dict[str, Callable[[], Tensor]]:
    """The large product, by every precision and way: "fp32 plain", "fp32 packed" …"""
    rows, width, out = shape
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(rows, width, generator=generator), torch.randn(out, width, generator=generator)
    bias = torch.zeros(out)
    calls: dict[str, Callable[[], Tensor]] = {"fp32 plain": partial(F.linear, x, weight, bias)}
    if has_bf16_units():
        calls["bf16 plain"] = partial(F.linear, *(each.to(torch.bfloat16) for each in (x, weight, bias)))
    precisions = ("fp32", "bf16", "int8") if has_bf16_units() else ("fp32", "int8")
    packed = large_products(x, weight, bias, precisions)
    return calls | {f"{name} packed": call for name, call in packed.items()}
