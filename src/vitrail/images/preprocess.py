"""Preprocess: an image in, normalised float32 pixels (C, H, W) out; the only way to a network."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from PIL import Image

from vitrail.checks import check_choice, check_fields, check_int, check_number, check_pair
from vitrail.errors import ConfigError, InputError
from vitrail.images.bands import MOST_BANDS
from vitrail.images.colours import Mode
from vitrail.images.decoding import Scaled, decode, decode_bands, decode_scaled, describe
from vitrail.types import Array, Source

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Uint8: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Resize: TypeAlias = Literal["crop", "squash", "pad"]
Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic", "lanczos", "box"]
Order: TypeAlias = Literal["RGB", "BGR"]
Box: TypeAlias = tuple[int, int, int, int]  # left, top, right, bottom
Area: TypeAlias = tuple[float, float, float, float]  # the same, between pixels too
# An area of an image, resized with antialiasing to (width, height), and of that what is inside a box.
Resample: TypeAlias = Callable[[Image.Image, Area, tuple[int, int], Box, Interpolation], Image.Image]

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
}
_BYTE = 255.0  # the range of 8-bit images
_AMPLE = 2  # a scaled JPEG is at least this much larger than what it is resized to: docs/images.md has the numbers
_LONGEST = 16_384  # pixels a side of the frame, and of what a crop asks an image to be resized to
_WASTE = 16  # a resized image of more than this many frames is only computed where the frame keeps it


def resize_then_crop(
    image: Image.Image, area: Area, size: tuple[int, int], box: Box, kernel: Interpolation
) -> Image.Image:
    """The Resample that says which bits are right: all of it resized by Pillow, and then cut."""
    resized = image.resize(size, _FILTERS[kernel], box=area)
    return resized if box == (0, 0, *size) else resized.crop(box)


def resize_crop_only(
    image: Image.Image, area: Area, size: tuple[int, int], box: Box, kernel: Interpolation
) -> Image.Image:
    """By Pillow too, but nothing outside the box is computed: sooner, and a bit otherwise rounded."""
    across, down = (area[2] - area[0]) / size[0], (area[3] - area[1]) / size[1]
    right, bottom = min(area[0] + box[2] * across, area[2]), min(area[1] + box[3] * down, area[3])
    inside = (area[0] + box[0] * across, area[1] + box[1] * down, right, bottom)
    return image.resize((box[2] - box[0], box[3] - box[1]), _FILTERS[kernel], box=inside)


@dataclass(frozen=True, init=False)
class Preprocess:
    """How an image becomes pixels: resize, centre crop or pad to size, then (value / range - mean) / std.

    One or three channels of range 255 are an ordinary image in 8 bits; all else keeps its own bands and numbers.
    """

    size: tuple[int, int]  # (height, width) the network receives
    resize: Resize  # crop: cover the frame; squash: ignore the aspect; pad: the whole image, bars around it
    crop: float  # the frame's share of the resized image: 224 / 0.9 resizes to 248
    interpolation: Interpolation
    antialias: bool
    mean: tuple[float, ...]  # one a channel, in the order the network sees them
    std: tuple[float, ...]
    channels: int
    order: Order
    range: float  # the value that counts as 1.0
    scaled_decoding: bool  # large JPEGs are decoded at a half, a quarter or an eighth: faster, not the same bits

    def __init__(
        self,
        size: int | Sequence[int] = 224,
        resize: Resize = "crop",
        crop: float = 0.9,
        interpolation: Interpolation = "bicubic",
        antialias: bool = True,
        mean: float | Sequence[float] = 0.5,
        std: float | Sequence[float] = 0.5,
        channels: int = 3,
        order: Order = "RGB",
        range: float = _BYTE,
        scaled_decoding: bool = False,
    ) -> None:
        """A single number serves for both sides of size, and for every channel of mean and std."""
        channels = check_int("channels", channels, most=MOST_BANDS)
        values: dict[str, object] = {
            "size": check_pair("size", size, _LONGEST),
            "resize": check_choice("resize", resize, get_args(Resize)),
            "crop": check_number("crop", crop, -1e6, 1e6),
            "interpolation": check_choice("interpolation", interpolation, tuple(_FILTERS)),
            "antialias": check_choice("antialias", antialias, (True, False)),
            "mean": _per_channel("mean", mean, channels),
            "std": _per_channel("std", std, channels),
            "channels": channels,
            "order": check_choice("order", order, get_args(Order)),
            "range": check_number("range", range, 1e-9, 1e9),
            "scaled_decoding": check_choice("scaled_decoding", scaled_decoding, (True, False)),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._validate()

    def _validate(self) -> None:
        if not 0 < self.crop <= 2:
            raise ConfigError(f"crop must be above 0 and at most 2 (1.0 keeps the short side), got {self.crop}")
        short, long = min(self.size) / self.crop, max(self.size) / self.crop  # not rounded: they may be infinite
        if short < 1 or long >= _LONGEST + 1:
            raise ConfigError(
                f"size {self.size} with crop {self.crop} resizes to sides of {short:g} to {long:g} pixels, "
                f"expected 1 to {_LONGEST}: set crop from {max(self.size) / _LONGEST:g} to {min(2, min(self.size))}"
            )
        if self.resize == "pad" and self.crop != 1.0:
            raise ConfigError(f"resize='pad' keeps the whole image, so it needs crop=1.0, got {self.crop}")
        if not self.antialias and self.interpolation in ("lanczos", "box"):
            raise ConfigError(f"antialias=False needs nearest, bilinear or bicubic, got {self.interpolation!r}")
        if min(self.std) <= 0:
            raise ConfigError(f"std must be positive, got {self.std}")
        if max(map(abs, self.mean)) > 2 or max(self.std) > 2:
            values = "8-bit values" if self.range == _BYTE else "the values of the file"
            raise ConfigError(
                f"mean {self.mean} and std {self.std} belong to {values}, expected 0 to 1: divide by {self.range:g}"
            )
        if self.channels != 3 and self.order != "RGB":
            raise ConfigError(f"order='BGR' needs channels=3, got channels={self.channels}")
        if self.scaled_decoding and not self.is_8bit:
            raise ConfigError(
                "scaled_decoding=True needs ordinary images, 1 or 3 channels of range 255, "
                f"got {self.channels} of range {self.range:g}"
            )
        if self.scaled_decoding and (not self.antialias or self.interpolation == "nearest"):
            raise ConfigError(
                "scaled_decoding=True averages pixels before the resize, so it needs antialias=True and a kernel "
                f"other than nearest, got antialias={self.antialias}, {self.interpolation!r}"
            )

    def __call__(self, source: Source) -> Pixels:
        """One image as pixels, float32 (C, H, W)."""
        pixels = np.empty((self.channels, *self.size), np.float32)
        self._write(source, pixels)
        return pixels  # (C, H, W)

    def batch(self, sources: Sequence[Source]) -> Pixels:
        """Several images as pixels, float32 (B, C, H, W); each as it would be alone."""
        check_image_list(sources)
        pixels = np.empty((len(sources), self.channels, *self.size), np.float32)
        for source, target in zip(sources, pixels, strict=True):
            self._write(source, target)
        return pixels  # (B, C, H, W)

    @property
    def is_8bit(self) -> bool:
        """Whether it is for 8-bit grey or colour, which `to_uint8` can hold."""
        return self.channels in (1, 3) and self.range == _BYTE

    def to_uint8(self, source: Source, resample: Resample | None = None) -> Uint8:
        """What the network sees of an ordinary image before normalisation: grey or RGB, uint8 (H, W, C).

        `normalise` makes pixels of it, the same bits as calling the Preprocess: a quarter of the memory on the way.
        Another `resample` than its own may round otherwise.
        """
        if not self.is_8bit:
            raise InputError(
                "to_uint8: expected a Preprocess of 1 or 3 channels of range 255, "
                f"got {self.channels} of range {self.range:g}: call it instead"
            )
        return self._seen(source, resample)  # (H, W, C)

    def normalise(self, values: Array) -> Pixels:
        """What `to_uint8` gave, of one image or more, uint8 (..., H, W, C) -> pixels, float32 (..., C, H, W)."""
        fits = isinstance(values, np.ndarray) and values.ndim >= 3 and values.shape[-1] == self.channels
        if not (self.is_8bit and fits and values.dtype == np.uint8):
            raise InputError(
                f"normalise: expected uint8 of shape (..., H, W, {self.channels}) and range 255, got "
                f"{describe(values)} and range {self.range:g}: see Preprocess.to_uint8"
            )
        ordered = values[..., ::-1] if self.order == "BGR" else values
        moved = np.moveaxis(ordered, -1, -3)  # (..., C, H, W)
        pixels = np.empty(moved.shape, np.float32)
        self._normalise(moved, pixels)
        return pixels

    def visible_image(self, source: Source, resample: Resample | None = None) -> Image.Image:
        """What the network sees of an image: resized and cropped or padded, before normalisation.

        Of other bands than grey and colour, the first three or the first, from black at 0 to white at the range.
        """
        if not self.is_8bit:
            return self._drawn(self.array(source))
        mode: Mode = "L" if self.channels == 1 else "RGB"
        if self.scaled_decoding:
            return self._framed(decode_scaled(source, self._ample, mode), self._bars(), resample)
        return self._frame(decode(source, mode), self._bars(), resample)

    def full_image(self, source: Source) -> Image.Image:
        """The same of the whole image in its own size: what `box` is a part of."""
        return decode(source) if self.is_8bit else self._drawn(decode_bands(source, self.channels, self.range))

    def _drawn(self, values: Array) -> Image.Image:
        """Numbers (H, W, C) in the units of the file as an 8-bit image."""
        seen = np.asarray(values[:, :, : 3 if self.channels >= 3 else 1], np.float32)
        shown = np.clip(np.rint(seen * np.float32(255 / self.range)), 0, 255).astype(np.uint8)
        return Image.fromarray(shown if shown.shape[2] == 3 else shown[:, :, 0])

    def array(self, source: Source) -> Pixels:
        """The same as numbers, every band of it in the units of the file: float32 (H, W, C)."""
        return self._seen(source).astype(np.float32, copy=False)

    def _seen(self, source: Source, resample: Resample | None = None) -> Array:
        """What the network sees, (H, W, C): 8-bit values of an ordinary image, otherwise float32."""
        if self.is_8bit:
            values = np.asarray(self.visible_image(source, resample))
            return values if values.ndim == 3 else values[:, :, None]
        bands = decode_bands(source, self.channels, self.range)
        seen = np.empty((*self.size, self.channels), np.float32)
        for band_number, colour in enumerate(self._bars()):
            band = Image.fromarray(np.ascontiguousarray(bands[:, :, band_number], np.float32))
            seen[:, :, band_number] = np.asarray(self._frame(band, (colour,)))
        if bands.dtype.kind == "u":  # no kernel leaves what such numbers can be
            np.clip(seen, 0, np.iinfo(bands.dtype).max, out=seen)
        return seen

    def _ample(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) that an image of this size should be decoded at, or larger, to be resized well."""
        tall, wide = self._resized(height, width)
        return _AMPLE * tall, _AMPLE * wide

    def _frame(self, image: Image.Image, bars: tuple[float, ...], resample: Resample | None = None) -> Image.Image:
        """An image of any mode, resized and cropped or padded to size."""
        size = image.size
        return self._framed(Scaled(image, size[1], size[0], (0, 0, *size)), bars, resample)

    def _framed(self, scaled: Scaled, bars: tuple[float, ...], resample: Resample | None) -> Image.Image:
        """The same of an image that may have been decoded at a part of its size."""
        image = scaled.image
        height, width = self.size
        tall, wide = self._resized(scaled.height, scaled.width)
        top, left = _offset(tall, height), _offset(wide, width)
        frame = (left, top, left + width, top + height)
        kept = (max(left, 0), max(top, 0), min(left + width, wide), min(top + height, tall))
        if wide * tall > _WASTE * (kept[2] - kept[0]) * (kept[3] - kept[1]):
            resample = resize_crop_only
        elif resample is None:  # of a scaled image no bit is sacred
            resample = resize_then_crop if image.size == (scaled.width, scaled.height) else resize_crop_only
        part = self._resample(image, scaled.area, (wide, tall), kept, resample)
        if part.size == (width, height):
            return part
        canvas = Image.new(image.mode, (width, height), bars if len(bars) > 1 else bars[0])
        canvas.paste(part, (kept[0] - frame[0], kept[1] - frame[1]))
        return canvas

    def with_bars(self, seen: Array, height: int, width: int) -> Array:
        """What a Preprocess of another mean saw of an image of this size, (H, W, C), in bars of this one's mean."""
        tall, wide = self._resized(height, width)
        rows, columns = (
            slice(max(-_offset(length, side), 0), max(-_offset(length, side), 0) + min(length, side))
            for length, side in ((tall, self.size[0]), (wide, self.size[1]))
        )
        framed = np.empty_like(seen)
        framed[:] = self._bars()
        framed[rows, columns] = seen[rows, columns]
        return framed  # (H, W, C)

    def box(self, height: int, width: int) -> tuple[float, float, float, float]:
        """What the network sees of an image of this size: left, top, right, bottom, in the image's own pixels.

        A padded frame reaches beyond the image.
        """
        tall, wide = self._resized(height, width)
        top, left = _offset(tall, self.size[0]), _offset(wide, self.size[1])
        across, down = width / wide, height / tall
        return left * across, top * down, (left + self.size[1]) * across, (top + self.size[0]) * down

    def to_dict(self) -> dict[str, Any]:
        """Every field, ready for JSON; a range of 255 and full decoding, which older files lack, are left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.range == _BYTE:
            del values["range"]
        if not self.scaled_decoding:
            del values["scaled_decoding"]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocess:
        """The Preprocess that to_dict wrote; missing fields take their defaults, unknown ones are refused."""
        return cls(**check_fields(cls, values))

    def _bars(self) -> tuple[float, ...]:
        """The colour around an image that leaves the frame open: the mean, which networks see as zero."""
        if self.resize != "pad":
            return (0,) * self.channels  # black, as torchvision's CenterCrop
        colour = tuple(self.range * mean for mean in self.mean)
        if self.is_8bit:
            colour = tuple(min(max(round(value), 0), 255) for value in colour)
        return colour[::-1] if self.order == "BGR" else colour

    def scaled(self) -> tuple[int, int]:
        """The size before the crop; rounded down, as timm does: 224 / 0.9 is 248."""
        height, width = self.size
        return math.floor(height / self.crop), math.floor(width / self.crop)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the image after the resize, before the crop."""
        tall, wide = self.scaled()
        if self.resize == "squash":
            return tall, wide
        if self.resize == "pad":
            ratio = max(height / tall, width / wide)
        elif tall == wide:
            # torchvision's Resize cuts the long side off to an integer; published scores depend on it.
            short = min(height, width)
            return int(tall * height / short), int(tall * width / short)
        else:
            ratio = min(height / tall, width / wide)
        return max(1, round(height / ratio)), max(1, round(width / ratio))

    def _resample(
        self, image: Image.Image, area: Area, size: tuple[int, int], box: Box, resample: Resample
    ) -> Image.Image:
        """The part inside box (left, top, right, bottom) of an area of the image resized to size (width, height)."""
        same: Area = (0, 0, *size)
        if area == same:
            return image if box == (0, 0, *size) else image.crop(box)
        if not self.antialias and self.interpolation in ("bilinear", "bicubic"):
            return _resample_sharp(image, size, box, self.interpolation)
        return resample(image, area, size, box, self.interpolation)

    def _write(self, source: Source, target: Pixels) -> None:
        """Normalise what the network sees into the target (C, H, W)."""
        values = self._seen(source).transpose(2, 0, 1)  # (C, H, W)
        self._normalise(values[::-1] if self.order == "BGR" else values, target)

    def _normalise(self, values: Array, target: Pixels) -> None:
        """Values (..., C, H, W) * scale + shift into the target, in two passes."""
        std = np.array(self.std).reshape(-1, 1, 1)
        mean = np.array(self.mean).reshape(-1, 1, 1)
        np.multiply(values, (1 / (self.range * std)).astype(np.float32), out=target)
        np.subtract(target, (mean / std).astype(np.float32), out=target)


