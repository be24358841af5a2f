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
from typing import NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError, features

from vitrail.errors import ImageError, InputError
from vitrail.images.bands import Bands, Raster, check_channels, check_kind, check_values, of_array, of_image
from vitrail.images.colours import Mode, flatten, from_array
from vitrail.images.file_bytes import FileBytes
from vitrail.images.headers import check_metadata, check_pages, guess_format, orientation, webp_size
from vitrail.images.heif import coded_size, is_heif, open_heif
from vitrail.images.npy import NPY_MAGIC, read_npy
from vitrail.images.tiff import of_tiff
from vitrail.types import Array, Source

# Pillow's names. MPO (two JPEGs in one file, from phones) opens as JPEG; PPM covers PGM, PBM, PFM. HEIC: heif.py.
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
            return flatten(_turn(source, source.getexif().get(0x0112, 1)), mode, name)
        if isinstance(source, np.ndarray):
            return flatten(from_array(source, name), mode, name)
        data = _read(source, name, limits)
        if data.startswith(NPY_MAGIC):
            converted = from_array(read_npy(data, name), name)
            check_size(converted.size, name, limits)
            return flatten(converted, mode, name)
        with _open(data, name, limits) as image:
            image.load()
            return _upright(image, _orientation(image), mode, name)


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
        turn = _orientation(image)
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
        upright = _upright(image, turn, mode, name)
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
                page = _upright(image.copy(), _orientation(image), "RGB", part)
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
        if data.startswith(NPY_MAGIC):
            height, width = read_npy(data, name).shape[:2]
            return height, width
        with _open(data, name, limits) as image:  # of a TIFF, Pillow gives the sizes upright
            wide, tall = image.size
            return (wide, tall) if _orientation(image) in _LYING else (tall, wide)


def _raster(source: Source, name: str, limits: Limits) -> Raster:
    """The image with its header read and its size checked, nothing decoded yet."""
    if isinstance(source, Image.Image):
        return of_image(source, name, lambda: source.getexif().get(0x0112, 1))
    if isinstance(source, np.ndarray):
        return of_array(source, name)
    data = _read(source, name, limits)
    raster: Raster | None = None
    if data.startswith(NPY_MAGIC):
        raster = of_array(read_npy(data, name), name)
    elif data[:4] in _TIFF:
        raster = of_tiff(data, name)
    if raster is None:
        image = _open(data, name, limits)
        raster = of_image(image, name, lambda: _orientation(image), lambda: _open(data, name, limits))
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
    if isinstance(source, FileBytes):
        return describe(source.name)
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


def read_file(source: str | os.PathLike[str] | FileBytes, limits: Limits = DEFAULT_LIMITS) -> FileBytes:
    """The bytes of an image's file, read once for all that is done with them; nothing of them is looked at."""
    name = describe(source)
    return source if isinstance(source, FileBytes) else FileBytes(_read(source, name, limits), os.fspath(source))


def _read(source: object, name: str, limits: Limits) -> bytes:
    """The bytes of a file, never opening what could block or never end."""
    if isinstance(source, bytes | bytearray | memoryview):
        data = source if isinstance(source, bytes) else bytes(source)
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
    if is_heif(data):
        return _open_heif(data, name, limits)
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


def _open_heif(data: bytes, name: str, limits: Limits) -> ImageFile.ImageFile:
    image = open_heif(data, name)
    for size in (image.size, coded_size(image)):
        check_size(size, name, limits)
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


def _orientation(image: Image.Image) -> int:
    """What the EXIF block of a file asks for. TIFF and HEIC files are turned by their libraries as they load."""
    return 1 if image.format == "HEIF" else orientation(image.info.get("exif", b""))


def _upright(image: Image.Image, turn: int, mode: Mode, name: str) -> Image.Image:
    """The image of a file, turned as it asks, as 8-bit RGB or L."""
    return flatten(_turn(_without_orientation(image), turn), mode, name)


def _turn(image: Image.Image, orientation: int) -> Image.Image:
    """The image turned upright, as its EXIF orientation asks; what asked for it is gone, so that none turns twice."""
    turn = _UPRIGHT.get(orientation)
    return image if turn is None else _without_orientation(image.transpose(turn))


def _without_orientation(image: Image.Image) -> Image.Image:
    """The same image, of which nothing says any more that it should be turned."""
    for key in _SAYS_TURN:
        image.info.pop(key, None)
    return image
