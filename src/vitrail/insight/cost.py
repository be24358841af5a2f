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
from vitrail.network.merging import most_joined
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
    pixels = _pixels(config, image_size)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(pixels)
    grid = config.grid_for((pixels.shape[2], pixels.shape[3]))
    tokens = config.prefix + grid[0] * grid[1]
    weights, patches = 0, grid[0] * grid[1]
    for block in range(config.depth):  # merging leaves fewer tokens to each next block
        weights += len(config.heads_of(block)) * (config.prefix + patches) ** 2
        patches -= most_joined(patches, config.merged_in(block))
    parameters = count_parameters(model)
    return Cost(
        parameters,
        counter.get_total_flops() // 2,
        tokens,
        (tokens, tokens),
        weights * 4,
        parameters * 4,
    )


def shape_walk(config: ViTConfig, image_size: int | tuple[int, int] | None = None) -> list[Step]:
    """The stations an image passes, with the shape it has there and the parameters spent."""
    model = build_empty(config).eval().requires_grad_(False)
    x = _pixels(config, image_size)
    grid = config.grid_for((x.shape[2], x.shape[3]))
    steps = [Step("pixels", tuple(x.shape), 0)]

    def arrive(name: str, value: Tensor, *modules: torch.nn.Module | None) -> None:
        steps.append(Step(name, tuple(value.shape), sum(count_parameters(each) for each in modules if each)))

    with torch.no_grad():
        if model.stem is not None:
            x = model.stem(x)
            arrive("stem", x, model.stem)
        x = model.patches(x)
        arrive("patches", x, model.patches)
        tokens, _ = model.tokens(x, grid)
        arrive("tokens", tokens, model.tokens, model.embedding_norm)
        recorder = Recorder(hidden=True)
        encoded = model.encode(_pixels(config, image_size), observer=recorder)
        for index, hidden in enumerate(recorder.hidden[1:]):
            arrive(f"block {index}", hidden, model.encoder.blocks[index])
        x = encoded.tokens
        if config.final_norm == "tokens":
            x = model.normed(x)
            arrive("norm", x, model.norm)
        x = model.pool(x, encoded.layout)
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
