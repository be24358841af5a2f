"""Paths and folders -> the images in them, one after another, and the frames of videos among them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vitrail.errors import ImageError
from vitrail.inference.image_reader import Named
from vitrail.inference.image_search import FoundImages, find_images
from vitrail.inference.video import frames, is_video


@dataclass(frozen=True)
class ImageStream:
    """Images one after another, and of each video every Nth frame, called clip.mp4#120; each is read when it is drawn.

    What cannot be read stands as its error.
    """

    files: FoundImages
    videos: frozenset[Path]
    every: int = 1

    @property
    def count(self) -> int | None:
        """How many there are; None where only their end tells."""
        return None if self.videos else len(self.files)

    @property
    def is_short(self) -> bool:
        """Whether there are so few that nothing need be prepared for more."""
        return not self.videos and len(self.files) <= 2

    def __iter__(self) -> Iterator[Path | Named]:
        for image in self.files.images():
            if isinstance(image, Named) or image not in self.videos:
                yield image
                continue
            path = image
            try:
                for number, frame in enumerate(frames(path, self.every)):
                    yield Named(f"{path}#{number * self.every}", frame)
            except ImageError as error:
                yield Named(str(path), error)


def stream_images(paths: Iterable[str | os.PathLike[str]], every: int | None = None) -> ImageStream:
    """The images named, in folders and shards too, and videos frame by frame; animations too where `every` is given."""
    files = find_images(paths, shards=True)
    others = (path for path in files if path not in files.in_shards)
    videos = frozenset(path for path in others if is_video(path, animations=every is not None))
    return ImageStream(files, videos, every or 1)
