"""What the bytes of an image tell before any decoder sees them: their kind, how heavy their metadata is."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from vitrail.errors import ImageError

PARTS = 50_000  # chunks, markers, blocks or tags in front of the pixels; Pillow walks them in Python
SCANS = 64  # every scan of a progressive JPEG passes over the whole image; real files have about ten
SLOW_BYTES = 2**20  # what the decoders that Pillow wrote in Python chew in about a second

# Kinds people rename to .jpg, by their first bytes.
_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a git-LFS pointer, not the image itself: run 'git lfs pull'"),
    (b"%PDF", "a PDF document: export its page as PNG or JPEG"),
    (b"%!PS", "an EPS or PostScript file: export it as PNG or JPEG"),
    (b"\xc5\xd0\xd3\xc6", "an EPS file: export it as PNG or JPEG"),
    (b"8BPS", "a Photoshop file: export it as PNG or JPEG"),
    (b"SIMPLE  =", "a FITS file: convert it to TIFF or PNG"),
    (b"icns", "an Apple icon: convert it to PNG"),
    (b"\x00\x00\x01\x00", "a Windows icon: convert it to PNG"),
    (b"\x00\x00\x00\x0cjP  ", "JPEG 2000: convert it to JPEG or PNG"),
    (b"\xff\x4f\xff\x51", "JPEG 2000: convert it to JPEG or PNG"),
    (b"\x00\x00\x00\x0cJXL ", "JPEG XL: convert it to JPEG or PNG"),
    (b"\xff\x0a", "JPEG XL: convert it to JPEG or PNG"),
    (b"PK\x03\x04", "a zip archive: unpack it"),
    (b"\x1f\x8b", "a gzip file: unpack it"),
    (b"RIFF", "a RIFF file (sound or video), not WebP"),
)


def guess_format(data: bytes) -> str:
    """What bytes that no allowed decoder knows seem to be, and what to do about it."""
    for signature, what in _SIGNATURES:
        if data.startswith(signature):
            return f"it seems to be {what}"
    if data[4:8] == b"ftyp":
        return "it seems to be a video, or an image of a rare kind: convert it to JPEG or PNG"
    if not data.strip(b"\0"):
        return "it holds nothing but zero bytes: copy or download it again"
    text = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in text:
        return "it seems to be an SVG drawing: export it as PNG"
    if text.startswith((b"<!doctype html", b"<html", b"<head")):
        return "it seems to be a web page, not an image: the download went wrong"
    if text.startswith((b"<", b"{", b"[")) or text.translate(None, b"\r\n\t").decode("latin-1").isprintable():
        return "it seems to be text, not an image"
    return "its format is not known: convert it to PNG or JPEG"


def check_metadata(data: bytes, name: str, allowed_bytes: int) -> None:
    """Refuse bytes whose metadata would cost more time or memory than the image; reads headers only."""
    _weigh(_parts(data), name, allowed_bytes)
    if data.startswith(b"\xff\xd8") and _scans(data) > SCANS:
        raise ImageError(f"{name}: refused, a JPEG of more than {SCANS} scans: save it again as baseline JPEG")
    if len(data) > SLOW_BYTES and _decodes_slowly(data):
        raise ImageError(f"{name}: refused, a rare and slow kind of {data[:2].decode()} file: save it as PNG")


def check_pages(data: bytes, name: str, allowed_bytes: int) -> None:
    """The same of the frames behind the first, of the kinds whose frames have metadata of their own; and cut GIFs."""
    if data.startswith(b"GIF8"):
        try:
            _weigh(_gif(data, to_the_end=True), name, allowed_bytes)
        except IndexError:
            raise ImageError(f"{name}: damaged or cut short (its end is missing): copy or download it again") from None
    elif data[:2] in (b"II", b"MM"):
        with suppress(struct.error):  # cut short: the decoder will say so
            for start, _ in tiff_directories(data):
                _weigh(_tags(data, start), name, allowed_bytes)


def _weigh(sizes: Iterable[int], name: str, allowed_bytes: int) -> None:
    parts = weight = 0
    for size in sizes:
        parts, weight = parts + 1, weight + size
        if parts > PARTS or weight > allowed_bytes:
            raise ImageError(
                f"{name}: refused, metadata of over {allowed_bytes:,} bytes or {PARTS:,} parts: "
                "save the image again without metadata"
            )


def _scans(data: bytes) -> int:
    """How many scans a JPEG has up to its end; phones append videos, which do not count."""
    at = scans = 0
    for _ in range(PARTS):
        marker = _MARKER.search(data, at)
        if marker is None or marker[0] == b"\xff\xd9" or scans > SCANS:
            return scans
        scans += marker[0] == b"\xff\xda"
        at = marker.end()
        if marker[0] not in (b"\xff\xd8", b"\xff\x01"):  # these two have no length
            at += int.from_bytes(data[at : at + 2], "big")
    return SCANS + 1


def webp_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) in a WebP header: its decoder allocates the canvas before Pillow can be asked."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF


def orientation(exif: bytes) -> int:
    """The orientation (1 to 8) that an EXIF block asks for; 1 if it is absent or makes no sense."""
    try:
        for tag, kind, _, value, _ in tiff_entries(exif.removeprefix(b"Exif\0\0")):
            if tag == 0x0112 and kind == 3:
                return value if 1 <= value <= 8 else 1
    except (struct.error, IndexError):
        pass  # a broken block asks for nothing
    return 1


def _decodes_slowly(data: bytes) -> bool:
    """Plain or unusually scaled PPM and run-length BMP: Pillow reads these pixel by pixel in Python."""
    if data[:2] == b"BM":
        return data[30:34] in (b"\1\0\0\0", b"\2\0\0\0")
    if data[:1] == b"P" and data[1:2] in b"123456":
        header = b" ".join(line.partition(b"#")[0] for line in data[:4096].splitlines()[:16]).split()
        fast = header[3:4] == [b"255"] or (data[:2] == b"P5" and header[3:4] == [b"65535"])
        return data[:2] in (b"P1", b"P2", b"P3") or (data[:2] in (b"P5", b"P6") and not fast)
    return False


def _parts(data: bytes) -> Iterator[int]:
    """The weight in bytes of every piece of metadata that Pillow would read, in the order it reads them."""
    try:
        if data.startswith(b"\x89PNG"):
            yield from _png(data)
        elif data.startswith(b"\xff\xd8"):
            yield from _jpeg(data)
        elif data.startswith(b"GIF8"):
            yield from _gif(data)
        elif data[:2] in (b"II", b"MM"):
            yield from _tags(data)
        elif data[4:8] == b"ftyp":
            start = data.find(b"Exif\0\0")
            if start >= 0:
                yield from _tags(data[start + 6 :])
        elif data[:1] == b"P":
            yield from _comments(data)
    except (struct.error, IndexError):
        return  # cut short: the decoder will say so


def _png(data: bytes) -> Iterator[int]:
    at = 8
    while at + 8 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind = data[at + 4 : at + 8]
        if kind in (b"zTXt", b"iTXt", b"iCCP"):
            yield min(1000 * length, 2**20)  # compressed: weighed by what Pillow would let it unpack to
        else:
            yield 0 if kind in (b"IDAT", b"fdAT") else length
        if kind == b"IEND":
            return
        at += 12 + length


def _jpeg(data: bytes) -> Iterator[int]:
    at, exif = 2, b""
    while at < len(data):
        marker = data[at + 1]
        if data[at] != 0xFF or marker in (0x00, 0xFF):
            yield 1
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD9:
            yield 2
            at += 2
        elif marker == 0xDA:
            break
        else:
            (length,) = struct.unpack_from(">H", data, at + 2)
            yield length
            body = data[at + 4 : at + 2 + length]
            if marker == 0xE1 and body.startswith(b"Exif\0\0"):
                exif += body[6:]
            elif marker == 0xE2 and body.startswith(b"MPF\0"):
                yield from _tags(body[4:])
            at += 2 + max(length, 2)
    yield from _tags(exif)


def _gif(data: bytes, to_the_end: bool = False) -> Iterator[int]:
    at = 13 + _palette(data[10])
    comment = 0
    while data[at] != (0x3B if to_the_end else 0x2C):  # the last byte, or the first frame
        yield 1
        if data[at] not in (0x21, 0x2C) or (data[at] == 0x2C and not to_the_end):
            at += 1
            continue
        is_comment = data[at : at + 2] == b"\x21\xfe"
        is_frame = data[at] == 0x2C
        at += 11 + _palette(data[at + 9]) if is_frame else 2
        while data[at]:
            if is_comment:
                comment += data[at]
            if not is_frame:
                # Pillow joins comments block by block, so their cost grows as the square.
                yield data[at] + comment // 32
            at += 1 + data[at]
        at += 1


def _palette(flags: int) -> int:
    """Bytes of the colours that the flags of a GIF, or of a frame of it, announce."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _comments(data: bytes) -> Iterator[int]:
    """Lines of comment in a PPM header, which Pillow reads byte by byte."""
    at, tokens = 2, 0
    while tokens < 3 and at < len(data):
        if data[at : at + 1] == b"#":
            ends = [end for end in (data.find(b"\n", at), data.find(b"\r", at)) if end >= 0]
            end = min(ends, default=len(data))
            yield 64 * (end - at)
            at = end
        elif data[at : at + 1].isspace():
            yield 64
        elif not data[at + 1 : at + 2].isdigit():
            tokens += 1
        at += 1


