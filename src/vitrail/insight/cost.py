"""What a network costs before it is built: parameters, multiply-adds, memory of attention, and its shape walk.

The network itself is run without memory (torch's meta device), so every option is counted as it is computed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from vitrail.checks import check_pair, check_type
from vitrail.insight.tracing import Recorder
from vitrail.network.config import ViTConfig
from vitrail.network.surgery import build_empty


class Cost(NamedTuple):
    """Of one image of the given size."""

    parameters: int
    multiply_adds: int  # FLOPs are twice that
    tokens: int  # T
    attention_matrix: tuple[int, int]  # (T, T), of one head in one block
    attention_bytes: int  # all maps of all blocks, in fp32: what an unfused network keeps
    parameter_bytes: int  # in fp32

    @property
    def flops(self) -> int:
        return 2 * self.multiply_adds


class Step(NamedTuple):
    """One station of the shape walk."""

    name: str
    shape: tuple[int, ...]
    parameters: int


def estimate(config: ViTConfig, image_size: int | tuple[int, int] | None = None) -> Cost:
    """The cost of one forward pass of one image, at the native size or another."""
    model = build_empty(config).eval().requires_grad_(False)
    pixels, recorder = _pixels(config, image_size), Recorder(hidden=True)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.head(model.summarise(*model.encode(pixels, observer=recorder)))
    tokens, *later = (each.shape[1] for each in recorder.hidden)  # merging leaves fewer to each next block
    weights = sum(len(config.heads_of(block)) * count**2 for block, count in enumerate((tokens, *later[:-1])))
    parameters = count_parameters(model)
    return Cost(parameters, counter.get_total_flops() // 2, tokens, (tokens, tokens), weights * 4, parameters * 4)


def shape_walk(config: ViTConfig, image_size: int | tuple[int, int] | None = None) -> list[Step]:
    """The stations an image passes, with the shape it has there and the parameters spent."""
    model = build_empty(config).eval().requires_grad_(False)
    pixels, recorder = _pixels(config, image_size), Recorder(hidden=True)
    steps = [Step("pixels", tuple(pixels.shape), 0)]

    def arrive(name: str, value: Tensor, *modules: torch.nn.Module | None) -> None:
        steps.append(Step(name, tuple(value.shape), sum(count_parameters(each) for each in modules if each)))

    with torch.no_grad():
        x, layout = model.encode(pixels, observer=recorder)
        if model.stem is not None:
            pixels = model.stem(pixels)
            arrive("stem", pixels, model.stem)
        arrive("patches", model.patches(pixels), model.patches)
        arrive("tokens", recorder.hidden[0], model.tokens, model.embedding_norm)
        for index, block in enumerate(model.encoder.blocks):
            arrive(f"block {index}", recorder.hidden[index + 1], block)
        if config.final_norm == "tokens":
            x = model.normed(x)
            arrive("norm", x, model.norm)
        x = model.pool(x, layout)
        arrive(f"pool ({config.pool})", x, model.pool)
        if config.final_norm == "pooled":
            x = model.normed(x)
            arrive("norm", x, model.norm)
        arrive("logits" if config.classes else "embedding", model.head(model.head.represent(x)), model.head)
    return steps


def count_parameters(module: torch.nn.Module) -> int:
    """Learned values; fixed tables do not count."""
    return sum(parameter.numel() for parameter in module.parameters())


def _pixels(config: ViTConfig, image_size: int | tuple[int, int] | None) -> Tensor:
    check_type("config", config, ViTConfig)
    size = config.image_size if image_size is None else check_pair("image_size", image_size)
    return torch.empty(1, config.channels, *size, device="meta")
