"""A network and pixels -> the range of what each layer receives, and how much the answers suffer if it is int8."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.network.surgery import eval_mode
from vitrail.network.vit import ViT
from vitrail.packed.onednn_kernels import Bytes, Scale, probe
from vitrail.packed.packed_layers import ByteLinear
from vitrail.packed.packing import Range, layers_of
from vitrail.quantisation.folding import shared
from vitrail.quantisation.pooled_block import pool_only


class Sensitive(NamedTuple):
    """A layer, and how far the answers move if it alone is int8: mean divergence from the network's own."""

    name: str
    harm: float


@contextmanager
def watched(model: ViT, look: Callable[[str, Tensor], None]) -> Iterator[ViT]:
    """The network, computing no more than its pool reads; shows what each layer that can be int8 receives."""
    model = pool_only(shared(model))

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, given: look(name, given[0].detach())

    hooks = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers_of(model)]
    try:
        with eval_mode(model), torch.inference_mode():
            yield model
    finally:
        for each in hooks:
            each.remove()


def calibrate(model: ViT, batches: Sequence[Tensor]) -> dict[str, Range]:
    """For each layer that can be int8, the least and the largest value that it receives on these pixels.

    Nothing is cut off: the few very large values of a vision transformer carry meaning, and ranges of least squared
    error, tried on ViT-Ti/16, moved its answers ten times as far.
    """
    if not batches or not sum(len(each) for each in batches):
        raise InputError("no images to calibrate on: ranges come from images like those to be answered")
    ends: dict[str, Range] = {}

    def look(name: str, values: Tensor) -> None:
        low, high = ends.get(name, (0.0, 0.0))  # zero is always inside
        least, most = torch.aminmax(values)
        ends[name] = (min(low, float(least)), max(high, float(most)))

    with watched(model, look) as network:
        for pixels in batches:
            network(pixels)
    for name, (low, high) in ends.items():
        if not low < high:
            raise InputError(f"{name} receives nothing but zeros on these images: calibrate on others")
    return ends


def sensitivity(
    model: ViT, ranges: dict[str, Range], pixels: Tensor, done: Callable[[int], None] = lambda count: None
) -> list[Sensitive]:
    """Each layer by itself in int8, all others as they are; the most harmful first."""
    probe("int8")  # torch warns once that its quantised tensors may go: there, where nobody hears it
    with torch.inference_mode(), eval_mode(model):
        truth = _chances(model(pixels))
        tried = shared(model).eval()
        found = []
        for name, layer in layers_of(model):
            scale = Scale.of_range(*ranges[name])
            swapped = ByteLinear(Bytes.of(layer.weight), layer.bias, scale, kind=layer.weight.dtype)
            parent, _, last = name.rpartition(".")
            setattr(tried.get_submodule(parent), last, swapped)
            harm = (truth.exp() * (truth - _chances(tried(pixels)))).sum(dim=-1).mean()
            found.append(Sensitive(name, float(harm)))
            setattr(tried.get_submodule(parent), last, layer)
            done(1)
    return sorted(found, key=lambda each: -each.harm)


def _chances(logits: Tensor) -> Tensor:
    """Log probabilities of the classes; without classes, of the values as they are."""
    return logits.float().flatten(1).log_softmax(dim=-1)
