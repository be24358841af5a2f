"""A stream of JPEGs, one after another (MJPEG), in; the bytes of each image out. Nothing is decoded.

An image ends where its segments say: bytes that look like an end within a segment (a thumbnail) are no end. Between
images there may be a little else, such as the lines that web cameras send.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from vitrail.errors import ImageError, InputError

GAP: Final = 64 * 1024  # bytes between images, at most
_CHUNK: Final = 64 * 1024
_START: Final = b"\xff\xd8\xff"
_ALONE: Final = (0x01, *range(0xD0, 0xD8))  # markers without a length
_END, _SCAN = 0xD9, 0xDA
_AFTER_SCAN: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)  # in a scan, ff00 and restarts are data

Read = Callable[[int], bytes]  # at most so many bytes; none at the end


def split_jpegs(read: Read, name: str, most_bytes: int) -> Iterator[bytes]:
    """The images of a stream one by one; one that is cut, damaged or larger than `most_bytes` is an ImageError."""
    stream = _Stream(read, name, most_bytes)
    while stream.start():
        yield stream.image()
    if not stream.number:
        raise ImageError(f"{name}: no JPEG in it")


class _Stream:
    """What was read and not yet given out, and where in it the next image ends."""

    def __init__(self, read: Read, name: str, most_bytes: int) -> None:
        self._read = read
        self._name = name
        self._most = most_bytes
        self._data = bytearray()
        self.number = 0  # images given out

    def start(self) -> bool:
        """Leave out what stands before the next image; False where there is none."""
        skipped = 0
        while True:
            at = self._data.find(_START)
            if at >= 0:
                del self._data[:at]
                return True
            gone = max(0, len(self._data) - len(_START) + 1)
            del self._data[:gone]
            skipped += gone
            if skipped > GAP:
                raise ImageError(f"{self._name}: no JPEG begins in {GAP:,} bytes before frame {self.number}")
            if not self._more():
                return False

    def image(self) -> bytes:
        """The image that starts here."""
        end = self._end()
        found = bytes(self._data[:end])
        del self._data[:end]
        self.number += 1
        return found

    def _end(self) -> int:
        at = 2
        while True:
            self._need(at + 2)
            if self._data[at] != 0xFF:
                raise ImageError(f"{self._name}: frame {self.number} is damaged: a segment ends in the wrong place")
            marker = self._data[at + 1]
            if marker == 0xFF:  # any number of them may stand before a marker
                at += 1
                continue
            at += 2
            if marker == _END:
                return at
            if marker in _ALONE:
                continue
            self._need(at + 2)
            length = int.from_bytes(self._data[at : at + 2], "big")
            if length < 2 or marker in (0x00, 0xD8):
                raise ImageError(f"{self._name}: frame {self.number} is damaged: no segment stands where one should")
            at += length
            if marker == _SCAN:
                at = self._after_scan(at)

    def _after_scan(self, at: int) -> int:
        self._need(at)
        while True:
            found = _AFTER_SCAN.search(self._data, at)
            if found is not None:
                return found.start()
            at = max(at, len(self._data) - 1)  # the last byte may be half a marker
            self._need(len(self._data) + 1)

    def _need(self, length: int) -> None:
        while len(self._data) < length:
            if length > self._most:
                raise ImageError(
                    f"{self._name}: refused, frame {self.number} is larger than {self._most:,} bytes: "
                    "shrink it, or raise Limits.file_bytes"
                )
            if not self._more():
                raise ImageError(f"{self._name}: cut short, the stream ends within frame {self.number}")

    def _more(self) -> bool:
        piece = self._read(_CHUNK)
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise InputError(
                f"{self._name}: expected bytes, got {type(piece).__name__}: open it in binary mode, and blocking"
            )
        self._data += piece
        return len(piece) > 0
