"""RandAugment (Cubuk et al. 2020): images (B, C, H, W) -> the same, each changed by operations drawn for it alone.

Values and geometry are Pillow's, at the paper's strengths:

| operation                                 | at magnitude 10                                    | magnitude 0 |
|-------------------------------------------|----------------------------------------------------|-------------|
| identity, autocontrast, equalise          | no strength                                        |             |
| rotate                                    | 30 degrees either way                              | 0           |
| shear_x, shear_y                          | 0.3 either way                                     | 0           |
| translate_x, translate_y                  | 0.45 of the side either way                        | 0           |
| colour, contrast, brightness, sharpness   | factor 1.9 or 0.1                                  | 1           |
| solarise                                  | values from 0 on are turned round                  | from 256 on |
| posterise                                 | 4 bits are left                                    | 8           |

Where an image leaves its frame, its own mean colour stands. Operations on values are for 8-bit images, `colour` for
three channels: to others they do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.types import Array

OPERATIONS: Final = (
    *("identity", "autocontrast", "equalise", "rotate", "solarise", "colour", "posterise", "contrast"),
    *("brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y"),
)
_VALUES: Final = np.arange(256)
_RED, _GREEN, _BLUE = 19595, 38470, 7471  # Pillow's grey, in 65536ths


def rand_augmented(images: Tensor, magnitude: float, chances: Array) -> Tensor:
    """As many operations in a row as `chances` (B, operations, 2), from 0 to under 1, has pairs for each image."""
    changed = images.numpy().copy()
    for operation in range(chances.shape[1]):
        chosen = (chances[:, operation, 0] * len(OPERATIONS)).astype(np.int64)
        side = np.where(chances[:, operation, 1] < 0.5, -1.0, 1.0)
        for number, name in enumerate(OPERATIONS):
            rows = np.flatnonzero(chosen == number)
            if len(rows) and name != "identity":
                some = torch.from_numpy(changed[rows])
                changed[rows] = operated(some, name, strengths(name, magnitude, side[rows])).numpy()
    return torch.from_numpy(changed)  # (B, C, H, W)


def strengths(name: str, magnitude: float, side: Array) -> Array:
    """What a magnitude from 0 to 10 means to an operation, for images of side -1 or 1: the table above."""
    part = magnitude / 10
    if name in ("colour", "contrast", "brightness", "sharpness"):
        return 1 + 0.9 * part * side
    fixed = {"solarise": 256 * (1 - part), "posterise": 8 - round(4 * part), "autocontrast": 0.0, "equalise": 0.0}
    if name in fixed:
        return np.full(len(side), fixed[name])
    most = {"rotate": 30.0, "shear_x": 0.3, "shear_y": 0.3, "translate_x": 0.45, "translate_y": 0.45}
    return np.asarray(side * most[name] * part)


def operated(images: Tensor, name: str, strength: Array) -> Tensor:
    """One operation on images (n, C, H, W), with a strength in its own unit for each."""
    if name in _MATRICES:
        return _warped(images, _MATRICES[name](strength, images.shape[2], images.shape[3]))
    if images.dtype != torch.uint8 or (name == "colour" and images.shape[1] != 3):
        return images
    if name in _TABLES:
        return torch.from_numpy(_looked_up(images.numpy(), _TABLES[name](images.numpy(), strength[:, None, None])))
    plain = _grey(images.numpy()) if name == "colour" else _smooth(images.numpy())
    return torch.from_numpy(_towards(plain, images.numpy(), strength[:, None, None, None]))


def means(images: Array) -> Array:
    """The mean colour of each image, (n, C, 1, 1); of 8-bit ones rounded, halves up."""
    count = images.shape[2] * images.shape[3]
    flat = images.reshape(*images.shape[:2], 1, count)
    if images.dtype == np.uint8:
        return np.asarray((2 * flat.sum(3, np.int64, keepdims=True) + count) // (2 * count), np.uint8)
    return np.asarray(flat.mean(3, np.float64, keepdims=True), images.dtype)


# ---- geometry ----------------------------------------------------------------------------------------------------


def _rotation(degrees: Array, height: int, width: int) -> Array:
    """Anticlockwise around the centre."""
    angle = -np.radians(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = width / 2, height / 2
    return np.stack([cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y], 1)


def _matrices(values: Array, place: int) -> Array:
    """The identity with one number changed: (n, 6)."""
    found = np.tile([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], (len(values), 1))
    found[:, place] = values
    return found


_MATRICES: Final[dict[str, Callable[[Array, int, int], Array]]] = {
    "rotate": _rotation,
    "shear_x": lambda amount, height, width: _matrices(amount, 1),
    "shear_y": lambda amount, height, width: _matrices(amount, 3),
    "translate_x": lambda share, height, width: _matrices(share * width, 2),
    "translate_y": lambda share, height, width: _matrices(share * height, 5),
}


def _warped(images: Tensor, matrices: Array) -> Tensor:
    """Each image seen through its matrix, as Pillow's transform(AFFINE, BILINEAR): x' = a x + b y + c and so on."""
    height, width = images.shape[2:]
    x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
    there = np.empty((len(images), height, width, 2))  # from -1 to 1 inside the image
    for axis, side in enumerate((width, height)):
        across, down, start = (each[:, None] * (2 / side) for each in matrices[:, 3 * axis : 3 * axis + 3].T)
        np.add((across * x)[:, None, :], (down * y + (start - 1))[:, :, None], out=there[..., axis])
    inside = torch.from_numpy((there >= -1) & (there < 1)).all(3)[:, None]  # (n, 1, H, W)
    grid = torch.from_numpy(there.astype(np.float32))
    seen = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    if images.dtype == torch.uint8:
        seen = seen.round_().to(torch.uint8)
    return torch.where(inside, seen, torch.from_numpy(means(images.numpy())))  # (n, C, H, W)


# ---- tables: operations that give every value of a channel another -----------------------------------------------


def _looked_up(images: Array, tables: Array) -> Array:
    """Images (n, C, H, W) through tables (n, 1 or C, 256)."""
    changed = np.empty_like(images)
    shape = images.shape[2:]
    for image, place, some in zip(images, changed, tables.astype(np.uint8), strict=True):
        for channel, plane in enumerate(image):
            table = some[channel % len(some)].tobytes()
            # Three times as fast as indexing.
            place[channel] = np.frombuffer(plane.tobytes().translate(table), np.uint8).reshape(shape)
    return changed


def _autocontrast(images: Array, _: Array) -> Array:
    """Each channel stretched from 0 to 255."""
    low, high = (each.astype(np.float64)[:, :, None] for each in (images.min((2, 3)), images.max((2, 3))))
    scale = np.where(high > low, 255 / np.maximum(high - low, 1), 1.0)
    return np.asarray(np.clip(_VALUES * scale - np.where(high > low, low, 0.0) * scale, 0, 255))


def _equalise(images: Array, _: Array) -> Array:
    """Each channel's values spread so that they are about equally frequent."""
    return np.array([[_levels(np.bincount(plane.ravel(), minlength=256)) for plane in image] for image in images])


