"""Images in their own numbers: a header says how many bands of which kind, and only then are they read (H, W, C).

Bytes, Pillow's images and arrays come in; uint8, uint16 or float32 goes out, nothing scaled and nothing lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from PIL import Image, ImageFile

from vitrail.errors import ImageError
from vitrail.types import Array

Kind: TypeAlias = Literal["uint8", "uint16", "float32"]

MOST_BANDS: Final = 64
BEYOND: Final = 100  # times the range: no image is that bright, so the range must be another

_KINDS: dict[str, Kind] = {
    "u1": "uint8",
    **dict.fromkeys(("u2", "i2", "i4"), "uint16"),
    **dict.fromkeys(("f2", "f4", "f8"), "float32"),
}
# What Pillow keeps of a file; a transparent colour makes a band of alpha. Any other mode is a way to write colour.
_PLAIN = {"1": "L", "L": "L", "LA": "LA", "RGB": "RGB", "RGBA": "RGBA", "RGBX": "RGBX", "P": "RGB"}
_CLEAR = {"1": "LA", "L": "LA", "RGB": "RGBA", "P": "RGBA"}
# Pillow keeps the high bytes of such files. Read as if the bytes stood the other way round, they give the low ones.
_LOW_BYTES = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L"}


class Bands(NamedTuple):
    """What the header of an image says, before anything is decoded or turned upright."""

    height: int
    width: int
    channels: int
    kind: Kind


class Raster(NamedTuple):
    """An image that is not decoded yet."""

    bands: Bands
    read: Callable[[], Array]  # (H, W, C), upright


def check_channels(bands: Bands, channels: int, name: str) -> None:
    """Refuse an image of another number of bands."""
    if bands.channels != channels:
        hint = f"choose {channels} of them, or set Preprocess(channels={bands.channels})"
        if bands.height == channels:
            hint = "channels come last, use array.transpose(1, 2, 0)"
        raise ImageError(f"{name}: expected {channels} bands, got {bands.channels}: {hint}")


def check_kind(kind: Kind, full: float, name: str) -> None:
    """Refuse numbers of a kind that does not go with the range, before they are seen as black or far too bright."""
    right, told = {
        "uint8": (full == 255, "8-bit values go with range=255: convert the image to 16 bits or float"),
        "uint16": (255 < full <= 65535, "16-bit values go with a range above 255, as in Preprocess(range=65535)"),
        "float32": (full != 255, "say which value counts as 1.0, as in Preprocess(range=1.0); 255 is for 8 bits"),
    }[kind]
    if not right:
        raise ImageError(f"{name}: {kind} values, and range={full:g}: {told}")


def check_values(values: Array, full: float, name: str) -> None:
    """Refuse numbers that the range cannot mean: 0 to 255 where 1.0 is full, 0 to 1 where 10000 is."""
    low, high = float(values.min()), float(values.max())
    largest = max(-low, high)
    if largest > BEYOND * full or (values.dtype.kind == "f" and full > 255 and 0 < largest <= 1):
        raise ImageError(
            f"{name}: values {low:g} to {high:g}, and range={full:g} counts as 1.0: set the range that belongs "
            "to them, or replace what marks missing data"
        )


# ---- arrays ------------------------------------------------------------------------------------------------------


def of_array(array: Array, name: str) -> Raster:
    """An array (H, W) or (H, W, C) as it is."""
    if array.ndim not in (2, 3):
        raise ImageError(f"{name}: expected (H, W) or (H, W, C)")
    if array.size == 0:
        raise ImageError(f"{name}: has no pixels")
    bands = array[:, :, None] if array.ndim == 2 else array
    height, width, channels = bands.shape
    if channels > MOST_BANDS:
        first = array.shape[0] <= MOST_BANDS
        hint = ": channels come last, use array.transpose(1, 2, 0)" if first else ""
        raise ImageError(f"{name}: expected at most {MOST_BANDS} bands, got {channels}{hint}")
    return Raster(Bands(height, width, channels, kind_of(array.dtype, name)), lambda: convert_kind(bands, name))


def kind_of(dtype: np.dtype[Any], name: str) -> Kind:
    """The kind that numbers of a type are read as."""
    kind = _KINDS.get(f"{dtype.kind}{dtype.itemsize}")
    if kind is None:
        raise ImageError(f"{name}: expected uint8, uint16 or float values, got {dtype}: use array.astype('uint16')")
    return kind


def convert_kind(values: Array, name: str) -> Array:
    """Numbers of any type as uint8, uint16 or float32; refused where one of them would change."""
    kind = kind_of(values.dtype, name)
    if values.dtype.kind == "i":
        low, high = values.min(), values.max()
        if low < 0 or high > 65535:
            raise ImageError(f"{name}: values {low} to {high}, expected 0 to 65535: scale it, or save it as float32")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is told of
        values = values.astype(kind, copy=False)
    if kind == "float32" and not np.isfinite(values).all():
        raise ImageError(f"{name}: holds NaN or infinite values: fill them in first, as with numpy.nan_to_num")
    return values


# ---- Pillow's images ---------------------------------------------------------------------------------------------


def of_image(
    image: Image.Image,
    name: str,
    turn: Callable[[], int],  # its orientation, which some files tell after their pixels
    again: Callable[[], ImageFile.ImageFile] | None = None,  # opens the file once more, for its low bytes
) -> Raster:
    """An image that Pillow opened, in its own bands."""
    raw = _raw_mode(image) if again is not None else ""
    if raw == "LA;16B":
        raise ImageError(f"{name}: 16-bit grey with alpha, which Pillow cuts to 8: save it without alpha, or as .npy")
    kind: Kind = "uint16" if raw in _LOW_BYTES or image.mode[:1] == "I" else "uint8"
    if image.mode[:1] in ("I", "F"):
        target, channels = image.mode, 1
        kind = "float32" if image.mode == "F" else kind
    else:
        clear = "transparency" in image.info and kind == "uint8"
        target = (_CLEAR if clear else _PLAIN).get(image.mode, "RGB")
        channels = len(target)

    def read() -> Array:
        values = np.asarray(image if image.mode == target else image.convert(target))
        if raw in _LOW_BYTES and again is not None:
            values = values.astype(np.uint16) << 8 | _low_bytes(again())
        bands = values.reshape(*values.shape[:2], -1)  # (H, W, C)
        return upright(convert_kind(bands, name), turn())

    return Raster(Bands(image.height, image.width, channels, kind), read)


def _raw_mode(image: Image.Image) -> str:
    """How the samples stand in the file, if Pillow tells it in a word, as it does for PNG."""
    tiles = getattr(image, "tile", None) or [None]
    return str(getattr(tiles[0], "args", ""))


def _low_bytes(image: ImageFile.ImageFile) -> Array:
    tile = image.tile[0]
    image.tile = [tile._replace(args=_LOW_BYTES[cast(str, tile.args)])]
    return np.asarray(image)


def upright(values: Array, orientation: int) -> Array:
    """(H, W, C) turned as its EXIF orientation asks, without a copy."""
    if orientation >= 5:
        values = values.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        values = values[::-1]
    if orientation in (2, 3, 6, 7):
        values = values[:, ::-1]
    return values
