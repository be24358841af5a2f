"""Bytes of a protobuf message -> its fields, each checked against the bytes that are there; nothing is copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from vitrail.errors import CheckpointError

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_WIDTHS: Final = {FIXED64: 8, FIXED32: 4}

MOST_FIELDS: Final = 2_000_000  # in one message; no honest graph has as many


class Field(NamedTuple):
    """One field of a message: a number, or a stretch of bytes from `start` to `stop`."""

    number: int
    kind: int
    value: int  # of a varint; 0 for the others
    start: int
    stop: int


def fields(data: memoryview, start: int, stop: int, name: str) -> Iterator[Field]:
    """The fields between two places, in order; a length that leads beyond `stop` is an error."""
    count = 0
    while start < stop:
        count += 1
        if count > MOST_FIELDS:
            raise CheckpointError(f"{name}: refused, a message of more than {MOST_FIELDS:,} fields")
        tag, start = varint(data, start, stop, name)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise damaged(name)
        if kind == VARINT:
            value, after = varint(data, start, stop, name)
            yield Field(number, kind, value, start, after)
        elif kind == BYTES:
            length, start = varint(data, start, stop, name)
            after = start + length
            if after > stop:
                raise damaged(name)
            yield Field(number, kind, 0, start, after)
        elif kind in _WIDTHS:
            after = start + _WIDTHS[kind]
            if after > stop:
                raise damaged(name)
            yield Field(number, kind, 0, start, after)
        else:  # groups, which no one writes any more
            raise damaged(name)
        start = after


def varint(data: memoryview, start: int, stop: int, name: str) -> tuple[int, int]:
    """A number of 7 bits a byte, and the place after it."""
    value = shift = 0
    while start < stop and shift < 70:
        byte = data[start]
        start += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), start
        shift += 7
    raise damaged(name)


def signed(value: int) -> int:
    """An int64 as a varint carries it."""
    return value - 2**64 if value >= 2**63 else value


def numbers(data: memoryview, field: Field, name: str) -> list[int]:
    """Whole numbers of a repeated field: one, or several packed together."""
    if field.kind == VARINT:
        return [signed(field.value)]
    found: list[int] = []
    start = field.start
    while start < field.stop:
        value, start = varint(data, start, field.stop, name)
        found.append(signed(value))
    return found


def text(data: memoryview, field: Field, name: str) -> str:
    try:
        return bytes(data[field.start : field.stop]).decode("utf-8")
    except UnicodeDecodeError:
        raise damaged(name) from None


def written(number: int, content: bytes) -> bytes:
    """A field of bytes, as it stands in a message."""
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def damaged(name: str) -> CheckpointError:
    return CheckpointError(f"{name} is cut short or damaged, or no ONNX file: get it anew, or export it again")
