"""find_images: paths, folders and patterns -> the images they stand for, in natural order, and what was passed over."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, overload

from vitrail.errors import InputError
from vitrail.images import describe
from vitrail.images.file_names import SUFFIXES, TAR, in_order
from vitrail.images.signatures import START, is_image_start
from vitrail.inference.image_reader import Named
from vitrail.inference.video import VIDEOS

if TYPE_CHECKING:
    from vitrail.images.shards import ShardSet

UNREADABLE_FOLDER: Final = "folder that cannot be read"
NO_IMAGE: Final = "file that is no image"
REASONS: Final = {  # why something in a folder is no image to read -> the same of several
    UNREADABLE_FOLDER: "folders that cannot be read",
    "file that cannot be read": "files that cannot be read",
    "broken link": "broken links",
    "link to a folder": "links to folders",
    "hidden folder": "hidden folders",
    "hidden file": "hidden files",
    "video, to be named by itself": "videos, to be named by themselves",
    "image with an unknown ending": "images with an unknown ending",
    "pipe, socket or device": "pipes, sockets and devices",
    NO_IMAGE: "files that are no images",
}
FIRST: Final = 3  # names in a line


@dataclass(frozen=True)
class PassedOver:
    """What stands in the folders that were named and is not read, of one kind."""

    reason: str  # of REASONS
    count: int
    paths: tuple[str, ...]

    def __str__(self) -> str:
        words = self.reason if self.count == 1 else REASONS[self.reason]
        names = ", ".join(map(describe, self.paths[:FIRST])) + (", …" if self.count > FIRST else "")
        return f"{self.count:,} {words} passed over" + (f": {names}" if self.paths else "")


@dataclass(frozen=True)
class FoundImages(Sequence[Path]):
    """The images that some paths stand for, as a sequence; and what was passed over beside them."""

    paths: tuple[Path, ...]
    passed_over: tuple[PassedOver, ...] = ()
    in_shards: Mapping[Path, tuple[ShardSet, int]] = field(default_factory=dict)  # those that are no files

    @property
    def is_complete(self) -> bool:
        """Whether every folder could be looked into."""
        return all(each.reason != UNREADABLE_FOLDER for each in self.passed_over)

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Path, ...]: ...
    def __getitem__(self, index: int | slice) -> Path | tuple[Path, ...]:
        return self.paths[index]

    def images(self) -> Iterator[Path | Named]:
        """Each image as it is read: a file by its path, one in a shard by its bytes."""
        for path in self.paths:
            place = self.in_shards.get(path)
            yield path if place is None else Named(str(path), place[0].read(place[1]))


def find_images(paths: Iterable[str | os.PathLike[str]], shards: bool = False) -> FoundImages:
    """Every file named, every image in every folder named, below it too, and what a pattern such as photos/*.jpg fits.

    In folders an image is known by its ending, or where it has none by its first bytes. With `shards`, a folder of them
    or a tar file stands for the images in it. What is not there stands among
    the files, to be told as an image that cannot be read, unless nothing at all is there.
    """
    files: list[Path] = []
    others: dict[str, list[str]] = {}
    missing: list[Path] = []
    in_shards: dict[Path, tuple[ShardSet, int]] = {}
    for given in paths:
        if not os.fspath(given):  # as an empty variable of a shell; Path("") would be all that lies here
            raise InputError(f"expected the path of an image or folder, got {given!r}")
        matches = _matching(Path(given))
        missing += [] if matches else [Path(given)]
        for path in matches or [Path(given)]:
            if shards and (packed := _shards(path)) is not None:
                listed = [packed.path(row) for row in range(len(packed))]
                in_shards |= {image: (packed, row) for row, image in enumerate(listed)}
                files += listed
            elif os.path.isdir(path):
                files += _in_folder(path, others)
            else:
                files.append(path)
    if missing and len(missing) == len(files):
        raise InputError(_not_there(missing[0]))
    passed_over = (
        PassedOver(reason, len(others[reason]), tuple(others[reason])) for reason in REASONS if reason in others
    )
    return FoundImages(tuple(files), tuple(passed_over), in_shards)


def _shards(path: Path) -> ShardSet | None:
    """The shards that a path stands for; None of anything else."""
    if not (path.suffix.lower() == TAR or os.path.isdir(path)):
        return None
    from vitrail.images.foreign_shards import find_shards

    return find_shards(path)


def _matching(path: Path) -> list[Path]:
    """The path, where there is such a file or folder; else all that it fits as a pattern."""
    if os.path.exists(path) or not glob.has_magic(str(path)):
        return [path] if os.path.exists(path) else []
    return [Path(match) for match in in_order(glob.glob(str(path), recursive=True))]


def _not_there(path: Path) -> str:
    if glob.has_magic(str(path)):
        return f"no file or folder fits the pattern {path}"
    try:
        path.stat()
    except FileNotFoundError as error:
        why = f"a broken link to {os.readlink(path)}" if path.is_symlink() else error.strerror
        return f"no file or folder {path}: {why}"
    except OSError as error:
        return f"no file or folder {path}: {error.strerror}"
    except ValueError as error:  # a zero byte
        return f"no file or folder {describe(path)}: {error}"
    return f"no file or folder {path}"


def _in_folder(folder: Path, others: dict[str, list[str]]) -> list[Path]:
    inside: list[str] = []
    passed_over: dict[str, list[str]] = {}
    for path, reason in _walk(str(folder)):
        (passed_over.setdefault(reason, []) if reason else inside).append(path)
    if passed_over.get(UNREADABLE_FOLDER) == [str(folder)]:
        raise InputError(f"the folder {describe(folder)} cannot be read: check its permissions")
    if not inside:
        told = "; ".join(str(PassedOver(each, len(passed_over[each]), ())) for each in REASONS if each in passed_over)
        expected = f"expected files ending in {', '.join(SUFFIXES)}"
        raise InputError(f"no images in {describe(folder)}{f' ({told})' if told else ''}: {expected}")
    for reason, names in passed_over.items():
        others.setdefault(reason, []).extend(in_order(names))
    return [Path(path) for path in in_order(inside)]


def _walk(folder: str) -> Iterator[tuple[str, str]]:
    """Whatever stands below a folder: its path, and why it is passed over, or nothing."""
    waiting = [folder]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                inside = list(entries)
        except OSError:
            yield folder, UNREADABLE_FOLDER
            continue
        for entry in inside:
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name.startswith("."):
                yield entry.path, _hidden(entry.name, is_folder)
            elif is_folder:
                waiting.append(entry.path)
            else:
                yield entry.path, _reason(entry.path)


def _hidden(name: str, is_folder: bool) -> str:
    """Hidden files are worth a word where they are called like images."""
    if is_folder:
        return "hidden folder"
    return "hidden file" if name.lower().endswith(SUFFIXES) else NO_IMAGE


def _reason(path: str) -> str:
    """Why a file in a folder is not read; nothing of an image."""
    try:
        kind = os.stat(path).st_mode
    except OSError:
        return "broken link" if os.path.islink(path) else "file that cannot be read"
    suffix = os.path.splitext(path)[1].lower()
    if stat.S_ISDIR(kind):
        return "link to a folder"
    if not stat.S_ISREG(kind):
        return "pipe, socket or device"
    if suffix in SUFFIXES:
        return ""
    if suffix in VIDEOS:
        return "video, to be named by itself"
    try:
        with open(path, "rb") as file:
            known = is_image_start(file.read(START))
    except OSError:
        return "file that cannot be read"
    if not known:
        return NO_IMAGE
    return "image with an unknown ending" if suffix else ""
