"""An array, or a PIL image of any mode -> an 8-bit RGB or grey PIL image: the rules of docs/images.md."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from PIL import Image

from vitrail.errors import ImageError
from vitrail.types import Array

Mode: TypeAlias = Literal["RGB", "L"]

BACKGROUND = 255  # white, as a browser shows it: most transparent images were drawn for a white page


def from_array(array: Array, name: str) -> Image.Image:
    """Arrays are (H, W) or (H, W, 1, 3 or 4); uint8, uint16 (0 to 65535), bool or float (0 to 1)."""
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        channels_first = array.ndim == 3 and array.shape[0] in (1, 3, 4)
        hint = ": channels come last, use array.transpose(1, 2, 0)" if channels_first else ""
        raise ImageError(f"{name}: expected (H, W), (H, W, 1), (H, W, 3) or (H, W, 4){hint}")
    if array.size == 0:
        raise ImageError(f"{name}: has no pixels")
    return Image.fromarray(np.ascontiguousarray(_to_8_bit(array, name)))


def _to_8_bit(array: Array, name: str) -> Array:
    """Every kind of number on the scale 0 to 255, rounded; out of range is an error, never a clip."""
    kind = array.dtype
    if kind == np.uint8:
        return array
    if kind == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if kind.kind == "i" and kind.itemsize == 4:  # Pillow's mode I, which holds 16-bit images
        low, high = array.min(), array.max()
        if low < 0 or high > 65535:
            raise ImageError(f"{name}: values {low} to {high}, expected 0 to 65535: scale it to 16 bits")
        array = array.astype(np.uint16)
        kind = array.dtype
    if kind.kind == "u" and kind.itemsize == 2:
        return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if kind.kind == "f":
        low, high = array.min(), array.max()
        if not (low >= 0 and high <= 1):  # also true of NaN
            raise ImageError(f"{name}: values {low:g} to {high:g}, expected 0 to 1: divide 8-bit values by 255")
        return (array.astype(np.float32) * np.float32(255) + np.float32(0.5)).astype(np.uint8)
    raise ImageError(f"{name}: expected uint8, uint16, bool or float values: use array.astype('uint8')")


def flatten(image: Image.Image, mode: Mode, name: str) -> Image.Image:
    """Any of Pillow's modes as RGB or L, transparency laid on the background: the table in docs/images.md."""
    if min(image.size) < 1:
        raise ImageError(f"{name}: has no pixels")
    key = image.info.get("transparency")
    if image.mode == mode and key is None:
        return image
    if image.mode.startswith(("I", "F")):
        numbers = np.asarray(image)
        grey = _to_8_bit(numbers, name)
        if isinstance(key, int):
            grey = np.where(numbers == key, np.uint8(BACKGROUND), grey)
        return _recolour(Image.fromarray(grey), mode)
    if image.mode == "LAB":
        from PIL import ImageCms  # littleCMS is loaded only for these rare files

        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        changed = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
        return _recolour(changed if changed is not None else image, mode)
    if image.mode in ("RGBa", "La"):  # colours already multiplied by alpha: only the background is missing
        bands = np.asarray(image).astype(np.uint16)
        mixed = bands[:, :, :-1] + (255 - bands[:, :, -1:]) * BACKGROUND // 255
        colours = np.minimum(mixed, 255).astype(np.uint8)
        return _recolour(Image.fromarray(colours if image.mode == "RGBa" else colours[:, :, 0]), mode)
    if image.mode in ("RGBA", "LA", "PA") or key is not None:
        return _recolour(_on_background(image, key), mode)
    return _recolour(image, mode)


def _on_background(image: Image.Image, key: object) -> Image.Image:
    """Transparent pixels, by alpha or by colour key, take the background."""
    if isinstance(key, tuple) and max(key) > 255:  # a 16-bit key, where Pillow kept high bytes only
        image = image.copy()
        image.info["transparency"] = tuple(part >> 8 for part in key)
    clear = image.convert("RGBA")
    flat = Image.new("RGB", image.size, (BACKGROUND,) * 3)
    flat.paste(clear.convert("RGB"), mask=clear.getchannel("A"))
    return flat


def _recolour(image: Image.Image, mode: Mode) -> Image.Image:
    if image.mode == mode:
        return image
    # YCbCr, CMYK, HSV and the like reach grey by way of RGB, so that both modes agree on the colour.
    if mode == "L" and image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    return image.convert(mode)