def _tags(data: bytes, start: int | None = None) -> Iterator[int]:
    """The weight of every tag; any may point anywhere, so a small file of many can ask for gigabytes."""
    queue: list[int | None] = [start]
    seen: set[int | None] = set()
    while queue:
        at = queue.pop()
        if at in seen:
            continue
        seen.add(at)
        try:
            for tag, _, size, value, _ in tiff_entries(data, at):
                yield min(size, len(data))
                if tag in (0x8769, 0x8825, 0xA005):  # Exif, GPS and interoperability: Pillow follows them
                    queue.append(value)
        except struct.error:
            continue


_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)  # in a scan, ff00 and restarts are data
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}


# ---- directories of TIFF files, and of EXIF blocks, which are written the same way -------------------------------


def tiff_directories(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each directory stands and how many entries it has, one a page; struct.error where they are cut short."""
    order, pointer, number, width = _layout(data)
    (at,) = struct.unpack_from(order + pointer, data, 8 if pointer == "Q" else 4)
    seen: set[int] = set()
    while at and at not in seen and len(seen) <= PARTS:
        seen.add(at)
        (entries,) = struct.unpack_from(order + number, data, at)
        yield at, entries
        (at,) = struct.unpack_from(order + pointer, data, at + struct.calcsize(order + number) + entries * width)


def tiff_entries(data: bytes, start: int | None = None) -> Iterator[tuple[int, int, int, int, int]]:
    """(tag, type, bytes, first value or offset, where the values stand) of one directory, or of the first; struct.error
    where it is cut short, nothing where there is none.
    """
    if data[:2] not in (b"II", b"MM"):
        return
    order, pointer, number, width = _layout(data)
    if start is None:
        (start,) = struct.unpack_from(order + pointer, data, 8 if pointer == "Q" else 4)
    (entries,) = struct.unpack_from(order + number, data, start)
    start += struct.calcsize(order + number)
    for at in range(start, start + entries * width, width):
        tag, kind, count = struct.unpack_from(f"{order}HH{pointer}", data, at)
        size, inline = count * _TYPE_BYTES.get(kind, 0), struct.calcsize(order + pointer)
        at += 4 + inline
        (value,) = struct.unpack_from(order + ("H" if kind == 3 else pointer), data, at)
        (place,) = (at,) if size <= inline else struct.unpack_from(order + pointer, data, at)
        yield tag, kind, size, value, place


def _layout(data: bytes) -> tuple[str, str, str, int]:
    """Order of bytes, how places and counts of entries are packed, and how long an entry is."""
    order = "<" if data[:2] == b"II" else ">"
    return (order, "Q", "Q", 20) if data[2:4] in (b"\x2b\0", b"\0\x2b") else (order, "I", "H", 12)
