"""oneDNN's own kernels, as torch has them: weights packed once, activation and sum in the same pass.

They are private to torch, so nothing here is taken for granted: `probe` runs each on small numbers and compares it with
plain torch, once in a process; a kernel that is missing, or wrong, is not used, and the reason is kept.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.quantisation.quant_params import Int8Weight, QuantParams, to_uint8

# What oneDNN calls the activations that it can do while the product is still in a register: name and algorithm.
FUSED = {
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "": ("none", ""),
}
SLOW = 20  # times slower than plain fp32: a path that nobody would want


class KernelProbe(NamedTuple):
    """Whether a kernel can be used here, and if not, why."""

    works: bool
    why: str = ""


# ---- fp32 and bf16 -----------------------------------------------------------------------------------------------


def pack_weight(weight: Tensor, rows: int) -> Tensor:
    """A weight (out, in), fp32 or bf16, in the layout that oneDNN likes best for about this many rows."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)
    return packed


def linear(x: Tensor, packed: Tensor, bias: Tensor | None, activation: str = "") -> Tensor:
    """x (rows, in) -> activation(x W' + b) (rows, out)."""
    name, algorithm = FUSED[activation]
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, name, [], algorithm)
    return product


def linear_residual(x: Tensor, packed: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """x (rows, in) -> residual + x W' + b (rows, out)."""
    total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, packed, bias, "add")
    return total


# ---- int8 --------------------------------------------------------------------------------------------------------


class PackedInt8(NamedTuple):
    """All that a kernel of int8 wants to know beside its rows: what those are worth, the weight, the bias."""

    params: QuantParams  # of the rows
    weight: Tensor  # packed
    scales: Tensor  # float32 (out,), of the weight
    zero_points: Tensor  # int32 (out,), all 0
    bias: Tensor | None

    @classmethod
    def of(cls, weight: Int8Weight, params: QuantParams, bias: Tensor | None, rows: int) -> PackedInt8:
        """Packed in oneDNN's layout for about this many rows."""
        packed: Tensor = torch.ops.onednn.qlinear_prepack(weight.values, [rows, weight.values.shape[1]])
        return cls(params, packed, weight.scales, torch.zeros(len(weight.scales), dtype=torch.int32), bias)


def int8_linear(
    x: Tensor,
    layer: PackedInt8,
    activation: str = "",
    out: QuantParams | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Bytes x (rows, in) -> activation(x W' + b): floats of a dtype, or bytes that are worth `out`."""
    name, algorithm = FUSED[activation]
    scale, zero_point = (1.0, 0) if out is None else out[:2]
    product: Tensor = torch.ops.onednn.qlinear_pointwise.default(
        *(x, layer.params.scale, layer.params.zero_point, layer.weight, layer.scales, layer.zero_points, layer.bias),
        *(scale, zero_point, dtype if out is None else torch.uint8, name, [], algorithm),
    )
    return product


def int8_linear_residual(x: Tensor, layer: PackedInt8, residual: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bytes x (rows, in) -> residual + x W' + b, floats of a dtype."""
    total: Tensor = torch.ops.onednn.qlinear_pointwise.binary(
        *(x, layer.params.scale, layer.params.zero_point, layer.weight, layer.scales, layer.zero_points),
        *(residual, layer.bias, 1.0, 0, dtype, 1.0, 0, "add", 1.0, "none", [], ""),
    )
    return total


# ---- are they there, and are they right? --------------------------------------------------------------------------


@cache
def probe(precision: str) -> KernelProbe:
    """Run the kernels of "fp32", "bf16" or "int8" against plain torch, once."""
    if not torch.backends.mkldnn.is_available():
        return KernelProbe(False, "this torch has no oneDNN")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 64, generator=generator)
    weight, bias = torch.randn(80, 64, generator=generator) / 8, torch.randn(80, generator=generator)
    residual = torch.randn(48, 80, generator=generator)
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            if precision == "int8":
                return _probe_int8(x, weight, bias, residual)
            return _probe_floats(torch.bfloat16 if precision == "bf16" else torch.float32, x, weight, bias, residual)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return KernelProbe(False, str(error).splitlines()[0][:200])


def _probe_floats(dtype: torch.dtype, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> KernelProbe:
    x, weight, bias, residual = (each.to(dtype) for each in (x, weight, bias, residual))
    packed = pack_weight(weight, 48)
    within = 0.05 if dtype == torch.bfloat16 else 1e-4
    plain = F.linear(x.float(), weight.float(), bias.float())
    pairs = [(linear(x, packed, bias, name), _activated(plain, name)) for name in FUSED]
    pairs.append((linear_residual(x, packed, bias, residual), plain + residual.float()))
    return _verdict(pairs, within)


def _probe_int8(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> KernelProbe:
    params, out = QuantParams.of_range(-4.0, 5.0), QuantParams.of_range(-1.0, 8.0)
    small = Int8Weight.of(weight)
    layer = PackedInt8.of(small, params, bias, 48)
    rows = to_uint8(x, params.scale, params.zero_point)
    plain = (rows.float() - params.zero_point) * params.scale @ small.to_float().T + bias
    pairs = [(int8_linear(rows, layer, name), _activated(plain, name)) for name in FUSED]
    pairs.append((int8_linear_residual(rows, layer, residual), plain + residual))
    half = torch.bfloat16
    halves = [
        (int8_linear(rows, layer, "", None, half), plain),
        (int8_linear_residual(rows, layer, residual.to(half), half), plain + residual.to(half).float()),
    ]
    if not _verdict(halves, 0.02).works:
        return KernelProbe(False, "bf16 out of int8 differs from plain torch")
    restored = (int8_linear(rows, layer, "gelu", out).float() - out.zero_point) * out.scale
    if (restored - F.gelu(plain).clamp(-1.0, 8.0)).abs().max() > 1.01 * out.scale:
        return KernelProbe(False, "bytes out differ from plain torch by more than a step")
    took = [_seconds(call) for call in (lambda: int8_linear(rows, layer), lambda: F.linear(x, weight, bias))]
    if took[0] > SLOW * took[1] + 1e-3:
        return KernelProbe(False, f"the kernel takes {took[0] / took[1]:.0f} times as long as plain fp32")
    return _verdict(pairs, 1e-3)


def _activated(x: Tensor, name: str) -> Tensor:
    if name in ("gelu", "gelu_tanh"):
        return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")
    return {"relu": F.relu, "silu": F.silu}.get(name, lambda each: each)(x)


def _verdict(pairs: list[tuple[Tensor, Tensor]], within: float) -> KernelProbe:
    worst = max(float((ours.float() - plain).abs().max() / plain.abs().max()) for ours, plain in pairs)
    return KernelProbe(worst <= within, "" if worst <= within else f"results differ from plain torch by {worst:.2g}")


def _seconds(call: Callable[[], object]) -> float:
    """Of this thread's own time: what else a busy machine does in between says nothing of a kernel."""
    call()
    took = []
    for _ in range(3):
        started = time.thread_time()
        call()
        took.append(time.thread_time() - started)
    return min(took)
