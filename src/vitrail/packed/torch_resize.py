"""Resizing by torch: the sums that Pillow makes, by vector units, in a third of the time.

What Pillow gives are the right bits. These are a level or two apart now and then, and more where ringing is cut off at
black or white: this goes across first and then down, Pillow the shorter way round. So it is for images of which other
bits have been asked for already, by scaled decoding. Like all kernels here it is compared first, once in a process.
"""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import torch
from PIL import Image

from vitrail.images import resize_crop_only, resize_then_crop
from vitrail.images.preprocess import Area, Box, Interpolation
from vitrail.packed.onednn_kernels import KernelProbe

_KERNELS: dict[Interpolation, str] = {"bilinear": "_upsample_bilinear2d_aa", "bicubic": "_upsample_bicubic2d_aa"}
_LEVELS = 2  # of 255: further from Pillow, it is not used
_MOST = 4_000_000  # pixels: copying more out of Pillow takes as long as its own resize, and much memory


def resample(image: Image.Image, area: Area, size: tuple[int, int], box: Box, kernel: Interpolation) -> Image.Image:
    """The Resample of packed networks. Pillow does all but this: grey or colour made smaller, not too large, from the
    first corner on, by a kernel that torch has.
    """
    plain = image.mode in ("L", "RGB") and image.width * image.height <= _MOST
    smaller = area[0] == area[1] == 0 and size[0] <= area[2] and size[1] <= area[3]
    if not (plain and smaller and kernel in _KERNELS and probe().works):
        return resize_crop_only(image, area, size, box, kernel)
    return _by_torch(image, area, size, box, kernel)


def _by_torch(image: Image.Image, area: Area, size: tuple[int, int], box: Box, kernel: Interpolation) -> Image.Image:
    values = torch.from_numpy(np.array(image))
    values = (values if values.ndim == 3 else values[:, :, None]).permute(2, 0, 1)[None]  # (1, C, H, W)
    sides, scales = (size[1], size[0]), (size[1] / area[3], size[0] / area[2])
    made = torch.empty((1, len(values[0]), *sides), dtype=torch.uint8, memory_format=torch.channels_last)
    getattr(torch.ops.aten, _KERNELS[kernel]).out(values, sides, False, *scales, out=made)
    shaped = made[0].permute(1, 2, 0).numpy()  # (height, width, C), in order
    return Image.fromarray(shaped if shaped.shape[2] == 3 else shaped[:, :, 0]).crop(box)


@cache
def probe() -> KernelProbe:
    """Whether the kernels are here and near Pillow, on noise and on edges, of whole and broken sizes."""
    noise = np.random.default_rng(0).integers(0, 256, (61, 83, 3), np.uint8)
    noise[:30] = 255 * (noise[:30] > 127)
    try:
        for mode, area, kernel in product(("L", "RGB"), ((0, 0, 83, 61), (0, 0, 82.5, 60.25)), _KERNELS):
            given = (Image.fromarray(noise).convert(mode), area, (31, 24), (1, 2, 30, 24), kernel)
            made, right = (np.asarray(way(*given), np.int16) for way in (_by_torch, resize_then_crop))
            if np.abs(made - right).max() > _LEVELS:
                return KernelProbe(False, f"{kernel} by torch is {np.abs(made - right).max()} levels from Pillow")
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        return KernelProbe(False, str(error).splitlines()[0][:200])
    return KernelProbe(True)
