"""A large product by packed kernels, in every precision that works here: for the limit of this machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from vitrail.packed import onednn_kernels as kernels
from vitrail.packed.onednn_kernels import PackedInt8, probe
from vitrail.quantisation.quant_params import Int8Weight, QuantParams, to_uint8


def large_products(
    x: Tensor, weight: Tensor, bias: Tensor, precisions: tuple[str, ...]
) -> dict[str, Callable[[], Tensor]]:
    """Calls by precision: rows x (rows, in) times a weight (out, in)."""
    calls: dict[str, Callable[[], Tensor]] = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        if name in precisions and probe(name).works:
            packed = kernels.pack_weight(weight.to(dtype), len(x))
            calls[name] = partial(kernels.linear, x.to(dtype), packed, bias.to(dtype))
    if "int8" in precisions and probe("int8").works:
        params, out = QuantParams.of_range(-4.0, 4.0), QuantParams.of_range(-100.0, 100.0)
        layer = PackedInt8.of(Int8Weight.of(weight), params, bias, len(x))
        calls["int8"] = partial(kernels.int8_linear, to_uint8(x, params.scale, params.zero_point), layer, "", out)
    return calls
