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

# What oneDNN calls the activations that it can do while the product is still in a register: name and algorithm.
FUSED = {
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "": ("none", ""),
}
SLOW = 20  # times slower than plain fp32: a path that nobody would want


class Probe(NamedTuple):
    """Whether a kernel can be used here, and if not, why."""

    works: bool
    why: str = ""


# ---- fp32 and bf16 -----------------------------------------------------------------------------------------------


def pack(weight: Tensor, rows: int) -> Tensor:
    """A weight (out, in), fp32 or bf16, in the layout that oneDNN likes best for about this many rows."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)
    return packed


def linear(x: Tensor, packed: Tensor, bias: Tensor | None, activation: str = "") -> Tensor:
    """x (rows, in) -> activation(x W' + b) (rows, out)."""
    name, algorithm = FUSED[activation]
    made: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, name, [], algorithm)
    return made


def linear_onto(x: Tensor, packed: Tensor, bias: Tensor | None, onto: Tensor) -> Tensor:
    """x (rows, in) -> onto + x W' + b (rows, out)."""
    made: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, onto, packed, bias, "add")
    return made


# ---- int8 --------------------------------------------------------------------------------------------------------


class Scale(NamedTuple):
    """What a step of an unsigned byte is worth, and which byte means zero."""

    step: float
    zero: int

    @classmethod
    def of_range(cls, low: float, high: float) -> Scale:
        """Bytes that cover the range; zero is always one of them, so that what is zero stays zero."""
        low, high = min(low, 0.0), max(high, 0.0)
        step = max((high - low) / 255, 1e-12)
        return cls(step, max(0, min(255, round(-low / step))))


class Bytes(NamedTuple):
    """A weight in signed bytes, one step for each output, symmetric."""

    values: Tensor  # int8 (out, in)
    steps: Tensor  # float32 (out,)

    @classmethod
    def of(cls, weight: Tensor) -> Bytes:
        steps = (weight.detach().float().abs().amax(dim=1) / 127).clamp(min=1e-12)
        values = (weight.detach().float() / steps[:, None]).round().clamp(-127, 127).to(torch.int8)
        return cls(values, steps)

    def floats(self) -> Tensor:
        """The weight that the bytes stand for."""
        return self.values.float() * self.steps[:, None]


def quantise(x: Tensor, scale: Scale) -> Tensor:
    """Floats to unsigned bytes. The bytes of the quantised tensor are taken as they lie: int_repr copies, slowly."""
    made = torch.quantize_per_tensor(x, scale.step, scale.zero, torch.quint8)
    return torch.empty(0, dtype=torch.uint8).set_(made.untyped_storage(), 0, made.shape, made.stride())


def pack_bytes(values: Tensor, rows: int) -> Tensor:
    """An int8 weight (out, in) in oneDNN's layout."""
    packed: Tensor = torch.ops.onednn.qlinear_prepack(values, [rows, values.shape[1]])
    return packed


def linear_bytes(
    x: Tensor,
    scale: Scale,
    packed: Tensor,
    steps: Tensor,
    zeros: Tensor,
    bias: Tensor | None,
    activation: str = "",
    out: Scale | None = None,
    kind: torch.dtype = torch.float32,
) -> Tensor:
    """Bytes x (rows, in) -> activation(x W' + b): floats of a kind, or bytes of the scale `out`."""
    name, algorithm = FUSED[activation]
    kind = kind if out is None else torch.uint8
    step, zero = (1.0, 0) if out is None else out
    made: Tensor = torch.ops.onednn.qlinear_pointwise.default(
        x, scale.step, scale.zero, packed, steps, zeros, bias, step, zero, kind, name, [], algorithm
    )
    return made


def linear_bytes_onto(
    x: Tensor,
    scale: Scale,
    packed: Tensor,
    steps: Tensor,
    zeros: Tensor,
    bias: Tensor | None,
    onto: Tensor,
    kind: torch.dtype = torch.float32,
) -> Tensor:
    """Bytes x (rows, in) -> onto + x W' + b, floats of a kind."""
    made: Tensor = torch.ops.onednn.qlinear_pointwise.binary(
        *(x, scale.step, scale.zero, packed, steps, zeros, onto, bias),
        *(1.0, 0, kind, 1.0, 0, "add", 1.0, "none", [], ""),
    )
    return made


# ---- are they there, and are they right? --------------------------------------------------------------------------


