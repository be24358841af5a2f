"""Images -> fingerprints: size, a digest of the pixels, a 64-bit hash that survives re-encoding, and a tiny copy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from PIL import Image

from vitrail.auditing.flatness import Flatness, measure_flatness
from vitrail.checks import check_int
from vitrail.data.image_scan import own_numbers
from vitrail.data.left_out import reason_of
from vitrail.errors import ImageError, InputError
from vitrail.images import Bands, decode, describe_bands
from vitrail.images.file_bytes import FileBytes
from vitrail.types import Array

SIDE: Final = 16  # of the tiny copy
ORDINARY: Final = "8-bit colour or grey"
_GRID: Final = 2 * SIDE  # the image is reduced to this many pixels a side before anything is measured
_AHEAD: Final = 64  # images in work at once: those decoded wait for the slowest

# The 64 cosine waves of lowest frequency, slowest first; the plain mean, which brightness moves, is left out.
_WAVES: Final = sorted(
    ((row, column) for row in range(10) for column in range(10) if row + column),
    key=lambda wave: (wave[0] ** 2 + wave[1] ** 2, wave),
)[:64]
_ROWS, _COLUMNS = (np.array(each) for each in zip(*_WAVES, strict=True))
_COSINES: Final = np.cos(np.pi / _GRID * np.outer(np.arange(10), np.arange(_GRID) + 0.5))  # (wave, place)
# Waves are dealt out to the four 16-bit parts of the hash in turn, so that no part holds the slow ones alone.
_POWERS: Final = np.uint64(1) << (np.arange(64) % 4 * 16 + np.arange(64) // 4).astype(np.uint64)
# A mirrored image has the same waves, those of odd count from left to right turned over.
MIRROR: Final = np.bitwise_or.reduce(_POWERS[_COLUMNS % 2 == 1])


class Fingerprints(NamedTuple):
    """Of n images, in order; where an image could not be read, its row means nothing."""

    sizes: Array  # (n, 2) int64: height and width
    digests: Array  # (n, 16) uint8: equal only if size and every pixel are
    hashes: Array  # (n,) uint64: signs of cosine waves
    copies: Array  # (n, 16, 16, 3) uint8
    flatness: Array  # (n, 2) float32: Flatness of each
    kinds: tuple[str, ...]  # "8-bit colour or grey", "13 bands of uint16"
    failed: dict[int, str]  # rows that could not be read, and why

    def select(self, rows: Array) -> Fingerprints:
        """Those of some images, in this order, all of which could be read."""
        kinds = tuple(self.kinds[row] for row in rows)
        sizes, digests, hashes, copies, flat, _, _ = self
        return Fingerprints(sizes[rows], digests[rows], hashes[rows], copies[rows], flat[rows], kinds, {})


def fingerprint(
    images: Sequence[Path | FileBytes] | Array, *, threads: int = 2, done: Callable[[int], None] | None = None
) -> Fingerprints:
    """Every image decoded once; `done` is told how many more are."""
    check_int("threads", threads, 1, 256, error=InputError)
    count = len(images)
    sizes, digests = np.zeros((count, 2), np.int64), np.zeros((count, 16), np.uint8)
    hashes, copies = np.zeros(count, np.uint64), np.zeros((count, SIDE, SIDE, 3), np.uint8)
    flat = np.zeros((count, 2), np.float32)
    kinds: list[str] = []
    failed: dict[int, str] = {}
    for row, reduced in enumerate(_reduced(images, threads)):
        if isinstance(reduced, str):
            failed[row] = reduced
            kinds.append("")
        else:
            sizes[row] = reduced.size
            digests[row] = np.frombuffer(reduced.digest, np.uint8)
            hashes[row] = wave_hash(reduced.pixels)
            # Halves always go up, so that a brighter copy is the same but brighter.
            copies[row] = (reduced.pixels.reshape(SIDE, 2, SIDE, 2, 3).sum(axis=(1, 3), dtype=np.uint16) + 2) // 4
            flat[row] = reduced.flatness
            kinds.append(reduced.kind)
        if done is not None:
            done(1)
    return Fingerprints(sizes, digests, hashes, copies, flat, tuple(kinds), failed)


def wave_hash(pixels: Array) -> np.uint64:
    """One bit a wave: whether the grey image (32, 32, 3) rises or falls with it."""
    grey = pixels @ np.array([0.299, 0.587, 0.114])  # (32, 32)
    waves = _COSINES @ (grey - grey.mean()) @ _COSINES.T
    return np.uint64(np.bitwise_or.reduce(_POWERS[waves[_ROWS, _COLUMNS] > 0], initial=np.uint64(0)))


def visible(source: Path | FileBytes | Array) -> Image.Image:
    """An image for people: of other kinds than 8-bit grey and colour, the first bands from darkest to brightest."""
    bands = _unusual(source)
    return decode(source) if bands is None else _stretched(own_numbers(source, bands))


class _Reduced(NamedTuple):
    size: tuple[int, int]
    digest: bytes
    kind: str
    pixels: Array  # (32, 32, 3) uint8
    flatness: Flatness


def _reduced(images: Sequence[Path | FileBytes] | Array, threads: int) -> Iterator[_Reduced | str]:
    """Each image reduced, or why it could not be read; in order, in threads but never far ahead."""
    pool = ThreadPoolExecutor(threads)
    try:
        for start in range(0, len(images), _AHEAD):
            yield from pool.map(_reduce, images[start : start + _AHEAD])
    finally:
        pool.shutdown(cancel_futures=True)


def _reduce(source: Path | FileBytes | Array) -> _Reduced | str:
    try:
        bands = _unusual(source)
        values = np.asarray(decode(source)) if bands is None else own_numbers(source, bands)
    except (ImageError, InputError) as error:
        return reason_of(error, source)
    mark = hashlib.blake2b(f"{values.shape} {values.dtype}".encode(), digest_size=16)
    mark.update(np.ascontiguousarray(values).data)
    image = Image.fromarray(values) if bands is None else _stretched(values)
    # A triangle filter as wide as the reduction: the result hardly depends on the size of the image.
    small = image.resize((_GRID, _GRID), Image.Resampling.BILINEAR)
    kind = ORDINARY if bands is None else f"{bands.channels} bands of {bands.kind}"
    return _Reduced(
        (image.height, image.width), mark.digest(), kind, np.asarray(small), measure_flatness(np.asarray(image))
    )


def _unusual(source: Path | FileBytes | Array) -> Bands | None:
    """The bands of an image that 8-bit colour cannot hold; None for all others, and for what nobody can read."""
    try:
        bands = describe_bands(source)
    except ImageError:
        return None
    return None if bands.kind == "uint8" and bands.channels <= 4 else bands


def _stretched(values: Array) -> Image.Image:
    """Numbers (H, W, C) as an 8-bit image: three bands, or the first, from the darkest to the brightest."""
    bands = values[:, :, : 3 if values.shape[2] >= 3 else 1].astype(np.float32)
    low, high = np.percentile(bands, (0.5, 99.5))  # a few dead pixels must not darken the rest
    scaled = np.clip((bands - low) * (255 / max(float(high - low), 1e-12)), 0, 255)
    colours = np.broadcast_to(np.rint(scaled).astype(np.uint8), (*values.shape[:2], 3))
    return Image.fromarray(np.ascontiguousarray(colours))
