"""Paths and folders -> the pictures in them, in natural order ("2" before "10")."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from vitrail.errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")


def find_images(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Every file named, and every picture in every folder named, below it too; hidden ones are left out."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = [each for each in path.rglob("*") if _is_picture(each, path)]
            if not inside:
                raise InputError(f"no pictures in {path}: expected files ending in {', '.join(SUFFIXES)}")
            found += sorted(inside, key=natural)
        elif path.exists():
            found.append(path)
        else:
            raise InputError(f"no file or folder {path}")
    return found


def natural(path: Path) -> list[tuple[int, str]]:
    """A key that sorts numbers by value: a2 before a10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _is_picture(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return not hidden and path.suffix.lower() in SUFFIXES and path.is_file()
