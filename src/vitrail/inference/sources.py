"""Paths and folders -> the images in them, in natural order ("2" before "10"), and the frames of videos among them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vitrail.errors import ImageError, InputError
from vitrail.images.file_names import SUFFIXES, in_order
from vitrail.inference.image_reader import Named
from vitrail.inference.video import frames, is_video


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


@dataclass(frozen=True)
class ImageStream:
    """Images one after another, and of each video every Nth frame, called clip.mp4#120; each is read when it is drawn.

    What cannot be read stands as its error.
    """

    paths: tuple[Path, ...]
    videos: frozenset[Path]
    every: int = 1

    @property
    def count(self) -> int | None:
        """How many there are; None where only their end tells."""
        return None if self.videos else len(self.paths)

    @property
    def is_short(self) -> bool:
        """Whether there are so few that nothing need be prepared for more."""
        return not self.videos and len(self.paths) <= 2

    def __iter__(self) -> Iterator[Path | Named]:
        for path in self.paths:
            if path not in self.videos:
                yield path
                continue
            try:
                for number, frame in enumerate(frames(path, self.every)):
                    yield Named(f"{path}#{number * self.every}", frame)
            except ImageError as error:
                yield Named(str(path), error)


def stream_images(paths: Iterable[str | os.PathLike[str]], every: int | None = None) -> ImageStream:
    """The images named, in folders too, and videos frame by frame; animations as well where `every` is given."""
    files = find_images(paths)
    videos = frozenset(path for path in files if is_video(path, animations=every is not None))
    return ImageStream(tuple(files), videos, every or 1)


def _in_folder(folder: Path) -> list[Path]:
    inside = [str(path) for path in folder.rglob("*") if _is_image(path, folder)]
    if not inside:
        raise InputError(f"no images in {folder}: expected files ending in {', '.join(SUFFIXES)}")
    return [Path(path) for path in in_order(inside)]


def _is_image(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return not hidden and path.suffix.lower() in SUFFIXES and path.is_file()
