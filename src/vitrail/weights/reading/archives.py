"""A zip archive -> its members and where their bytes lie, every claim of its directory checked before any is read.

Stricter than a zip reader need be: torch and numpy write none of what is refused here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from vitrail.errors import CheckpointError
from vitrail.files import ReadOnlyFile

MOST_MEMBERS: Final = 20_100  # the tensors that a file may hold, and a few words about them
LARGEST_DIRECTORY: Final = 16 * 2**20
LONGEST_NAME: Final = 1000
LARGEST_GAP: Final = 24  # between two members: the sizes may be repeated there
EXPANSION: Final = 1.1  # trained weights hardly compress; what unpacks to far more than it weighs is a trap
STORED: Final = 0
DEFLATED: Final = 8
DESCRIPTOR: Final = 0x0008  # sizes follow the bytes
FLAGS: Final = DESCRIPTOR | 0x0800 | 0x0006  # and names in UTF-8, and how hard it was compressed

_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")


class ArchiveMember(NamedTuple):
    """One file in an archive: where its bytes lie, and what they are once unpacked."""

    name: str
    method: int  # STORED or DEFLATED
    checksum: int
    packed: int  # bytes in the archive
    size: int  # bytes once unpacked
    start: int  # of the bytes, in the file


def read_directory(file: ReadOnlyFile) -> dict[str, ArchiveMember]:
    """The members by name, in the order they lie there."""
    try:
        directory = _find_directory(file)
        entries = sorted(_entries(directory), key=lambda each: each.offset)
        members = [_member(file, entry) for entry in entries]
        _check_places(entries, members, directory.start)
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{file.name}: a zip archive that is damaged or was tampered with: {error}") from None
    found: dict[str, ArchiveMember] = {}
    for each in members:
        if found.setdefault(each.name, each) is not each:
            raise CheckpointError(f"{file.name}: the archive has two members {each.name!r:.80}: refused")
    return found


def check_sizes(
    file: ReadOnlyFile, members: Mapping[str, ArchiveMember], deflated: bool = False, room: int = 0
) -> None:
    """Refuse members that unpack to much more than the file weighs (room: how much more may be); or any packed ones."""
    total = sum(each.size for each in members.values())
    if total > EXPANSION * file.size + room:
        raise CheckpointError(
            f"{file.name}: {file.size:,} bytes that unpack to {total:,}: refused, weights do not compress so far "
            "(if it is honest, save it without compression)"
        )
    packed = next((each.name for each in members.values() if each.method != STORED), None)
    if packed is not None and not deflated:
        raise CheckpointError(f"{file.name}: {packed!r:.80} is compressed, which torch.save never does: refused")


def unpack(file: ReadOnlyFile, member: ArchiveMember, most: int = -1) -> bytes:
    """The bytes of a member, checked against its checksum; with `most`, only so many from its start, unchecked."""
    if 0 <= most < member.size:
        if member.method == STORED:
            return file.read(member.start, most)
        return _inflate(file, member, most)
    data = file.read(member.start, member.size) if member.method == STORED else _inflate(file, member, member.size)
    check(file, member, zlib.crc32(data))
    return data


def check(file: ReadOnlyFile, member: ArchiveMember, checksum: int) -> None:
    """The checksum of what was read against the one of the directory."""
    if member.checksum and checksum != member.checksum:  # torch may be told not to compute any: they are then 0
        raise CheckpointError(f"{file.name} is damaged: {member.name!r} does not match its checksum: get the file anew")


def _inflate(file: ReadOnlyFile, member: ArchiveMember, count: int) -> bytes:
    """The first bytes of a compressed member: never more than asked for, whatever it would unpack to."""
    complete = count == member.size
    packed = file.read(member.start, member.packed if complete else min(member.packed, 2 * count + 1024))
    machine = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        data = machine.decompress(packed, count + complete)  # one more than there should be would show a lie
        if complete and not machine.eof and len(data) == count:
            data += machine.decompress(machine.unconsumed_tail, 1)
    except zlib.error as error:
        raise CheckpointError(f"{file.name} is damaged: {member.name!r} cannot be unpacked ({error})") from None
    if complete and (len(data) != count or not machine.eof or machine.unused_data):
        raise CheckpointError(f"{file.name} is damaged: {member.name!r} does not unpack to {member.size:,} bytes")
    return data


class _Directory(NamedTuple):
    start: int
    entries: int
    data: bytes


class _Entry(NamedTuple):
    """What the directory says of a member."""

    name: bytes
    flags: int
    method: int
    checksum: int
    packed: int
    size: int
    offset: int


def _find_directory(file: ReadOnlyFile) -> _Directory:
    """The directory, which must end where the end record begins, which must end where the file does."""
    if file.size < _END.size:
        raise ValueError("it is cut short")
    end = file.size - _END.size
    tail = file.read(max(0, end - _LOCATOR.size), _END.size + _LOCATOR.size)
    mark, disk, first, here, count, size, start, comment = _END.unpack(tail[-_END.size :])
    if mark != b"PK\5\6" or comment:
        raise ValueError("its directory is missing: it is cut short, or something was appended")
    if disk or first or here != count:
        raise ValueError("it is one part of several")
    if tail[:4] == b"PK\6\7" and len(tail) == _END.size + _LOCATOR.size:
        _, disk, place, disks = _LOCATOR.unpack(tail[: _LOCATOR.size])
        end -= _LOCATOR.size + _END64.size
        if disk or disks > 1 or place != end:
            raise ValueError("its directory is not where it says")
        mark, length, _, _, disk, first, here64, count64, size64, start64 = _END64.unpack(file.read(place, _END64.size))
        small = [(count, count64, 0xFFFF), (size, size64, 0xFFFFFFFF), (start, start64, 0xFFFFFFFF)]
        if mark != b"PK\6\6" or length != _END64.size - 12 or disk or first or here64 != count64:
            raise ValueError("its directory is not where it says")
        if any(short not in (long, most) for short, long, most in small):
            raise ValueError("its two directories contradict each other")
        count, size, start = count64, size64, start64
    if start + size != end:
        raise ValueError("its directory is not where it says: something was put before or after it")
    if count > MOST_MEMBERS or size > LARGEST_DIRECTORY:
        raise ValueError(f"{count:,} members, at most {MOST_MEMBERS:,} are read")
    return _Directory(start, count, file.read(start, size))


def _entries(directory: _Directory) -> Iterator[_Entry]:
    """What the directory says of each member."""
    data, at = directory.data, 0
    for _ in range(directory.entries):
        (mark, _, _, flags, method, _, _, checksum, packed, size, *lengths, disk, _, _, offset) = _ENTRY.unpack_from(
            data, at
        )
        at += _ENTRY.size
        name = data[at : at + lengths[0]]
        extra = data[at + lengths[0] : at + lengths[0] + lengths[1]]
        at += sum(lengths)
        if mark != b"PK\1\2" or at > len(data) or disk:
            raise ValueError("its directory is broken")
        size, packed, offset = _widened(extra, size, packed, offset)
        yield _Entry(name, flags, method, checksum, packed, size, offset)
    if at != len(data):
        raise ValueError("its directory holds more than it says")


def _widened(extra: bytes, *values: int) -> list[int]:
    """Numbers that did not fit 32 bits stand in an extra field, in this order."""
    wide: Iterator[int] = iter(())
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            wide = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            break
        at += 4 + length
    widened = [next(wide, -1) if value == 0xFFFFFFFF else value for value in values]
    if min(widened) < 0:
        raise ValueError("a size is missing")
    return widened


def _member(file: ReadOnlyFile, entry: _Entry) -> ArchiveMember:
    """An entry of the directory, if the member's own header says the same."""
    if len(entry.name) > LONGEST_NAME:
        raise ValueError(f"a name of {len(entry.name):,} bytes")
    name = entry.name.decode()
    shown = f"{name!r:.80}"
    parts = name.replace("\\", "/").split("/")
    if not name.isprintable() or ".." in parts or "" in parts or ":" in parts[0]:
        raise ValueError(f"the name {shown}")
    if entry.flags & ~FLAGS:
        raise ValueError(f"{shown} is encrypted, or of an unusual kind (flags {entry.flags:#06x})")
    if entry.method not in (STORED, DEFLATED):
        raise ValueError(f"{shown} is compressed in an unusual way (method {entry.method})")
    if entry.method == STORED and entry.packed != entry.size:
        raise ValueError(f"{shown} has two sizes, {entry.packed:,} and {entry.size:,}")
    head = file.read(entry.offset, _LOCAL.size + len(entry.name))
    mark, _, flags, method, _, _, checksum, packed, size, length, extra = _LOCAL.unpack_from(head)
    if mark != b"PK\3\4" or head[_LOCAL.size :] != entry.name or length != len(entry.name):
        raise ValueError(f"{shown} is not where the directory says")
    unsaid = (0, 0xFFFFFFFF) if flags & DESCRIPTOR else (0xFFFFFFFF,)
    same = [(checksum, entry.checksum), (packed, entry.packed), (size, entry.size)]
    if (flags, method) != (entry.flags, entry.method) or any(a != b and a not in unsaid for a, b in same):
        raise ValueError(f"{shown} and the directory contradict each other")
    start = entry.offset + _LOCAL.size + length + extra
    return ArchiveMember(name, entry.method, entry.checksum, entry.packed, entry.size, start)


def _check_places(entries: list[_Entry], members: list[ArchiveMember], end: int) -> None:
    """From the first byte to the directory, one member after the other: none shares bytes, none hides any."""
    at, room = 0, 0
    for entry, member in zip(entries, members, strict=True):
        if not at <= entry.offset <= at + room:
            wrong = "overlaps another member" if entry.offset < at else "has hidden bytes before it"
            raise ValueError(f"{member.name!r:.80} {wrong}")
        at, room = member.start + member.packed, LARGEST_GAP
    if not at <= end <= at + room:
        raise ValueError("its directory overlaps a member, or hidden bytes stand before it")
