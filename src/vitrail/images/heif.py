"""The bytes of a HEIC image, as phones write them -> a Pillow image with its header read, by the extra `heif`.

The file says itself how it is turned and cut, and the library does both; what its EXIF block says of that is unread.
"""

from __future__ import annotations

import io
from typing import Any

from PIL import ImageFile

from vitrail.errors import ImageError, is_missing, not_loading

BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}  # HEVC inside; AVIF is Pillow's own
EXTRA = "reading it needs pillow-heif: pip install 'vitrail[heif]'"


def is_heif(data: bytes) -> bool:
    """Whether the first bytes name HEIC among the kinds that the file is written for."""
    if data[4:8] != b"ftyp":
        return False
    end = max(16, min(int.from_bytes(data[:4], "big"), 256, len(data)))
    brands = {data[8:12], *(data[at : at + 4] for at in range(16, end, 4))}
    return bool(brands & BRANDS)


def open_heif(data: bytes, name: str) -> ImageFile.ImageFile:
    """The main image of the file, its header read and nothing decoded."""
    try:
        import pillow_heif
    except (Exception, SystemExit) as error:  # half an installation raises anything
        todo = EXTRA if is_missing(error, "pillow_heif") else not_loading("pillow-heif", error)
        raise ImageError(f"{name} is a HEIC image: {todo}") from error
    # One of overlaid images says nothing of how many are decoded for it; no camera writes it.
    if b"iovl" in data[:65_536]:
        raise ImageError(f"{name}: refused, a HEIC image laid together from others: save it as PNG or JPEG")
    opener: Any = pillow_heif.HeifImageFile  # which carries no types; not registered: Pillow stays as it is elsewhere
    image: ImageFile.ImageFile = opener(io.BytesIO(data))
    return image


def coded_size(image: ImageFile.ImageFile) -> tuple[int, int]:
    """(width, height) of all that is decoded for the image: of one in tiles, the tiles together."""
    tiles = image.info.get("tiling")
    if not tiles:
        return image.size
    return tiles["num_columns"] * tiles["tile_width"], tiles["num_rows"] * tiles["tile_height"]
