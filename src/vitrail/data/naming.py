"""How splits and classes are called: splits under any of their usual names, classes in one spelling."""

from __future__ import annotations

import unicodedata
from typing import Final

from vitrail.errors import InputError, nearest

_SPLIT_NAMES = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
SPLIT_NAMES: Final = {name: split for split, names in _SPLIT_NAMES.items() for name in names}
LONGEST_LABEL: Final = 500


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
