"""How things are called: which files are images, natural order, splits under their usual names, labels as text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from vitrail.errors import InputError, nearest

# What predict takes for images in a folder, and arrays with any number of bands.
SUFFIXES: Final = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".avif", ".npy"),
)
_SPLIT_NAMES = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
SPLIT_NAMES: Final = {name: split for split, names in _SPLIT_NAMES.items() for name in names}
LONGEST_LABEL: Final = 500

_DIGITS = re.compile(r"\d+")


def natural(text: str) -> str:
    """A key that sorts numbers by value: a2 before a10."""
    return _DIGITS.sub(_by_value, text)


def _by_value(match: re.Match[str]) -> str:
    """A number so that text order is its order: below every letter, the shorter one first."""
    digits = match[0] if match[0].isascii() else "".join(str(unicodedata.decimal(each)) for each in match[0])
    digits = digits.lstrip("0")
    return f"\0{chr(len(digits))}{digits}"


def in_order(names: Iterable[str]) -> list[str]:
    """Names in natural order; those of equal numbers, a1 and a01, in a fixed order too."""
    return sorted(sorted(names), key=natural)


def as_split(text: str, where: str) -> str:
    """train, val or test, from any of their usual names; empty stays empty."""
    name = text.strip().lower()
    if name and name not in SPLIT_NAMES:
        raise InputError(f"{where}: the split {text!r} is unknown: {nearest(name, SPLIT_NAMES)}")
    return SPLIT_NAMES[name] if name else ""


def as_label(text: str, where: str) -> str:
    """A class name in one spelling (é may be written in two ways), or an error that says where it stands."""
    name = unicodedata.normalize("NFC", text)
    if not name.strip():
        raise InputError(f"{where}: expected the name of a class, got {text!r}")
    if len(name) > LONGEST_LABEL:
        raise InputError(f"{where}: a class name of {len(name):,} characters, expected at most {LONGEST_LABEL}")
    kinds = {unicodedata.category(each) for each in name}
    if "Cs" in kinds:
        raise InputError(f"{where}: the class name {name!r} is not UTF-8: rename it, or save the file as UTF-8")
    if "Cc" in kinds:
        raise InputError(f"{where}: the class name {name!r} holds control characters: rename it")
    return name
