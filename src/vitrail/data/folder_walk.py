"""A folder -> the images below it by name, and what was left out and why. Only files without an ending are opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from vitrail.data.left_out import LeftOut
from vitrail.errors import InputError
from vitrail.images import describe
from vitrail.images.file_names import SUFFIXES, in_order
from vitrail.images.signatures import START, is_image_start

# What unpacking on a Mac, photo servers and Python leave behind.
HIDDEN: Final = ("__MACOSX", "@eaDir", "__pycache__")
CLOSED: Final = "folders that cannot be read"
MOST_KINDS: Final = 20  # of files that are no images, told apart


class Walk(NamedTuple):
    """The images below a folder, in natural order, with "/" between the parts of their names."""

    names: list[str]
    left_out: LeftOut
    closed: Collection[str] = ()  # folders that cannot be read: none of their images is among the names


def walk(root: Path, without: Collection[str] = ()) -> Walk:
    """Every image below the folder, except in the folders `without` directly in it.

    Links to folders are not followed, links that lead out of it are refused. A file without an ending is an image if
    its first bytes are those of one. A folder below the first that cannot be read is left out, and told.
    """
    names: list[str] = []
    closed: list[str] = []
    left_out = LeftOut()
    inside = os.path.realpath(root)
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            files = list(entries(root / below if below else root))
        except InputError:
            if not below:
                raise
            closed.append(below.rstrip("/"))
            continue
        for entry in files:
            name = entry.name
            if is_hidden(name):
                is_folder = entry.is_dir(follow_symlinks=False)
                kind = "folders of tools" if name in HIDDEN else "hidden folders"
                left_out.add(kind if is_folder else "hidden files", below + name)
            elif entry.is_dir(follow_symlinks=False):
                if below or name not in without:
                    waiting.append(f"{below}{name}/")
            elif reason := _refusal(entry, inside):
                left_out.add(reason, below + name)
            elif name.lower().endswith(SUFFIXES) or ("." not in name and _starts_as_image(entry.path)):
                names.append(below + name)
            else:
                left_out.add(_other(name, left_out), below + name)
    for folder in in_order(closed):
        left_out.add(CLOSED, folder)
    return Walk(in_order(names), left_out, closed)


def folders_in(folder: Path) -> list[str]:
    """The folders directly in a folder. A link to one is an error here: a whole class would go missing."""
    names = []
    for entry in entries(folder):
        if is_hidden(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            names.append(entry.name)
        elif entry.is_symlink() and os.path.isdir(entry.path):
            raise InputError(
                f"{describe(entry.path)} is a link to a folder, which is not followed: copy the folder here, "
                "or name the one that it leads to"
            )
    return in_order(names)


def is_hidden(name: str) -> bool:
    """Files that their system does not show, and rubbish that goes by a name."""
    return name.startswith(".") or name in HIDDEN


def is_inside(path: str, folder: str) -> bool:
    """Whether a real path stands below a real folder."""
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What stands in a folder."""
    try:
        with os.scandir(folder) as inside:
            yield from inside
    except OSError as error:
        raise InputError(f"the folder {describe(folder)} cannot be read: {error.strerror}") from error


def _refusal(entry: os.DirEntry[str], inside: str) -> str:
    """Why a file may not be opened; empty where it may."""
    if entry.is_file(follow_symlinks=False):
        return ""
    if not entry.is_symlink():
        return "pipes, sockets and devices"
    try:
        target = os.path.realpath(entry.path, strict=True)
        kind = os.stat(target).st_mode
    except OSError:
        return "broken links"
    if stat.S_ISDIR(kind):
        return "links to folders"
    if not is_inside(target, inside):
        return "links that lead out of the folder"
    return "" if stat.S_ISREG(kind) else "pipes, sockets and devices"


def _starts_as_image(path: str) -> bool:
    """Whether a file without an ending is an image; one that may not be read is left to the scan, which tells it."""
    try:
        with open(path, "rb") as file:
            return is_image_start(file.read(START))
    except OSError:
        return True


def _other(name: str, left_out: LeftOut) -> str:
    """The reason for a file that is no image: its kind, unless there are too many kinds."""
    suffix = os.path.splitext(name)[1].lower()
    reason = f"not images ({describe(suffix) if suffix else 'no suffix'})"
    kinds = left_out.counts
    if reason in kinds or sum(each.startswith("not images") for each in kinds) < MOST_KINDS:
        return reason
    return "not images (others)"