def check_image_list(sources: object) -> None:
    """Refuse one image where a list is wanted; an array (H, W, C) is one, (n, H, W, C) are several."""
    if _single(sources) or not isinstance(sources, Sequence | np.ndarray):
        raise InputError(f"expected a list of images, got {describe(sources)}: put it in a list")


def check_image_stream(sources: object) -> None:
    """Refuse one image where any number of them is wanted, from a list, a generator or another iterable."""
    if _single(sources) or not isinstance(sources, Iterable) or isinstance(sources, Mapping):
        raise InputError(f"expected images one after another, got {describe(sources)}: put it in a list")


def _single(sources: object) -> bool:
    if isinstance(sources, np.ndarray):
        return sources.ndim < 3 or (sources.ndim == 3 and sources.shape[2] <= 4)
    return isinstance(sources, str | bytes | bytearray | memoryview | os.PathLike | Image.Image)


def _offset(length: int, frame: int) -> int:
    """Where a centred frame starts, below zero on a smaller image; halves as torchvision rounds them."""
    return round((length - frame) / 2) if length >= frame else -((frame - length) // 2)


def _resample_sharp(image: Image.Image, size: tuple[int, int], box: Box, interpolation: str) -> Image.Image:
    """Resize without antialiasing, as torch's interpolate does by default: the kernel never widens."""
    values: Array = np.asarray(image)
    rows, row_weights = _taps(image.height, size[1], box[1], box[3], interpolation)
    columns, column_weights = _taps(image.width, size[0], box[0], box[2], interpolation)
    spare = (1,) * (values.ndim - 1)
    values = sum(
        values[row].astype(np.float32) * weight.reshape(-1, *spare)
        for row, weight in zip(rows, row_weights, strict=True)
    )
    values = sum(
        values[:, column] * weight.reshape(1, -1, *spare[1:])
        for column, weight in zip(columns, column_weights, strict=True)
    )
    if image.mode == "F":
        return Image.fromarray(values)
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))


