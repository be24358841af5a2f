"""A tar file -> its ordinary files: name, where their bytes begin and how many they are; every claim is checked.

Nothing is unpacked. What a shard of images has no need of is refused: links, devices, pipes, sparse files, names that
are absolute or lead upwards, sizes beyond the end of the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from vitrail.errors import InputError

BLOCK: Final = 512
MOST_MEMBERS: Final = 10_000_000
LONGEST_NAME: Final = 4096
LARGEST_HEADER: Final = 64 * 1024  # of the extended kind, which says a long name or a large size
KINDS: Final = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "a sparse file",
    b"V": "a volume label",
    b"M": "a part of a file",
}
_FILES: Final = (b"0", b"\0", b"7")
_COMPRESSED: Final = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}

ReadAt = Callable[[int, int], bytes]  # start, count -> the bytes there, fewer at the end of the file


class TarMember(NamedTuple):
    """An ordinary file in a tar file."""

    name: str
    start: int  # of its bytes
    size: int


def tar_members(read: ReadAt, size: int, tar: str) -> Iterator[TarMember]:
    """The files in a tar file of so many bytes, in their order; InputError, which names it, where it is not whole."""
    at, count = 0, 0
    extras: dict[str, str] = {}  # by extended headers, of the next member
    while True:
        header = read(at, BLOCK)
        if at == size or (len(header) == BLOCK and not any(header)):
            break
        _check_header(header, at, tar)
        length, kind = _number(header[124:136], at, tar), header[156:157]
        start = at + BLOCK
        if kind in b"xgLK" and kind:
            if length > LARGEST_HEADER:
                raise InputError(f"{tar}: at byte {at:,} an extended header of {length:,} bytes: refused")
            extras |= _extended(kind, _bytes(read, start, length, size, tar), at, tar)
        else:
            name = _name(extras.pop("path", "") or _plain_name(header), at, tar)
            length = _size(extras.pop("size", ""), length, at, tar)
            if extras or kind in KINDS:
                what = "a sparse file" if extras else KINDS[kind]
                raise InputError(f"{tar}: {name!r} is {what}: expected ordinary files alone")
            if kind == b"5":
                length = 0
            elif kind not in _FILES:
                raise InputError(f"{tar}: {name!r} is of a kind that is not known ({kind!r}): refused")
            elif start + length > size:
                raise InputError(
                    f"{tar}: {name!r} claims {length:,} bytes at byte {start:,}, but the file has {size:,}: it is cut "
                    "short or damaged, copy it again"
                )
            else:
                yield TarMember(name, start, length)
            count += 1
            if count > MOST_MEMBERS:
                raise InputError(f"{tar}: over {MOST_MEMBERS:,} members: refused")
        at = start + -(-length // BLOCK) * BLOCK
    if extras:
        raise InputError(f"{tar}: it ends behind an extended header: it is cut short, copy it again")


def _check_header(header: bytes, at: int, tar: str) -> None:
    """Whether this is the header of a member, to its checksum."""
    if len(header) < BLOCK:
        raise InputError(f"{tar}: it ends within the header at byte {at:,}: it is cut short, copy it again")
    total = sum(header[:148]) + 8 * 32 + sum(header[156:])
    try:
        expected = int(header[148:156].rstrip(b"\0 ").lstrip() or b"x", 8)
    except ValueError:
        expected = -1
    if total != expected:
        kind = next((name for start, name in _COMPRESSED.items() if at == 0 and header.startswith(start)), "")
        why = f"it is compressed ({kind}): unpack it to a plain .tar" if kind else "it is damaged, or no tar file"
        raise InputError(f"{tar}: no header at byte {at:,}: {why}")


def _number(field: bytes, at: int, tar: str) -> int:
    """A size: octal digits, or for large ones binary."""
    try:
        if field[0] & 0x80:
            value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
            if field[0] & 0x40:
                raise ValueError
        else:
            value = int(field.rstrip(b"\0 ").lstrip() or b"0", 8)
        if value < 0:
            raise ValueError
    except ValueError:
        raise InputError(f"{tar}: no size in the header at byte {at:,}: it is damaged") from None
    return value


def _size(text: str, length: int, at: int, tar: str) -> int:
    """The size of a member, which an extended header may say."""
    if not text:
        return length
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InputError(f"{tar}: the size {text!r:.40} in the extended header before byte {at:,}: refused")
    return int(text)


def _bytes(read: ReadAt, start: int, length: int, size: int, tar: str) -> bytes:
    raw = read(start, length) if start + length <= size else b""
    if len(raw) != length:
        raise InputError(f"{tar}: it ends within the header at byte {start:,}: it is cut short, copy it again")
    return raw


def _extended(kind: bytes, raw: bytes, at: int, tar: str) -> dict[str, str]:
    """What an extended header says of the next member that matters here: its name, its size, that it is sparse."""
    if kind == b"L":
        return {"path": os.fsdecode(raw.rstrip(b"\0"))}
    if kind == b"K":  # the long target of a link, which is refused in its turn
        return {}
    extras: dict[str, str] = {}
    while raw:
        length, space, _ = raw.partition(b" ")
        if not (space and length.isdigit() and len(length) < 8 and len(length) + 3 < int(length) <= len(raw)):
            raise InputError(f"{tar}: the extended header at byte {at:,} is damaged")
        key, equals, value = raw[len(length) + 1 : int(length)].partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise InputError(f"{tar}: the extended header at byte {at:,} is damaged")
        word = key.decode("utf-8", "replace")
        if word in ("path", "size") or word.startswith("GNU.sparse"):
            extras[word] = os.fsdecode(value[:-1])
        raw = raw[int(length) :]
    if kind == b"g" and extras:
        raise InputError(f"{tar}: the extended header at byte {at:,} speaks of all members: refused")
    return extras


def _plain_name(header: bytes) -> str:
    """The name in a header, behind its prefix."""
    name, prefix = header[:100].partition(b"\0")[0], header[345:500].partition(b"\0")[0]
    is_ustar = header[257:263] == b"ustar\0"
    return os.fsdecode(prefix + b"/" + name if is_ustar and prefix else name)


def _name(name: str, at: int, tar: str) -> str:
    """The name of a member, if it stays below the folder that the tar file would be unpacked in."""
    plain = name.removeprefix("./").rstrip("/") or "."
    parts = plain.replace("\\", "/").split("/")
    if not name or len(name) > LONGEST_NAME or "\0" in name:
        raise InputError(f"{tar}: no name that can be used in the header at byte {at:,}: refused")
    if ".." in parts or name.startswith(("/", "\\")) or parts[0].endswith(":"):
        raise InputError(f"{tar}: the name {name!r} is absolute or leads out of the folder: refused")
    return plain
