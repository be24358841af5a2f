"""Names of image files: which suffixes they have, and natural order, in which "2" stands before "10"."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

TAR: Final = ".tar"  # of shards, which hold many images
# What is taken for an image in a folder; .npy: arrays with any number of bands.
SUFFIXES: Final = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".avif", ".heic", ".heif", ".npy"),
)

_DIGITS = re.compile(r"\d+")


def in_order(names: Iterable[str]) -> list[str]:
    """Names in natural order; those of equal numbers, a1 and a01, in a fixed order too."""
    return sorted(sorted(names), key=natural)


def natural(text: str) -> str:
    """A key that sorts numbers by value: a2 before a10."""
    return _DIGITS.sub(_by_value, text)


def _by_value(match: re.Match[str]) -> str:
    """A number so that text order is its order: below every letter, the shorter one first."""
    digits = match[0] if match[0].isascii() else "".join(str(unicodedata.decimal(each)) for each in match[0])
    digits = digits.lstrip("0")
    return f"\0{chr(len(digits))}{digits}"
