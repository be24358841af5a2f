"""Resizing by torch: the sums that Pillow makes, by vector units, in a third of the time.

What Pillow gives are the right bits. These are a level or two apart now and then, and more where ringing is cut off at
black or white: this goes across first and then down, Pillow the shorter way round. So it is for pictures of which other
bits have been asked for already, by scaled decoding. Like all kernels here it is compared first, once in a process.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from PIL import Image

from vitrail.images import Area, Interpolation, by_pillow
from vitrail.shipping.kernels import Probe

_KERNELS = {"bilinear": "_upsample_bilinear2d_aa", "bicubic": "_upsample_bicubic2d_aa"}
_LEVELS = 2  # of 255: further from Pillow, it is not used


def resample(image: Image.Image, size: tuple[int, int], area: Area, interpolation: Interpolation) -> Image.Image:
    """An area of an image resized to (width, height), as `vitrail.images.by_pillow` does, which does all but this:
    grey or colour made smaller, from the first corner on, by a kernel that torch has.
    """
    first = area[0] == area[1] == 0
    smaller = size[0] <= area[2] and size[1] <= area[3]
    if not (first and smaller and interpolation in _KERNELS and image.mode in ("L", "RGB") and probe().works):
        return by_pillow(image, size, area, interpolation)
    return _by_torch(image, size, area, interpolation)


def _by_torch(image: Image.Image, size: tuple[int, int], area: Area, interpolation: Interpolation) -> Image.Image:
    values = torch.from_numpy(np.array(image))
    values = (values if values.ndim == 3 else values[:, :, None]).permute(2, 0, 1)[None]  # (1, C, H, W)
    sides, scales = (size[1], size[0]), (size[1] / area[3], size[0] / area[2])
    made = torch.empty((1, len(values[0]), *sides), dtype=torch.uint8, memory_format=torch.channels_last)
    getattr(torch.ops.aten, _KERNELS[interpolation]).out(values, sides, False, *scales, out=made)
    shaped = made[0].permute(1, 2, 0).numpy()  # (height, width, C), in order
    return Image.fromarray(shaped if shaped.shape[2] == 3 else shaped[:, :, 0])


@cache
def probe() -> Probe:
    """Whether the kernels are here and near Pillow, on noise and on edges, of whole and broken sizes."""
    noise = np.random.default_rng(0).integers(0, 256, (61, 83, 3), np.uint8)
    noise[:30] = 255 * (noise[:30] > 127)
    try:
        for interpolation in ("bilinear", "bicubic"):
            for mode in ("L", "RGB"):
                image = Image.fromarray(noise).convert(mode)
                for area in ((0, 0, 83, 61), (0, 0, 82.5, 60.25)):
                    made, right = (way(image, (31, 24), area, interpolation) for way in (_by_torch, by_pillow))
                    apart = np.abs(np.asarray(made, np.int16) - np.asarray(right, np.int16)).max()
                    if apart > _LEVELS:
                        return Probe(False, f"{interpolation} by torch is {apart} levels from Pillow")
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        return Probe(False, str(error).splitlines()[0][:200])
    return Probe(True)
