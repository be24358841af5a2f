"""Files of a data set that are no samples, or cannot be read -> a line a kind: how many, and the first by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from vitrail.checks import join_limited
from vitrail.images import describe
from vitrail.types import Source

NAMED: Final = 20  # of the files of a kind, kept by name: enough to find them, however many there are
SHOWN: Final = 3  # of these, in a line
HEIF_EXTRA: Final = "pip install 'vitrail[heif]'"


class LeftOut:
    """Files that are no samples: why, how many, and the first of them by name."""

    def __init__(
        self, counts: Mapping[str, int] | None = None, names: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.counts: Counter[str] = Counter(counts or {})
        self._names: dict[str, list[str]] = {why: list(each) for why, each in (names or {}).items()}

    def add(self, reason: str, name: str) -> None:
        """One more file that is left out."""
        self.counts[reason] += 1
        first = self._names.setdefault(reason, [])
        if len(first) < NAMED:
            first.append(name)

    @property
    def first(self) -> dict[str, tuple[str, ...]]:
        """The first files of each kind."""
        return {why: tuple(each) for why, each in self._names.items()}


def left_out_lines(counts: Mapping[str, int], names: Mapping[str, Sequence[str]]) -> list[str]:
    """A line for each reason: how many files, and which."""
    return [
        f"left out: {count:,} {kind_of(why, count)}{_first(names.get(why, ()), count)}" for why, count in counts.items()
    ]


def unreadable_lines(unreadable: Iterable[tuple[str, str]]) -> list[str]:
    """Images by name and why they cannot be read -> a line for each kind of reason."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for name, told in unreadable:
        reason = _without_name(told, name)
        kinds.setdefault(re.sub(r"\d+", "0", reason), []).append((name, reason))
    return [_unreadable(images) for images in kinds.values()]


def reason_of(error: Exception, source: Source) -> str:
    """What an error says of an image, without the name of the image."""
    return str(error).removeprefix(describe(source)).removeprefix(":").strip()


def kind_of(reason: str, count: int) -> str:
    """A reason as it stands behind a number: 1 broken link, 2 broken links."""
    if reason.startswith("not images"):
        many = "file that is not an image" if count == 1 else "files that are not images"
        return reason.replace("not images", many, 1)
    return _ONE.get(reason, reason) if count == 1 else reason


_ONE: Final = {
    "broken links": "broken link",
    "folders that cannot be read": "folder that cannot be read",
    "folders without images": "folder without images",
    "folders of logs": "folder of logs",
    "folders of tools": "folder of a tool",
    "hidden files": "hidden file",
    "hidden folders": "hidden folder",
    "images outside class folders": "image outside class folders",
    "links that lead out of the folder": "link that leads out of the folder",
    "links to folders": "link to a folder",
    "pipes, sockets and devices": "pipe, socket or device",
    "unreadable images": "unreadable image",
}


def _without_name(reason: str, name: str) -> str:
    """A reason that begins with the path of its image, which ends in its name, without that."""
    _, _, rest = reason.partition(name)
    return rest.removeprefix(":").strip() if rest.startswith((": ", " is ")) else reason


def _first(names: Sequence[str], count: int) -> str:
    """The first files of a kind, behind what they are."""
    if not names:
        return ""
    more = f" and {count - SHOWN:,} more" if count > SHOWN else ""
    return f": {join_limited([describe(each) for each in names[:SHOWN]], ', ', SHOWN)}{more}"


def _unreadable(images: Sequence[tuple[str, str]]) -> str:
    names, count, reason = [name for name, _ in images], len(images), images[0][1]
    if HEIF_EXTRA in reason:
        what = "1 HEIC image needs" if count == 1 else f"{count:,} HEIC images need"
        return f"{what} pillow-heif: {HEIF_EXTRA}{_first(names, count).replace(': ', ' (', 1)})"
    what = "1 image" if count == 1 else f"{count:,} images"
    return f"{what} cannot be read ({reason}){_first(names, count)}"
