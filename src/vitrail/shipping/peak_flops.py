"""What this machine can do at best: the rate of its matrix products, in each precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.inference.timing import interleaved
from vitrail.packed import onednn_kernels as kernels
from vitrail.packed.onednn_kernels import Bytes, Scale

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
    calls: dict[str, Callable[[], Tensor]] = {}
    for name, kind in (("fp32", torch.float32), *((("bf16", torch.bfloat16),) if kernels.has_bf16_units() else ())):
        given = (x.to(kind), weight.to(kind), bias.to(kind))
        calls[f"{name} plain"] = partial(F.linear, *given)
        if kernels.probe(name).works:
            calls[f"{name} packed"] = partial(kernels.linear, given[0], kernels.pack(given[1], rows), given[2])
    if kernels.probe("int8").works:
        scale, made = Scale.of_range(-4.0, 4.0), Bytes.of(weight)
        packed, zeros = kernels.pack_bytes(made.values, rows), torch.zeros(out, dtype=torch.int32)
        small = kernels.quantise(x, scale)
        out_scale = Scale.of_range(-100.0, 100.0)
        calls["int8 packed"] = partial(
            kernels.linear_bytes, small, scale, packed, made.steps, zeros, bias, "", out_scale
        )
    return calls
