"""Augment: what may happen to training images, and `augmented`, which makes it happen to images (B, C, h, w).

Every choice is a function of (seed, epoch, row): what becomes of an image does not depend on who shares its batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checks import check_int, check_number
from vitrail.data.counter_rng import uniform
from vitrail.data.randaugment import means, rand_augmented
from vitrail.errors import ConfigError, InputError
from vitrail.settings import Flag, between, settle
from vitrail.types import Array

ERASED: Final = (0.02, 0.33)  # least and most share of the area, and
ERASED_ASPECT: Final = 10 / 3  # shape, of an erased rectangle: Zhong et al. 2020


def _check_crop(name: str, shares: Any) -> tuple[float, float]:
    if not isinstance(shares, tuple | list) or len(shares) != 2:
        raise ConfigError(f"{name}: expected two shares of the area, (least, most), got {shares!r}")
    least, most = (check_number(name, each, 1e-3, 1.0) for each in shares)
    if least > most:
        raise ConfigError(f"{name}: expected the least share first, got {shares!r}")
    return least, most


Crop = Annotated[tuple[float, float], _check_crop]


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What may happen to a training image; the defaults leave it as it is."""

    crop: Crop | None = None  # random resized crop: the least and most share of the area
    aspect: Annotated[float, between(1.0, 10.0)] = 4 / 3  # how far a crop may be from the image's own shape
    shift: Annotated[int, partial(check_int, least=0, most=4096)] = 0  # pixels it may move each way, its edge repeated
    flip: Flag = False  # left to right, half of the time
    rand_ops: Annotated[int, partial(check_int, least=0, most=16)] = 0  # RandAugment: operations an image
    rand_magnitude: Annotated[float, between(0.0, 10.0)] = 9.0  # their strength
    erase: Annotated[float, between(0.0, 1.0)] = 0.0  # share of images from which a rectangle is erased
    mixup: Annotated[float, between(0.0, 100.0)] = 0.0  # alpha of the beta distribution; 0: never
    cutmix: Annotated[float, between(0.0, 100.0)] = 0.0  # the same; where both are given, each batch takes one of them

    def __post_init__(self) -> None:
        settle(self, "augment ")

    @property
    def changes(self) -> bool:
        """Whether anything happens to an image by itself; mixing is a matter of the batch."""
        return self.crop is not None or self.flip or self.shift > 0 or self.rand_ops > 0 or self.erase > 0


def augment_images(
    images: Tensor, size: tuple[int, int], augment: Augment, *, seed: int, epoch: int, rows: Array
) -> Tensor:
    """Images (B, C, h, w) -> (B, C, H, W) of this size: cropped, moved, flipped, RandAugmented, erased, in this order.

    8-bit images stay 8-bit, others are float32 in their own units. The rows say which images they are.
    """
    if images.ndim != 4 or len(images) != len(rows):
        raise InputError(f"images: expected ({len(rows)}, C, h, w), one for each row, got {tuple(images.shape)}")
    if augment.crop is None and tuple(images.shape[2:]) != tuple(size):
        raise InputError(
            f"images of {images.shape[2]}x{images.shape[3]} for a network of {size[0]}x{size[1]}: "
            "set Augment(crop=...) to cut from them, or make views with margin=1.0"
        )
    if images.dtype != torch.uint8:
        images = images.float()
    if augment.crop is not None:
        images = _cropped(images, size, augment, uniform(seed, "crop", epoch, rows, 4))
    if augment.shift or augment.flip:
        images = _moved(images, augment, uniform(seed, "move", epoch, rows, 3))
    if augment.rand_ops:
        chances = uniform(seed, "randaugment", epoch, rows, 2 * augment.rand_ops)
        images = rand_augmented(images, augment.rand_magnitude, chances.reshape(len(rows), augment.rand_ops, 2))
    if augment.erase:
        images = _erased(images, augment.erase, uniform(seed, "erase", epoch, rows, 5))
    return images


def boxes(chances: Array, shares: tuple[float, float], aspect: float, height: int, width: int) -> Array:
    """Rectangles in pixels, (n, 4): top, left, height, width; from `chances` (n, 4).

    Their share of the area is uniform. Their shape, beside the frame's, is uniform on a log scale up to `aspect`
    either way, less where a larger one would not fit: none is drawn again, and the area is never cut down.
    """
    share = shares[0] + chances[:, 0] * (shares[1] - shares[0])
    reach = np.minimum(math.log(aspect), -np.log(share))
    shape = np.exp((2 * chances[:, 1] - 1) * reach)
    tall = np.clip(np.rint(height * np.sqrt(share / shape)), 1, height)
    wide = np.clip(np.rint(width * np.sqrt(share * shape)), 1, width)
    top = np.floor(chances[:, 2] * (height - tall + 1))
    left = np.floor(chances[:, 3] * (width - wide + 1))
    return np.stack([top, left, tall, wide], 1).astype(np.int64)


def _cropped(images: Tensor, size: tuple[int, int], augment: Augment, chances: Array) -> Tensor:
    """A part of each image, resized: bilinear with antialiasing, on 8-bit numbers, one image after the other.

    A single sampling of the whole batch is quicker only below 64 pixels, three times slower at 224, and aliases.
    """
    places = boxes(chances, augment.crop or (1.0, 1.0), augment.aspect, images.shape[2], images.shape[3])
    found = torch.empty((*images.shape[:2], *size), dtype=images.dtype)
    for row, (top, left, tall, wide) in enumerate(places.tolist()):
        part = images[row : row + 1, :, top : top + tall, left : left + wide]
        found[row] = F.interpolate(part, size, mode="bilinear", antialias=True)[0]
    return found  # (B, C, H, W)


def _moved(images: Tensor, augment: Augment, chances: Array) -> Tensor:
    """Shifted by whole pixels and flipped: a window into the image with its edge repeated around it."""
    height, width = images.shape[2:]
    down, across = (chances[:, :2] * (2 * augment.shift + 1)).astype(np.int64).T.tolist()
    turned = (chances[:, 2] < (0.5 if augment.flip else 0.0)).tolist()
    margin = (augment.shift, augment.shift)
    wide = np.pad(images.numpy(), ((0, 0), (0, 0), margin, margin), "edge")
    found = np.empty(images.shape, wide.dtype)
    for place, (top, left, turn) in enumerate(zip(down, across, turned, strict=True)):
        part = wide[place, :, top : top + height, left : left + width]
        found[place] = part[:, :, ::-1] if turn else part
    return torch.from_numpy(found)  # (B, C, H, W)


def _erased(images: Tensor, share: float, chances: Array) -> Tensor:
    """A rectangle of some images in the image's mean colour, which says nothing of what stood there."""
    height, width = images.shape[2:]
    hit = np.flatnonzero(chances[:, 0] < share)
    places = boxes(chances[hit, 1:], ERASED, ERASED_ASPECT, height, width)
    found = images.numpy().copy()
    colours = means(found[hit])  # (hit, C, 1, 1)
    for place, colour, (top, left, tall, wide) in zip(hit.tolist(), colours, places.tolist(), strict=True):
        found[place, :, top : top + tall, left : left + wide] = colour
    return torch.from_numpy(found)