@cache
def probe(precision: str) -> Probe:
    """Run the kernels of "fp32", "bf16" or "int8" against plain torch, once."""
    if not torch.backends.mkldnn.is_available():
        return Probe(False, "this torch has no oneDNN")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 64, generator=generator)
    weight, bias = torch.randn(80, 64, generator=generator) / 8, torch.randn(80, generator=generator)
    onto = torch.randn(48, 80, generator=generator)
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # torch warns once that its quantised tensors may go
            if precision == "int8":
                return _probe_bytes(x, weight, bias, onto)
            return _probe_floats(torch.bfloat16 if precision == "bf16" else torch.float32, x, weight, bias, onto)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return Probe(False, str(error).splitlines()[0][:200])


def _probe_floats(kind: torch.dtype, x: Tensor, weight: Tensor, bias: Tensor, onto: Tensor) -> Probe:
    x, weight, bias, onto = (each.to(kind) for each in (x, weight, bias, onto))
    packed = pack(weight, 48)
    within = 0.05 if kind == torch.bfloat16 else 1e-4
    plain = F.linear(x.float(), weight.float(), bias.float())
    pairs = [(linear(x, packed, bias, name), _activated(plain, name)) for name in FUSED]
    pairs.append((linear_onto(x, packed, bias, onto), plain + onto.float()))
    return _verdict(pairs, within)


def _probe_bytes(x: Tensor, weight: Tensor, bias: Tensor, onto: Tensor) -> Probe:
    scale, out = Scale.of_range(-4.0, 5.0), Scale.of_range(-1.0, 8.0)
    made = Bytes.of(weight)
    zeros = torch.zeros(len(made.steps), dtype=torch.int32)
    packed = pack_bytes(made.values, 48)
    small = quantise(x, scale)
    expected = ((x / scale.step).round() + scale.zero).clamp(0, 255)
    if small.dtype != torch.uint8 or not torch.equal(small.float(), expected):
        return Probe(False, "quantising gave other bytes than rounding does")
    plain = (small.float() - scale.zero) * scale.step @ made.floats().T + bias
    given = (small, scale, packed, made.steps, zeros, bias)
    pairs = [(linear_bytes(*given, name), _activated(plain, name)) for name in FUSED]
    pairs.append((linear_bytes_onto(*given, onto), plain + onto))
    half = torch.bfloat16
    halves = [
        (linear_bytes(*given, "", None, half), plain),
        (linear_bytes_onto(*given, onto.to(half), half), plain + onto.to(half).float()),
    ]
    if not _verdict(halves, 0.02).works:
        return Probe(False, "bf16 out of int8 differs from plain torch")
    small_out = linear_bytes(*given, "gelu", out)
    again = (small_out.float() - out.zero) * out.step
    if (again - F.gelu(plain).clamp(-1.0, 8.0)).abs().max() > 1.01 * out.step:
        return Probe(False, "bytes out differ from plain torch by more than a step")
    took = [_seconds(partial) for partial in (lambda: linear_bytes(*given), lambda: F.linear(x, weight, bias))]
    if took[0] > SLOW * took[1] + 1e-3:
        return Probe(False, f"the kernel takes {took[0] / took[1]:.0f} times as long as plain fp32")
    return _verdict(pairs, 1e-3)


def _activated(x: Tensor, name: str) -> Tensor:
    if name in ("gelu", "gelu_tanh"):
        return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")
    return {"relu": F.relu, "silu": F.silu}.get(name, lambda each: each)(x)


def _verdict(pairs: list[tuple[Tensor, Tensor]], within: float) -> Probe:
    worst = max(float((made.float() - plain).abs().max() / plain.abs().max()) for made, plain in pairs)
    return Probe(worst <= within, "" if worst <= within else f"results differ from plain torch by {worst:.2g}")


def _seconds(call: Callable[[], object]) -> float:
    """Of this thread's own time: what else a busy machine does in between says nothing of a kernel."""
    call()
    took = []
    for _ in range(3):
        started = time.thread_time()
        call()
        took.append(time.thread_time() - started)
    return min(took)


def has_bf16_units() -> bool:
    """Whether the processor multiplies bf16 itself; without, bf16 is slower than fp32."""
    return _has("_is_avx512_bf16_supported") or has_tiles()


def has_tiles() -> bool:
    """Whether the processor multiplies whole tiles of matrices (AMX)."""
    return _has("_is_amx_tile_supported")


def _has(what: str) -> bool:
    asked = getattr(torch.cpu, what, None)
    return asked is not None and bool(asked())
