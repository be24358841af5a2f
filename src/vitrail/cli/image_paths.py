"""Paths of images as they are typed -> those to look for; and what was passed over beside them, told."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.terminal import complain
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.inference import FoundImages

STDIN = "-"


def typed_paths(images: Sequence[Path]) -> list[Path]:
    """The paths, and in the place of "-" those on standard input: one a line, or with a zero byte behind each."""
    return [path for typed in images for path in (_on_stdin() if str(typed) == STDIN else (typed,))]


def tell_passed_over(found: FoundImages) -> None:
    """A line on stderr for each kind."""
    for kind in found.passed_over:
        complain(str(kind))


def passed_over_rows(found: FoundImages) -> list[dict[str, Any]]:
    """The same for machines."""
    return [{"reason": each.reason, "count": each.count, "paths": list(each.paths)} for each in found.passed_over]


def _on_stdin() -> Iterator[Path]:
    from vitrail.images.signatures import START, is_image_start

    read = sys.stdin.buffer.read() if sys.stdin is not None else b""
    if is_image_start(read[:START]) and not read.startswith(b"P"):  # "P1 2.jpg" is a name
        raise InputError(
            "standard input holds an image, and - reads paths of images from it, one a line: save the image to a file, "
            "and name that"
        )
    names = read.split(b"\0") if b"\0" in read else read.splitlines()
    paths = [Path(os.fsdecode(name)) for name in names if name.strip()]
    if not paths:
        raise InputError("- reads paths of images from standard input, one a line, and none came")
    yield from paths
