"""oneDNN's own kernels, as torch has them: weights packed once, activation and sum in the same pass.

They are private to torch, so nothing here is taken for granted: `probe` runs each on small numbers and compares it with
plain torch, once in a process; a kernel that is missing, or wrong, is not used, and the reason is kept.
"""

import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.network.encoder import activate
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

# No postponed annotations in this file: torch's interpreter reads the types of what its programs hold and call.


class Product(NamedTuple):
    """A linear layer packed for oneDNN, and all that its kernel wants to know."""

    weight: Tensor  # in oneDNN's layout
    bias: Tensor | None
    activation: str
    algorithm: str
    dtype: torch.dtype  # of what it gives; if it is not int8, of what it takes too
    int8: bool
    scale: float  # of the bytes that it takes
    zero_point: int
    scales: Tensor  # of its weight, one for each output
    zero_points: Tensor  # all 0
    out_scale: float  # of the bytes that it gives, where `dtype` is uint8
    out_zero_point: int


def pack_floats(weight: Tensor, bias: Tensor | None, rows: int, dtype: torch.dtype, activation: str = "") -> Product:
    """A weight (out, in) in fp32 or bf16, in the layout that oneDNN likes best for about this many rows."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype).contiguous(), rows)
    bias, nothing = None if bias is None else bias.detach().to(dtype), torch.empty(0)
    return Product(packed, bias, *FUSED[activation], dtype, False, 1.0, 0, nothing, nothing, 1.0, 0)


def pack_int8(
    weight: Int8Weight, bias: Tensor | None, params: QuantParams, rows: int, dtype: torch.dtype, activation: str = ""
) -> Product:
    """The same of a weight in bytes, for rows that are worth `params`; it gives floats of a dtype."""
    packed = torch.ops.onednn.qlinear_prepack(weight.values, [rows, weight.values.shape[1]])
    bias = None if bias is None else bias.detach().float()
    zero_points, (scale, zero_point, _) = torch.zeros(len(weight.scales), dtype=torch.int32), params
    given = (*FUSED[activation], dtype, True, scale, zero_point, weight.scales, zero_points, 1.0, 0)
    return Product(packed, bias, *given)


def giving_bytes(layer: Product, scale: float, zero_point: int) -> Product:
    """A layer in int8 that gives bytes of this scale, for the next one."""
    return layer._replace(dtype=torch.uint8, out_scale=scale, out_zero_point=zero_point)


def multiply(x: Tensor, layer: Product) -> Tensor:
    """Rows x (rows, in) -> activation(x W' + b) (rows, out)."""
    if layer.int8:
        given = (layer.bias, layer.out_scale, layer.out_zero_point, layer.dtype, layer.activation)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(*_int8_inputs(x, layer), *given, [], layer.algorithm)
    else:
        product = torch.ops.mkldnn._linear_pointwise(
            x.to(layer.dtype), layer.weight, layer.bias, layer.activation, [], layer.algorithm
        )
    return product


def multiply_add(x: Tensor, layer: Product, residual: Tensor) -> Tensor:
    """Rows x (rows, in) -> residual + x W' + b (rows, out); where their dtypes differ, in that of the residual."""
    if residual.dtype != layer.dtype and not layer.int8:
        return residual + multiply(x, layer)
    # The interpreter finds an overload once; Python would search for it in every call.
    if layer.int8:
        inputs, added = _int8_inputs(x, layer), (residual, layer.bias, 1.0, 0, layer.dtype, 1.0, 0, "add", 1.0, "none")
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            total: Tensor = torch.ops.onednn.qlinear_pointwise(*inputs, *added, [], "")
        else:
            total = torch.ops.onednn.qlinear_pointwise.binary(*inputs, *added, [], "")
    else:
        rows = x.to(layer.dtype)
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            total = torch.ops.mkldnn._linear_pointwise(rows, residual, layer.weight, layer.bias, "add")
        else:
            total = torch.ops.mkldnn._linear_pointwise.binary(rows, residual, layer.weight, layer.bias, "add")
    return total


def _int8_inputs(x: Tensor, layer: Product) -> tuple[Tensor, float, int, Tensor, Tensor, Tensor]:
    return in_bytes(x, layer), layer.scale, layer.zero_point, layer.weight, layer.scales, layer.zero_points


def in_bytes(x: Tensor, layer: Product) -> Tensor:
    """What a layer in int8 takes, in its bytes, whether it comes in floats or in bytes."""
    return x if x.dtype == torch.uint8 else to_uint8(x.float(), layer.scale, layer.zero_point)


def large_products(
    x: Tensor, weight: Tensor, bias: Tensor, precisions: tuple[str, ...]
) -> dict[str, Callable[[], Tensor]]:
    """A large product in every precision that works here, for the limit of this machine: calls by precision."""
    calls: dict[str, Callable[[], Tensor]] = {}
    for name in precisions:
        if not probe(name).works:
            continue
        if name == "int8":
            params, out = QuantParams.of_range(-4.0, 4.0), QuantParams.of_range(-100.0, 100.0)
            layer = pack_int8(Int8Weight.of(weight), bias, params, len(x), torch.float32)
            rows, layer = in_bytes(x, layer), giving_bytes(layer, out.scale, out.zero_point)
        else:
            dtype = torch.bfloat16 if name == "bf16" else torch.float32
            rows, layer = x.to(dtype), pack_floats(weight, bias, len(x), dtype)
        calls[name] = partial(multiply, rows, layer)
    return calls


# ---- are they there, and are they right? --------------------------------------------------------------------------


class KernelProbe(NamedTuple):
    """Whether a kernel can be used here, and if not, why."""

    works: bool
    why: str = ""


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
    packed = {name: pack_floats(weight, bias, 48, dtype, name) for name in FUSED}
    within = 0.05 if dtype == torch.bfloat16 else 1e-4
    plain = F.linear(x.float(), weight.float(), bias.float())
    pairs = [(multiply(x, layer), activate(plain, name) if name else plain) for name, layer in packed.items()]
    pairs.append((multiply_add(x, packed[""], residual), plain + residual.float()))
    return _verdict(pairs, within)


def _probe_int8(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> KernelProbe:
    params, out = QuantParams.of_range(-4.0, 5.0), QuantParams.of_range(-1.0, 8.0)
    small, half = Int8Weight.of(weight), torch.bfloat16
    packed = {name: pack_int8(small, bias, params, 48, torch.float32, name) for name in FUSED}
    plain_layer, half_layer = packed[""], packed[""]._replace(dtype=half)
    rows = in_bytes(x, plain_layer)
    plain = (rows.float() - params.zero_point) * params.scale @ small.to_float().T + bias
    pairs = [(multiply(rows, layer), activate(plain, name) if name else plain) for name, layer in packed.items()]
    pairs.append((multiply_add(rows, plain_layer, residual), plain + residual))
    halves = [
        (multiply(rows, half_layer), plain),
        (multiply_add(rows, half_layer, residual.to(half)), plain + residual.to(half).float()),
    ]
    if not _verdict(halves, 0.02).works:
        return KernelProbe(False, "bf16 out of int8 differs from plain torch")
    bytes_out = multiply(rows, giving_bytes(packed["gelu"], out.scale, out.zero_point))
    restored = (bytes_out.float() - out.zero_point) * out.scale
    if (restored - F.gelu(plain).clamp(-1.0, 8.0)).abs().max() > 1.01 * out.scale:
        return KernelProbe(False, "bytes out differ from plain torch by more than a step")
    took = [_seconds(call) for call in (lambda: multiply(rows, plain_layer), lambda: F.linear(x, weight, bias))]
    if took[0] > SLOW * took[1] + 1e-3:
        return KernelProbe(False, f"the kernel takes {took[0] / took[1]:.0f} times as long as plain fp32")
    return _verdict(pairs, 1e-3)


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
