"""The first bytes of a file -> whether they are those of an image, for files whose name does not say what they are."""

from __future__ import annotations

import re
from typing import Final

START: Final = 64  # bytes that tell

_STARTS: Final = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_NUMPY: Final = b"\x93NUMPY"
_NETPBM: Final = re.compile(rb"P[1-6Ff]\s+[#\d]")
_BRANDS: Final = re.compile(rb"avi[fs]|hei[cxms]|hev[cxms]|mif1|msf1")  # of files that may hold images or films
_BMP_HEADERS: Final = (12, 16, 40, 52, 56, 64, 108, 124)  # bytes that the headers of BMP files may have


def is_image_start(data: bytes) -> bool:
    """Whether a file that begins so is an image of a kind that is read here, whole or damaged."""
    if data.startswith((*_STARTS, _NUMPY)):
        return True
    if data[:4] == b"RIFF":
        return data[8:12] == b"WEBP"
    if data[4:8] == b"ftyp":
        return _BRANDS.match(data, 8) is not None
    if data[:2] == b"BM":
        return data[6:10] == b"\0\0\0\0" and int.from_bytes(data[14:18], "little") in _BMP_HEADERS
    return _NETPBM.match(data) is not None
