"""A folder -> the images below it by name, and what was left out and why. Nothing is opened."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from vitrail.errors import InputError
from vitrail.images import describe
from vitrail.images.file_names import SUFFIXES, in_order

HIDDEN: Final = ("__MACOSX", "@eaDir")  # what unpacking on a Mac and photo servers leave behind
MOST_KINDS: Final = 20  # of files that are no images, told apart


class Walk(NamedTuple):
    """The images below a folder, in natural order, with "/" between the parts of their names."""

    names: list[str]
    left_out: Counter[str]


def walk(root: Path) -> Walk:
    """Every image below the folder. Links to folders are not followed, links that lead out of it are refused."""
    names: list[str] = []
    left_out: Counter[str] = Counter()
    inside = os.path.realpath(root)
    waiting = [""]
    while waiting:
        below = waiting.pop()
        for entry in entries(root / below if below else root):
            name = entry.name
            if is_hidden(name):
                left_out["hidden folders" if entry.is_dir(follow_symlinks=False) else "hidden files"] += 1
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(f"{below}{name}/")
            elif reason := _refusal(entry, inside):
                left_out[reason] += 1
            elif name.lower().endswith(SUFFIXES):
                names.append(below + name)
            else:
                left_out[_other(name, left_out)] += 1
    return Walk(in_order(names), left_out)


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


def _other(name: str, left_out: Counter[str]) -> str:
    """The reason for a file that is no image: its kind, unless there are too many kinds."""
    suffix = os.path.splitext(name)[1].lower()
    reason = f"not images ({describe(suffix) if suffix else 'no suffix'})"
    if reason in left_out or sum(each.startswith("not images") for each in left_out) < MOST_KINDS:
        return reason
    return "not images (others)"
