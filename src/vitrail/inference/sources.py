"""Paths and folders -> the images in them, in natural order ("2" before "10")."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from vitrail.errors import InputError

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".avif", ".npy"),
)


def find_images(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Every file named, and every image in every folder named, below it too; hidden ones are left out."""
    files: list[Path] = []
    for path in map(Path, paths):
        try:
            path.stat()
            files += _in_folder(path) if path.is_dir() else [path]
        except OSError as error:
            raise InputError(f"no file or folder {path}: {error.strerror}") from error
    return files


def _in_folder(folder: Path) -> list[Path]:
    inside = [each for each in folder.rglob("*") if _is_image(each, folder)]
    if not inside:
        raise InputError(f"no images in {folder}: expected files ending in {', '.join(SUFFIXES)}")
    return sorted(sorted(inside), key=natural)  # names of equal number, a1 and a01, in a fixed order too


def natural(path: Path) -> list[tuple[int, str]]:
    """A key that sorts numbers by value: a2 before a10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _is_image(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return not hidden and path.suffix.lower() in SUFFIXES and path.is_file()
