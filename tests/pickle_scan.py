"""A folder -> where in its files a pickle begins: one that could run, wherever it stands."""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from vitrail.weights.reading.pickle_opcodes import read_steps

HEADER = re.compile(rb"\x80[\x02-\x05]")  # PROTO, with which all but the oldest two protocols begin
LEAST_STEPS = 5  # behind a header in the middle of other bytes: three numbers by chance make two or three


def pickles_in(folder: Path) -> list[str]:
    """Every pickle in the files of a folder, as "name at byte"; files inside zip archives too."""
    found = []
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        for name, data in _members(str(path.relative_to(folder)), path.read_bytes()):
            found += [f"{name} at {start}" for start in _starts(data) if _is_pickle(data, start)]
    return found


def _members(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """A file, or the files in an archive."""
    yield name, data
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for each in archive.namelist():
                yield f"{name}/{each}", archive.read(each)


def _starts(data: bytes) -> Iterator[int]:
    """Where a pickle may begin: at the start, which needs no header, or at any header."""
    yield 0
    yield from (match.start() for match in HEADER.finditer(data) if match.start())


def _is_pickle(data: bytes, start: int) -> bool:
    """Whether steps from here on come to an end, with the stack that they say they have."""
    names = []
    try:
        for step in read_steps(data, start, 2**20):
            names.append(step.name)
            if step.name == "STOP":
                break
        pickletools.dis(data[start : step.end], io.StringIO())
    except (ValueError, IndexError, UnicodeDecodeError):
        return False
    return (step.end == len(data) if start == 0 else False) or len(names) >= LEAST_STEPS
