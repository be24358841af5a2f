"""read_labels: a file of class names -> the names in order; a file that is something else is refused as what it is."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any, Final

from vitrail.checks import short_repr
from vitrail.errors import CheckpointError, InputError

LARGEST_FILE: Final = 16 * 2**20
LONGEST_LABEL: Final = 1000  # characters; no name for people is longer
WEB_PAGE: Final = re.compile(r"\s*<(!doctype|html|head|body|\?xml)\b", re.IGNORECASE)
TURNING: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # change the direction of writing


def read_labels(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Class names from a text file with one a line, a JSON list of names, or JSON {"0": name, "1": name}.

    How many there should be is for the caller to judge.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"expected the path of a file of class names, got {short_repr(path)}")
    text = _text(Path(path))
    if WEB_PAGE.match(text):
        raise CheckpointError(f"{path} is a web page, expected class names, one a line: download the file itself")
    if text.startswith("version https://git-lfs"):
        raise CheckpointError(f"{path} is a git-LFS pointer, not the file it stands for: fetch it with git lfs pull")
    labels = _from_json(path, text)
    if labels is None:
        labels = _from_lines(path, text)
    for number, label in enumerate(labels):
        _check(path, number, label)
    twice = [label for label, times in Counter(labels).items() if times > 1]
    if twice:
        raise CheckpointError(f"{path}: class names must differ, got twice: {', '.join(map(short_repr, twice[:5]))}")
    return tuple(labels)


def _text(path: Path) -> str:
    """The whole file as text, without a byte-order mark, its lines ended by line feeds."""
    try:
        if not path.is_file():
            raise CheckpointError(f"no file {path}: expected class names, one a line, or JSON")
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"could not read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > LARGEST_FILE:
        raise CheckpointError(f"{path} is larger than {LARGEST_FILE:,} bytes: expected class names, one a line")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not text: byte {error.start} is not UTF-8; save it as UTF-8") from None
    text = text.replace("\r\n", "\n")
    if not text.strip():
        raise CheckpointError(f"{path} is empty: expected class names, one a line")
    return text


def _from_json(path: str | os.PathLike[str], text: str) -> list[Any] | None:
    """The names of a JSON list or mapping; None where the file is plain lines."""
    if text.lstrip()[0] not in "[{" and Path(path).suffix.lower() != ".json":
        return None
    try:
        value = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        if Path(path).suffix.lower() != ".json":
            return None
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if isinstance(value, _Pairs):
        return _in_order(path, value)
    if isinstance(value, list):
        return value
    raise CheckpointError(f'{path}: expected a JSON list of names, or {{"0": name}}, got {short_repr(value)}')


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with every name it has, also those that stand there twice."""


def _in_order(path: str | os.PathLike[str], pairs: _Pairs) -> list[Any]:
    """The values of {"0": ..., "1": ...} by number, none missing and none twice."""
    values = dict(pairs)
    if len(values) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise CheckpointError(f"{path}: class {short_repr(twice)} stands there twice")
    missing = next((number for number in range(len(values)) if str(number) not in values), None)
    if missing is not None:
        raise CheckpointError(
            f"{path}: expected classes numbered from 0 to {len(values) - 1}, and there is no {missing}: "
            f"got {', '.join(short_repr(key) for key in list(values)[:5])}"
        )
    return [values[str(number)] for number in range(len(values))]


def _from_lines(path: str | os.PathLike[str], text: str) -> list[str]:
    """One name a line, space around it ignored; only the end may be empty, or every later number would be wrong."""
    lines = [line.strip(" \t") for line in text.strip("\n").split("\n")]
    for number, line in enumerate(lines, start=1):
        if not line:
            raise CheckpointError(f"{path}: line {number} is empty: every line names a class")
    return lines


def _check(path: str | os.PathLike[str], number: int, label: object) -> None:
    """Text of a sane length that a terminal, a file name and a page can show."""
    if not isinstance(label, str) or not label.strip():
        raise CheckpointError(f"{path}: class {number}: expected a name, got {short_repr(label)}")
    if len(label) > LONGEST_LABEL:
        raise CheckpointError(
            f"{path}: class {number} is {len(label):,} characters long, expected at most {LONGEST_LABEL}: "
            f"{short_repr(label)}"
        )
    wrong = next((sign for sign in label if _unseen(sign)), None)
    if wrong is not None:
        raise CheckpointError(f"{path}: class {number} holds the control character {wrong!a}: {label[:60]!a}")


def _unseen(sign: str) -> bool:
    """Control characters, other ends of line, halves of characters, and marks that turn the direction of writing."""
    return unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") or sign in TURNING
