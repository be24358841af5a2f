"""The transformer, in the order an image travels. Pure torch: no disk, network, environment or logging."""

from vitrail.network.attention import Attention
from vitrail.network.config import ConvStem, Positions, Resample, ResNetStem, Rotary, ViTConfig
from vitrail.network.masked import MaskedDecoder
from vitrail.network.patches import channels_first, patchify, unpatchify
from vitrail.network.presets import create, preset
from vitrail.network.surgery import rebuild, resize_kernel, with_head, with_merging
from vitrail.network.vit import Features, ViT

__all__ = [
    "Attention",
    "ConvStem",
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
    "patchify",
    "preset",
    "rebuild",
    "resize_kernel",
    "unpatchify",
    "with_head",
    "with_merging",
]
