"""The bytes of a pickle -> its steps: the opcode of each by its name, and what stands behind it; none is carried out.

Python's pickletools says which opcode it is and how its argument is read; how long that may be is said here.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

LONGEST_TEXT: Final = 2**20  # bytes of one text or line
LONGEST_NUMBER: Final = 64  # bytes or digits of a whole number
OPCODES: Final = {ord(opcode.code): opcode for opcode in pickletools.opcodes}
LENGTHS: Final = {  # bytes that say how long an argument is
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}


class RefusedPickle(ValueError):  # noqa: N818
    """A pickle that asks for more than plain values, or for too much of them."""


class PickleStep(NamedTuple):
    """One step of a pickle."""

    name: str  # of its opcode, as pickletools has it
    argument: Any  # None where nothing stands behind it; module and name where both do
    end: int  # where the next step begins


def read_steps(data: bytes, start: int, longest: int) -> Iterator[PickleStep]:
    """Step after step, for as long as one asks; RefusedPickle or another ValueError says why there is no next one.

    `longest` is how many bytes one text may have.
    """
    at = start
    while True:
        if at >= len(data):
            raise ValueError("it is cut short")
        opcode = OPCODES.get(data[at])
        if opcode is None:
            raise refused_step(hex(data[at]))
        at += 1
        if opcode.arg is None:
            yield PickleStep(opcode.name, None, at)
            continue
        kind, size = opcode.arg.name, opcode.arg.n
        most = LONGEST_NUMBER if kind.startswith(("long", "decimal")) else longest
        if size == pickletools.UP_TO_NEWLINE:
            end = _next_line(data, at, most)
            if kind == "stringnl_noescape_pair":
                end = _next_line(data, end, most)
        else:
            width = LENGTHS.get(size, 0)
            size = width + int.from_bytes(data[at : at + width], "little") if width else size
            if size - width > most:
                raise RefusedPickle(f"has a number or text of {size - width:,} bytes, at most {most:,} are read")
            end = at + size
        if end > len(data):
            raise ValueError("it is cut short")
        raw = data[at:end]
        argument = _DECODERS[kind](raw) if kind in _DECODERS else opcode.arg.reader(io.BytesIO(raw))
        yield PickleStep(opcode.name, argument, end)
        at = end


def refused_step(name: str) -> RefusedPickle:
    return RefusedPickle(f"takes the step {name}, which no file of plain weights takes: refused")


def _next_line(data: bytes, at: int, most: int) -> int:
    """Where the line ends that begins here, its line feed included."""
    end = data.find(b"\n", at, at + most + 1)
    if end < 0 and len(data) - at <= most:
        raise ValueError("it is cut short")
    if end < 0:
        raise RefusedPickle(f"has a line of more than {most:,} bytes: refused")
    return end + 1


def _old_text(raw: bytes) -> str:
    """Text of Python 2, which may be bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _quoted(line: bytes) -> str:
    """Text in quotes, as the oldest protocol writes it; escapes stay as they are, since nobody needs them."""
    text = line[:-1]
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
        raise ValueError("a text without quotes")
    return text[1:-1].decode("latin-1")


# What pickletools would take for ASCII, Latin-1 or escapes alone.
_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "string1": lambda raw: _old_text(raw[1:]),
    "string4": lambda raw: _old_text(raw[4:]),
    "stringnl": _quoted,
    "stringnl_noescape_pair": lambda raw: raw.decode().split("\n")[:2],
}