def _levels(counts: Array) -> Array:
    """Pillow's table for a histogram of 256 values."""
    used = np.flatnonzero(counts)
    step = int(counts.sum() - counts[used[-1]]) // 255
    if len(used) < 2 or step == 0:
        return _VALUES
    below = np.cumsum(counts) - counts
    return np.asarray(np.minimum((step // 2 + below) // step, 255))


_TABLES: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "autocontrast": _autocontrast,
    "equalise": _equalise,
    "solarise": lambda images, threshold: np.where(threshold > _VALUES, _VALUES, 255 - _VALUES),
    "posterise": lambda images, bits: _VALUES & (256 - 2 ** (8 - bits.astype(np.int64))),
    "contrast": lambda images, factor: _towards(means(_grey(images))[:, :, 0], _VALUES, factor),
    "brightness": lambda images, factor: _towards(np.zeros_like(factor), _VALUES, factor),
}


# ---- neighbours and other channels -------------------------------------------------------------------------------


def _smooth(images: Array) -> Array:
    """Pillow's SMOOTH: the eight neighbours and five times the pixel, over 13; the border stays."""
    smooth = images.copy()
    if min(images.shape[2:]) > 2:
        wide = images.astype(np.uint16)
        rows = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
        total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * wide[:, :, 1:-1, 1:-1]
        smooth[:, :, 1:-1, 1:-1] = (2 * total + 13) // 26
    return smooth


def _grey(images: Array) -> Array:
    """(n, 1, H, W): Pillow's grey of three channels, the mean of any other number."""
    if images.shape[1] == 3:
        red, green, blue = (images[:, channel].astype(np.int32) for channel in range(3))
        mixed = (_RED * red + _GREEN * green + _BLUE * blue + (1 << 15)) >> 16
    else:
        mixed = images.sum(1, np.int32) // images.shape[1]
    return np.asarray(mixed, np.uint8)[:, None]


def _towards(plain: Array, values: Array, factor: Array) -> Array:
    """Pillow's enhancement: 0 is the plain image, 1 the image itself, 2 as far again beyond it."""
    start = plain.astype(np.float32)
    found = (values - start) * factor.astype(np.float32)
    return np.asarray(np.clip(found + start, 0, 255), np.uint8)
