"""How a fresh network starts: named styles, one table, `STYLES`.

Each module says in `starts` which column is for which of its parameters. In every style other biases are zeros (the
last layer's is `head_bias_init`), norms are ones and zeros, stems keep torch's own. "paper" is what Google's released
code does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import init

from vitrail.errors import ConfigError
from vitrail.network.config import ViTConfig

Filler = Callable[[Tensor], object]


def normal(deviation: float) -> Filler:
    return lambda tensor: init.normal_(tensor, std=deviation)


def truncated(deviation: float) -> Filler:
    return lambda tensor: init.trunc_normal_(tensor, std=deviation)  # cut at -2 and 2, as in timm and HF


def xavier(tensor: Tensor) -> None:
    """Uniform with variance 2 / (in + out); a kernel counts as the matrix it flattens to."""
    init.xavier_uniform_(tensor.flatten(1))


def lecun(tensor: Tensor) -> None:
    """Truncated normal with variance 1 / in, as Flax starts convolutions and dense layers."""
    deviation = 1 / math.sqrt(tensor[0].numel()) / 0.87962566103423978  # what the cut takes away
    init.trunc_normal_(tensor, std=deviation, a=-2 * deviation, b=2 * deviation)


def torch_own(tensor: Tensor) -> None:
    """torch's start of convolutions: uniform within 1 / sqrt(in)."""
    init.kaiming_uniform_(tensor, a=math.sqrt(5))


class Style(NamedTuple):
    """One row of the table: what fills dense layers, the MLP's biases, the patch kernel and so on."""

    dense: Filler
    mlp_bias: Filler
    patch: Filler
    cls: Filler
    positions: Filler
    last: Filler


zeros: Filler = init.zeros_
STYLES: dict[str, Style] = {
    "paper": Style(xavier, normal(1e-6), lecun, zeros, normal(0.02), zeros),
    "timm": Style(truncated(0.02), zeros, torch_own, normal(1e-6), truncated(0.02), truncated(0.02)),
    "hf": Style(truncated(0.02), zeros, truncated(0.02), truncated(0.02), truncated(0.02), truncated(0.02)),
    "mae": Style(xavier, zeros, xavier, normal(0.02), normal(0.02), truncated(2e-5)),
    "dinov2": Style(truncated(0.02), zeros, torch_own, normal(1e-6), truncated(0.02), normal(0.01)),
}
NORMS = (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)
AS_BUILT = (nn.Linear, nn.Conv2d, nn.Embedding, nn.ParameterList, *NORMS)  # unless the module around it says otherwise


@torch.no_grad()
def initialise(model: nn.Module, config: ViTConfig) -> None:
    """Fill every parameter of a fresh network by the config's style; one that no `starts` names is refused."""
    if next(model.parameters()).is_meta:
        return  # shapes only
    weights, biases = _fillers(STYLES[config.initialisation], config)
    for module in (*list(model.modules())[1:], model):  # its own layers last
        if isinstance(module, AS_BUILT):
            continue
        starts: dict[str, str] = getattr(module, "starts", {})
        dense = {name: child for name, child in module.named_children() if isinstance(child, nn.Linear)}
        for name in (*module._parameters, *dense):
            if starts.get(name) not in weights:
                unknown, known = f"{type(module).__name__}.{name}", ", ".join(weights)
                raise ConfigError(f"initialisation: how {unknown} starts is not known: name in `starts` one of {known}")
        for name, how in starts.items():
            part = getattr(module, name)
            if isinstance(part, nn.Parameter):  # not where it is a fixed table, or absent
                weights[how](part)
            elif isinstance(part, nn.Module):  # a dense layer or a norm
                weights[how](part.get_parameter("weight"))  # (out, in), or (D,)
                if getattr(part, "bias", None) is not None:
                    biases.get(how, zeros)(part.get_parameter("bias"))  # (out,)


def _fillers(style: Style, config: ViTConfig) -> tuple[dict[str, Filler], dict[str, Filler]]:
    """What `starts` may name: how it fills weights (and parameters), and how biases if not by zeros."""

    def thirds(weight: Tensor) -> None:
        for part in weight.chunk(3):  # q, k and v apart: Xavier counts what goes in and out
            style.dense(part)

    own = {"qkv": thirds, "mlp": style.dense, "zeros": zeros, "xavier": xavier, "as built": lambda tensor: None}
    own |= {"registers": normal(1e-6), "text": normal(0.02)}  # DINOv2; GPT-2, both tables and the head
    biases: dict[str, Filler] = {"mlp": style.mlp_bias, "last": partial(init.constant_, val=config.head_bias_init)}
    return {**style._asdict(), **own}, biases
