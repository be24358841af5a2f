"""The transformer, in the order an image travels. Pure torch: no disk, network, environment or logging."""

from vitrail.network.attention import Attention
from vitrail.network.config import ConvStem, Positions, Resample, ResNetStem, Rotary, ViTConfig
from vitrail.network.cost import Cost, estimate, shape_walk
from vitrail.network.masked import MaskedDecoder
from vitrail.network.patches import channels_first, patchify, resize_kernel, unpatchify
from vitrail.network.presets import create, preset
from vitrail.network.vit import Features, ViT, with_merging

__all__ = [
    "Attention",
    "ConvStem",
    "Cost",
    "Features",
    "MaskedDecoder",
    "Positions",
    "ResNetStem",
    "Resample",
    "Rotary",
    "ViT",
    "ViTConfig",
    "channels_first",
    "create",
    "estimate",
    "patchify",
    "preset",
    "resize_kernel",
    "shape_walk",
    "unpatchify",
    "with_merging",
]
