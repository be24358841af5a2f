"""A file, bytes, PIL image or array in; an upright 8-bit RGB or grey PIL image out, or one ImageError.

Or, for images of other bands and ranges, their own numbers (H, W, C); or a JPEG at a part of its size.
"""

from __future__ import annotations

import io
import os
import stat
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError, features

from vitrail.errors import ImageError, InputError
from vitrail.images.bands import (
    Bands,
    Raster,
    check_channels,
    check_kind,
    check_values,
    of_array,
    of_image,
)
from vitrail.images.headers import check_metadata, check_pages, guess_format, orientation, webp_size
from vitrail.images.npy import MAGIC as NUMPY
from vitrail.images.npy import read_npy
from vitrail.images.tiff import of_tiff
from vitrail.types import Array, Source

Mode: TypeAlias = Literal["RGB", "L"]

BACKGROUND = 255  # white, as a browser shows it: most transparent images were drawn for a white page
# Pillow's names. MPO (two JPEGs in one file, from phones) opens as JPEG; PPM covers PGM, PBM and PFM.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", *(("AVIF",) if features.check("avif") else ()))

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # and its form for large files
_JPEG = b"\xff\xd8"
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SAYS_TURN = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")  # Pillow's names of where it may stand
# Where turning upright exchanges the sides; where it brings the right end to the left, and the lower end to the top.
_LYING = (5, 6, 7, 8)
_FROM_RIGHT, _FROM_BELOW = (2, 3, 6, 7), (3, 4, 7, 8)


@dataclass(frozen=True)
class Limits:
    """What a file may ask for; read from its header, before anything is decoded."""

    pixels: int = 64_000_000  # phones make 50 Mpx, full-frame cameras 61; decoded, each takes 4 bytes
    side: int = 16_384
    aspect: float = 200.0  # long side / short side
    file_bytes: int = 256 * 2**20  # an uncompressed image of the largest size
    metadata_bytes: int = 32 * 2**20

    def __post_init__(self) -> None:
        for field in ("pixels", "side", "aspect", "file_bytes", "metadata_bytes"):
            if not getattr(self, field) > 0:
                raise InputError(f"Limits.{field} must be positive, got {getattr(self, field)!r}")


DEFAULT_LIMITS = Limits()


def decode(source: Source, mode: Mode = "RGB", limits: Limits = DEFAULT_LIMITS, name: str = "") -> Image.Image:
    """The image, upright, as 8-bit "RGB" or "L"; limits hold for files and bytes; messages call it by the name.

    An image that already is all that comes back as the same object.
    """
    if mode not in ("RGB", "L"):
        raise InputError(f"mode must be 'RGB' or 'L', got {mode!r}")
    name = name or describe(source)
    with _only_image_errors(name):
        if isinstance(source, Image.Image):
            source.load()
            return _flatten(_turn(source, source.getexif().get(0x0112, 1)), mode)
        if isinstance(source, np.ndarray):
            return _flatten(_from_array(source, name), mode)
        data = _read(source, name, limits)
        if data.startswith(NUMPY):
            converted = _from_array(read_npy(data, name), name)
            check_size(converted.size, name, limits)
            return _flatten(converted, mode)
        with _open(data, name, limits) as image:
            image.load()
            # TIFF files carry no such block: Pillow turns them itself as they load.
            turn = orientation(image.info.get("exif", b""))
            return _flatten(_turn(_without_orientation(image), turn), mode)


class Scaled(NamedTuple):
    """An image decoded at a part of its size, or at all of it."""

    image: Image.Image  # upright
    height: int  # of the image as the file has it, upright
    width: int
    area: tuple[float, float, float, float]  # left, top, right, bottom: where in the image the image lies


Needed: TypeAlias = Callable[[int, int], tuple[int, int]]  # (height, width) of an image -> the least that will do


def decode_scaled(source: Source, needed: Needed, mode: Mode = "RGB", limits: Limits = DEFAULT_LIMITS) -> Scaled:
    """The same, but the file or bytes of a JPEG only at the smallest of 1/1, 1/2, 1/4 and 1/8 that is large enough.

    A scaled JPEG is rounded up to whole pixels, so the image may end within the last row and column.
    """
    name = describe(source)
    if not isinstance(source, Image.Image | np.ndarray):
        with _only_image_errors(name):
            data = _read(source, name, limits)
            if data.startswith(_JPEG):
                return _scaled_jpeg(data, name, needed, mode, limits)
            source = data
    image = decode(source, mode, limits, name)
    return Scaled(image, image.height, image.width, (0, 0, image.width, image.height))