def _taps(length: int, scaled: int, start: int, stop: int, interpolation: str) -> tuple[Array, Pixels]:
    """Source positions and weights, each (taps, stop - start), of the output samples start to stop."""
    centre = (np.arange(start, stop) + 0.5) * (length / scaled) - 0.5
    reach = 2 if interpolation == "bicubic" else 1
    first = np.floor(centre).astype(np.int64) - (reach - 1)
    where = first + np.arange(2 * reach)[:, None]
    away = np.abs(where - centre)
    if interpolation == "bicubic":
        a = -0.75  # torch's constant without antialiasing; with it, torch and Pillow use -0.5
        near = ((a + 2) * away - (a + 3)) * away**2 + 1
        far = ((away - 5) * away + 8) * away * a - 4 * a
        weights = np.where(away <= 1, near, far)
    else:
        weights = 1 - away
    return np.clip(where, 0, length - 1), weights.astype(np.float32)


def _per_channel(name: str, value: object, channels: int) -> tuple[float, ...]:
    """One number a channel; a single one serves for all."""
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        value = (value,) * channels
    if len(value) != channels:
        raise ConfigError(f"{name} needs {channels} numbers, one a channel, got {len(value)}: {value!r}")
    return tuple(check_number(name, each, -1e6, 1e6) for each in value)
