"""A network and pixels -> the range of what each layer receives, and how much the answers suffer if it is int8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.checkpoint import Checkpoint
from vitrail.data.samples import Dataset
from vitrail.errors import ImageError, InputError
from vitrail.network.surgery import eval_mode, rebuild
from vitrail.network.vit import ViT
from vitrail.quantisation.fake_quant import fake_quantise
from vitrail.quantisation.pooled_block import pool_only
from vitrail.quantisation.quant_plan import QuantPlan, Range, quantisable

FEWEST = 8  # images to calibrate on


class Sensitivity(NamedTuple):
    """A layer, and how far the answers move if it alone is int8: mean divergence from the network's own."""

    name: str
    harm: float


def calibration_pixels(checkpoint: Checkpoint, data: Dataset, batch: int) -> list[Tensor]:
    """Pixels of images, a batch at a time; those that cannot be read are left out."""
    weight = next(checkpoint.model.parameters())
    batches: list[Tensor] = []
    for first in range(0, len(data), batch):
        pixels = []
        for row in range(first, min(first + batch, len(data))):
            with suppress(ImageError):
                pixels.append(checkpoint.preprocess(data.images[row]))
        if pixels:
            batches.append(torch.from_numpy(np.stack(pixels)).to(weight))
    read = sum(map(len, batches))
    if read < FEWEST:
        raise InputError(
            f"{data.source}: {read} of {len(data)} images to calibrate on can be read, expected at least {FEWEST}: "
            "`vitrail audit` says what is wrong with the others"
        )
    return batches


def watch_layers(model: ViT, batches: Sequence[Tensor], look: Callable[[str, Tensor], None]) -> None:
    """Show what each layer that can be int8 receives of these pixels, by a network on the same tensors that computes no
    more than its pool reads; the one given has no hooks and no other mode."""
    watched = pool_only(rebuild(model, model.config)).eval()

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, given: look(name, given[0].detach())

    for name in quantisable(watched):
        watched.get_submodule(name).register_forward_pre_hook(hook(name))
    with torch.inference_mode():
        for pixels in batches:
            watched(pixels)


def calibrate(model: ViT, batches: Sequence[Tensor]) -> dict[str, Range]:
    """For each layer that can be int8, the least and the largest value that it receives on these pixels.

    Nothing is cut off: the few very large values of a vision transformer carry meaning, and ranges of least squared
    error, tried on ViT-Ti/16, moved its answers ten times as far.
    """
    if not batches or not sum(len(each) for each in batches):
        raise InputError("no images to calibrate on: ranges come from images like those to be answered")
    ranges: dict[str, Range] = {}

    def look(name: str, values: Tensor) -> None:
        low, high = ranges.get(name, (0.0, 0.0))  # zero is always inside
        least, most = torch.aminmax(values)
        ranges[name] = Range(min(low, float(least)), max(high, float(most)))

    watch_layers(model, batches, look)
    for name, (low, high) in ranges.items():
        if not low < high:
            raise InputError(f"{name} receives nothing but zeros on these images: calibrate on others")
    return ranges


def rank_sensitivity(model: ViT, plan: QuantPlan, pixels: Tensor) -> list[Sensitivity]:
    """Each layer of the plan by itself in int8, all others as they are; the most harmful first."""
    ranking = []
    with torch.inference_mode(), eval_mode(model):
        truth = _log_probabilities(model(pixels))
        for name, ends in plan.int8.items():
            answers = _log_probabilities(fake_quantise(model, QuantPlan(int8={name: ends}))(pixels))
            ranking.append(Sensitivity(name, float((truth.exp() * (truth - answers)).sum(dim=-1).mean())))
    return sorted(ranking, key=lambda each: -each.harm)


def _log_probabilities(logits: Tensor) -> Tensor:
    """Of the classes; without classes, of the values as they are."""
    return logits.float().flatten(1).log_softmax(dim=-1)