def _scaled_jpeg(data: bytes, name: str, needed: Needed, mode: Mode, limits: Limits) -> Scaled:
    with _open(data, name, limits) as image:
        turn = orientation(image.info.get("exif", b""))
        lying = turn in _LYING
        width, height = image.size
        if lying:
            wide, tall = needed(width, height)
        else:
            tall, wide = needed(height, width)
        drafted = image.draft(None, (wide, tall))  # the size alone: a mode would leave the colours to libjpeg
        right, bottom = image.size if drafted is None else drafted[1][2:]
        image.load()
        missing = image.width - right, image.height - bottom  # of the last column and row
        upright = _flatten(_turn(_without_orientation(image), turn), mode)
    across, down = (bottom, right) if lying else (right, bottom)
    left, top = missing[::-1] if lying else missing
    left, top = left * (turn in _FROM_RIGHT), top * (turn in _FROM_BELOW)
    if lying:
        height, width = width, height
    return Scaled(upright, height, width, (left, top, left + across, top + down))


def decode_pages(
    data: bytes, name: str, every: int = 1, limits: Limits = DEFAULT_LIMITS
) -> Generator[Image.Image, None, None]:
    """Every frame or page of the bytes of an animation or a paged image, or every Nth; upright and "RGB"."""
    with _only_image_errors(name):
        data = _read(data, name, limits)
        check_pages(data, name, limits.metadata_bytes)
        image = _open(data, name, limits)
        count = getattr(image, "n_frames", 1)
    with image:
        for number in range(0, count, every):
            part = f"{name}, frame {number}"
            with _only_image_errors(part):
                image.seek(number)
                check_size(image.size, part, limits)
                image.load()
                # A copy: the next frame is drawn over this one.
                page = _flatten(
                    _turn(_without_orientation(image.copy()), orientation(image.info.get("exif", b""))), "RGB"
                )
            yield page


def decode_bands(
    source: Source, channels: int | None = None, range: float | None = None, limits: Limits = DEFAULT_LIMITS
) -> Array:
    """The image's own numbers, upright, (H, W, C) of uint8, uint16 or float32.

    Given, another number of bands is refused, and so are numbers of which `range` cannot be what counts as 1.0.
    """
    name = describe(source)
    with _only_image_errors(name):
        raster = _raster(source, name, limits)
        if channels is not None:
            check_channels(raster.bands, channels, name)
        if range is not None:
            check_kind(raster.bands.kind, range, name)
        values = raster.read()
        if range is not None:
            check_values(values, range, name)
        return values


def describe_bands(source: Source, limits: Limits = DEFAULT_LIMITS) -> Bands:
    """Height, width, bands and kind of number of an image, from its header alone."""
    name = describe(source)
    with _only_image_errors(name):
        return _raster(source, name, limits).bands


def upright_size(source: Source, limits: Limits = DEFAULT_LIMITS) -> tuple[int, int]:
    """(height, width) of an image as `decode` gives it, from its header alone."""
    name = describe(source)
    with _only_image_errors(name):
        if isinstance(source, Image.Image | np.ndarray):
            bands = _raster(source, name, limits).bands
            return bands.height, bands.width
        data = _read(source, name, limits)
        if data.startswith(NUMPY):
            height, width = read_npy(data, name).shape[:2]
            return height, width
        with _open(data, name, limits) as image:  # of a TIFF, Pillow gives the sizes upright
            wide, tall = image.size
            return (wide, tall) if orientation(image.info.get("exif", b"")) in _LYING else (tall, wide)


def _raster(source: Source, name: str, limits: Limits) -> Raster:
    """The image with its header read and its size checked, nothing decoded yet."""
    if isinstance(source, Image.Image):
        return of_image(source, name, lambda: source.getexif().get(0x0112, 1))
    if isinstance(source, np.ndarray):
        return of_array(source, name)
    data = _read(source, name, limits)
    raster: Raster | None = None
    if data.startswith(NUMPY):
        raster = of_array(read_npy(data, name), name)
    elif data[:4] in _TIFF:
        raster = of_tiff(data, name)
    if raster is None:
        image = _open(data, name, limits)
        raster = of_image(
            image, name, lambda: orientation(image.info.get("exif", b"")), lambda: _open(data, name, limits)
        )
    height, width, channels, kind = raster.bands
    check_size((width, height), name, limits)
    needed, allowed = height * width * channels * np.dtype(kind).itemsize, 4 * limits.pixels
    if needed > allowed:
        raise ImageError(
            f"{name}: refused, {width}x{height} in {channels} bands takes {needed:,} bytes, over the limit of "
            f"{allowed:,}: cut it into tiles, or raise Limits.pixels"
        )
    return raster


@contextmanager
def _only_image_errors(name: str) -> Iterator[None]:
    """Decoders meet damaged data in many libraries, so anything may be raised: SyntaxError, struct.error,
    RecursionError, ZeroDivisionError, ... All of it means the same to the caller.
    """
    try:
        with _pillow_is_quiet():
            yield
    except (ImageError, InputError):
        raise
    except MemoryError as error:
        raise ImageError(f"{name}: not enough memory to decode it: make the image smaller") from error
    except Exception as error:
        reason = str(error) if str(error).isprintable() and str(error) else type(error).__name__
        raise ImageError(f"{name}: damaged or cut short ({reason}): copy or download it again") from error


