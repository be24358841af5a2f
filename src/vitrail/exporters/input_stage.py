"""Entrance: 8-bit values (B, H, W, C) -> pixels (B, C, H, W), inside the graph; what Preprocess does outside."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.exporters.resample_matrices import sharp, size_tensor, smooth
from vitrail.images import Preprocess


class Entrance(nn.Module):
    """Normalises bytes; whole images of any size are resized and cropped first where asked for."""

    scale: Tensor
    shift: Tensor

    def __init__(self, preprocess: Preprocess, resize: bool) -> None:
        super().__init__()
        _refuse(preprocess, resize)
        self.preprocess, self.resize = preprocess, resize
        both = torch.tensor((preprocess.std, preprocess.mean), dtype=torch.float64)
        std, mean = both[:, :, None, None].unbind(0)  # (C, 1, 1) each
        self.register_buffer("scale", (1 / (preprocess.range * std)).float(), persistent=False)
        self.register_buffer("shift", (mean / std).float(), persistent=False)

    def forward(self, img: Tensor) -> Tensor:
        """uint8 (B, H, W, C) -> float32 (B, C, H, W)."""
        values = img.permute(0, 3, 1, 2).float()
        if self.resize:
            values = framed(values, self.preprocess)
        if self.preprocess.order == "BGR":
            values = torch.cat((values[:, 2:], values[:, 1:2], values[:, :1]), dim=1)
        return values * self.scale - self.shift


def _refuse(preprocess: Preprocess, resize: bool) -> None:
    if preprocess.channels not in (1, 3) or preprocess.range != 255.0:
        raise InputError(
            f"pixels='bytes' is for 8-bit images, grey or colour, and this network reads {preprocess.channels} bands "
            f"with {preprocess.range:g} as 1.0: export with pixels='float'"
        )
    if not resize:
        return
    if preprocess.resize == "pad" or preprocess.crop > 1:
        raise InputError("resize_inside knows resize 'crop' and 'squash' without bars: export without it")
    if preprocess.interpolation not in ("bilinear", "bicubic"):
        raise InputError(
            f"resize_inside knows bilinear and bicubic, and this network's images are resized by "
            f"{preprocess.interpolation}: export without it"
        )


def framed(values: Tensor, preprocess: Preprocess) -> Tensor:
    """8-bit values as floats (B, C, H, W) -> those of the frame that the network sees, as Pillow resizes them.

    First along rows, then along columns, each rounded to 8 bits; without antialiasing rounded once. Pillow takes the
    columns first where its own count of the work says so: there the two may differ by a step.
    """
    height, width = size_tensor(values.shape[2], torch.float64), size_tensor(values.shape[3], torch.float64)
    tall, wide = _resized(height, width, preprocess)
    down = _matrix(values.shape[2], height, tall, preprocess.size[0], preprocess)  # (h, H)
    across = _matrix(values.shape[3], width, wide, preprocess.size[1], preprocess)  # (w, W)
    if not preprocess.antialias:
        return torch.round(down.float() @ (values @ across.float().T)).clamp(0, 255)  # as numpy rounds
    values = _weighed(lambda part: values @ part.T, across)  # (B, C, H, w)
    return _weighed(lambda part: part @ values, down)  # (B, C, h, w)


def _weighed(product: Callable[[Tensor], Tensor], matrix: Tensor) -> Tensor:
    """Bytes weighed by a matrix and rounded, to the last bit as Pillow does: with weights of 22 bits.

    float32 holds 24 bits, a byte takes 8 of them: the upper and the lower 11 bits of the weights go apart, so that no
    sum is ever rounded, whatever its order.
    """
    fine = torch.floor(matrix * 2.0**22 + 0.5)
    upper = torch.floor(fine / 2048.0)
    lower = fine - upper * 2048.0
    found = product((upper / 2.0**11).float()) + 0.5
    floor = torch.floor(found)
    return (floor + torch.floor(found - floor + product((lower / 2.0**22).float()))).clamp(0, 255)


def _resized(height: Tensor, width: Tensor, preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    """The size of the image before the crop: Preprocess's own arithmetic, in doubles."""
    tall, wide = preprocess.scaled()
    if preprocess.resize == "squash":
        return torch.full_like(height, tall), torch.full_like(width, wide)
    if tall == wide:
        short = torch.minimum(height, width)
        return torch.floor(tall * height / short), torch.floor(tall * width / short)
    ratio = torch.minimum(height / tall, width / wide)
    return tuple(torch.clamp(torch.round(each / ratio), min=1.0) for each in (height, width))  # type: ignore[return-value]


def _matrix(length: int, side: Tensor, scaled: Tensor, frame: int, preprocess: Preprocess) -> Tensor:
    """(frame, length): what a side of the frame takes from the image's own pixels."""
    start = torch.round((scaled - frame) / 2)
    ratio = side / scaled
    centres = (torch.arange(frame, dtype=torch.float64) + start + 0.5) * ratio
    if not preprocess.antialias:
        return sharp(centres - 0.5, length, preprocess.interpolation)
    return smooth(centres, ratio, torch.arange(length, dtype=torch.float64), preprocess.interpolation)
