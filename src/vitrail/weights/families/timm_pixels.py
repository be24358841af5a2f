"""timm's pretrained config, the part that speaks of images: read, and written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from vitrail.checks import short_repr
from vitrail.errors import CheckpointError, nearest
from vitrail.images import Preprocess
from vitrail.weights.preprocessing import IMAGENET, Size, checked, refuse_beyond_pillow

MODES: Final = {"center": "crop", "squash": "squash", "border": "pad"}
TIMM_INTERPOLATIONS: Final = ("nearest", "bilinear", "bicubic", "lanczos", "box")


def from_timm(pretrained_cfg: Mapping[str, Any], size: Size | None = None) -> Preprocess:
    """The preprocessing that a pretrained config of timm asks for; a size other than its own keeps the rule.

    What the config leaves out takes timm's own defaults (timm/data/config.py).
    """
    if not isinstance(pretrained_cfg, Mapping):
        raise CheckpointError(f"expected timm's pretrained config as a mapping, got {short_repr(pretrained_cfg)}")
    given = {name: value for name, value in pretrained_cfg.items() if value}  # timm skips what is empty
    shape = given.get("input_size", (3, 224, 224))
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) != 3:
        raise CheckpointError(f"timm's input_size: expected (channels, height, width), got {short_repr(shape)}")
    mode, interpolation = given.get("crop_mode", "center"), given.get("interpolation", "bicubic")
    if mode not in list(MODES):
        raise CheckpointError(f"timm's crop_mode {short_repr(mode)} is unknown: {nearest(str(mode), MODES)}")
    if interpolation not in TIMM_INTERPOLATIONS:
        raise CheckpointError(
            f"timm's interpolation {short_repr(interpolation)} cannot be honoured: expected one of "
            f"{', '.join(TIMM_INTERPOLATIONS)}"
        )
    preprocess = checked(
        "timm's pretrained config",
        size=list(shape[1:]) if size is None else size,
        channels=shape[0],
        resize=MODES[mode],
        crop=given.get("crop_pct", 0.875),
        interpolation=interpolation,
        mean=given.get("mean", IMAGENET["mean"]),
        std=given.get("std", IMAGENET["std"]),
    )
    if _always_bilinear(preprocess):
        return replace(preprocess, interpolation="bilinear")
    return preprocess


def to_timm(preprocess: Preprocess) -> dict[str, Any]:
    """The part of timm's pretrained config that speaks of images, for JSON; what timm cannot do is refused."""
    refuse_beyond_pillow(preprocess, "timm")
    if _always_bilinear(preprocess) and preprocess.interpolation != "bilinear":
        raise CheckpointError(
            f"timm resizes for a frame of {preprocess.size} always bilinear, got {preprocess.interpolation!r}: "
            "use bilinear, or a square frame"
        )
    return {
        "input_size": [preprocess.channels, *preprocess.size],
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop,
        "crop_mode": next(mode for mode, resize in MODES.items() if resize == preprocess.resize),
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
    }


def _always_bilinear(preprocess: Preprocess) -> bool:
    """timm covers a frame that is not square by a resize which its interpolation does not reach."""
    return preprocess.resize == "crop" and len({math.floor(side / preprocess.crop) for side in preprocess.size}) > 1