def describe(source: object) -> str:
    """A printable name of a source, for messages."""
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        text = os.fsdecode(name) if isinstance(name, bytes) else name
        # File names may hold newlines and broken encodings; a message must not.
        return text if text.isprintable() and text else repr(text)
    if isinstance(source, bytes | bytearray | memoryview):
        return f"image of {len(source):,} bytes"
    if isinstance(source, np.ndarray):
        return f"{source.dtype} array of shape {source.shape}"
    if isinstance(source, Image.Image):
        return f"{source.mode} image of {source.width}x{source.height}"
    return f"{type(source).__name__} object"


class _Quiet:
    """Keeps Pillow's warnings in while any thread decodes: the filters belong to the whole process."""

    lock = threading.Lock()
    inside = 0
    saved: warnings.catch_warnings[None] | None = None


@contextmanager
def _pillow_is_quiet() -> Iterator[None]:
    with _Quiet.lock:
        _Quiet.inside += 1
        if _Quiet.saved is None:
            _Quiet.saved = warnings.catch_warnings()
            _Quiet.saved.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.")
    try:
        yield
    finally:
        with _Quiet.lock:
            _Quiet.inside -= 1
            if _Quiet.inside == 0 and _Quiet.saved is not None:
                _Quiet.saved.__exit__(None, None, None)
                _Quiet.saved = None


def _read(source: object, name: str, limits: Limits) -> bytes:
    """The bytes of a file, never opening what could block or never end."""
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
    elif isinstance(source, str | os.PathLike):
        data = _read_file(Path(source), name, limits)
    else:
        raise InputError(f"expected a path, bytes, PIL image or numpy array, got {name}")
    if not data:
        raise ImageError(f"{name}: empty, 0 bytes: copy or download it again")
    if len(data) > limits.file_bytes:
        raise ImageError(
            f"{name}: refused, larger than {limits.file_bytes:,} bytes: shrink it, or raise Limits.file_bytes"
        )
    return data


def _read_file(path: Path, name: str, limits: Limits) -> bytes:
    if str(path).startswith(("http:/", "https:/")):
        raise ImageError(f"{name}: a web address: download the image first")
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            raise ImageError(f"{name}: a folder, expected an image")
        if not stat.S_ISREG(kind):
            raise ImageError(f"{name}: a pipe, socket or device, expected an ordinary file")
        with open(path, "rb") as file:
            return file.read(limits.file_bytes + 1)
    except ImageError:  # a ValueError too
        raise
    except FileNotFoundError as error:
        raise ImageError(f"{name}: no such file") from error
    except PermissionError as error:
        raise ImageError(f"{name}: may not be read: check its permissions") from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise ImageError(f"{name}: cannot be read ({error})") from error


def _open(data: bytes, name: str, limits: Limits) -> ImageFile.ImageFile:
    """The image with its header read and its size checked, nothing decoded yet."""
    check_metadata(data, name, limits.metadata_bytes)
    canvas = webp_size(data)
    if canvas is not None:
        check_size(canvas, name, limits)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ImageError(f"{name}: not an image that can be read: {guess_format(data)}") from error
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name}: refused, it claims more pixels than Pillow allows: make it smaller") from error
    check_size(image.size, name, limits)
    return image


def check_size(size: tuple[int, int], name: str, limits: Limits) -> None:
    """Refuse an image of (width, height) beyond the limits."""
    width, height = size
    if min(size) < 1:
        raise ImageError(f"{name}: {width}x{height} has no pixels")
    for value, allowed, field in (
        (width * height, limits.pixels, "pixels"),
        (max(size), limits.side, "side"),
        (max(size) / min(size), limits.aspect, "aspect"),
    ):
        if value > allowed:
            raise ImageError(
                f"{name}: refused, {width}x{height} is over the limit of {allowed:,} ({field}): "
                f"make it smaller, or raise Limits.{field}"
            )


def _turn(image: Image.Image, orientation: int) -> Image.Image:
    """The image turned upright, as its EXIF orientation asks; what asked for it is gone, so that none turns twice."""
    turn = _UPRIGHT.get(orientation)
    return image if turn is None else _without_orientation(image.transpose(turn))


def _without_orientation(image: Image.Image) -> Image.Image:
    """The same image, of which nothing says any more that it should be turned."""
    for key in _SAYS_TURN:
        image.info.pop(key, None)
    return image


def _from_array(array: Array, name: str) -> Image.Image:
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


def _flatten(image: Image.Image, mode: Mode) -> Image.Image:
    """Any of Pillow's modes as RGB or L, transparency laid on the background: the table in docs/images.md."""
    if min(image.size) < 1:
        raise ImageError(f"{describe(image)}: has no pixels")
    key = image.info.get("transparency")
    if image.mode == mode and key is None:
        return image
    if image.mode.startswith(("I", "F")):
        name = describe(image)
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
