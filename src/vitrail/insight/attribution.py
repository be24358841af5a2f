"""draw: a network, pixels and a method -> the maps of a batch, not yet judged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor

from vitrail.errors import InputError
from vitrail.insight.activations import asked
from vitrail.insight.flow import flow_map
from vitrail.insight.gradients import RIGHT, grad_cam_map, integrated_gradients, patch_sums
from vitrail.insight.methods import (
    Attention,
    Flow,
    GradCam,
    GradientRollout,
    IntegratedGradients,
    Method,
    Occlusion,
    Relevance,
    Rollout,
)
from vitrail.insight.occlusion import Array, occlusion_map
from vitrail.insight.rollout import attention_map, gradient_rollout_map, relevance_map, rollout_map
from vitrail.insight.targets import Aim
from vitrail.network.vit import ViT


class Drawn(NamedTuple):
    """A map (h, w), and what its method has to say about it."""

    map: Array
    pixel_map: Array | None = None
    warning: str = ""


def draw(model: ViT, pixels: Tensor, method: Method, aims: Sequence[Aim]) -> list[Drawn]:
    """The maps of a batch by one method."""
    if isinstance(method, IntegratedGradients):
        return [_integrated(model, each, method, aim) for each, aim in zip(pixels, aims, strict=True)]
    if isinstance(method, Occlusion):
        grid, ask = model.grid_of(pixels), partial(asked, model)
        pairs = zip(pixels, aims, strict=True)
        return [Drawn(occlusion_map(ask, each, grid, method, aim.of).numpy()) for each, aim in pairs]
    if isinstance(method, Attention):
        maps = attention_map(model, pixels, method)
    elif isinstance(method, Rollout):
        maps = rollout_map(model, pixels, method)
    elif isinstance(method, GradientRollout):
        maps = gradient_rollout_map(model, pixels, method, aims)
    elif isinstance(method, Relevance):
        maps = relevance_map(model, pixels, method, aims)
    elif isinstance(method, GradCam):
        maps = grad_cam_map(model, pixels, method, aims)
    elif isinstance(method, Flow):
        maps = flow_map(model, pixels, method)
    else:
        raise InputError(f"method {method.name!r} draws no map of its own")
    return [Drawn(each.cpu().numpy()) for each in maps]


def _integrated(model: ViT, pixels: Tensor, method: IntegratedGradients, aim: Aim) -> Drawn:
    found = integrated_gradients(model, pixels, method, aim)
    late = f"after {found.steps} steps the attributions still miss the difference of outputs by {found.error:.1%}"
    return Drawn(
        patch_sums(found.pixels, model.config.cell).cpu().numpy(),
        found.pixels.sum(dim=0).cpu().numpy(),
        late if found.error > RIGHT else "",
    )
