"""From a file to pixels, the only way there is: formats and headers, decoding under limits, bands, Preprocess.

numpy and Pillow only.
"""

from __future__ import annotations

from vitrail.images.bands import Bands
from vitrail.images.colours import BACKGROUND
from vitrail.images.decoding import (
    DEFAULT_LIMITS,
    FORMATS,
    Limits,
    decode,
    decode_bands,
    describe,
    describe_bands,
    upright_size,
)
from vitrail.images.preprocess import (
    Preprocess,
    Resample,
    check_image_list,
    check_image_stream,
    resize_crop_only,
    resize_then_crop,
)
from vitrail.types import Source

__all__ = [
    "BACKGROUND",
    "DEFAULT_LIMITS",
    "FORMATS",
    "Bands",
    "Limits",
    "Preprocess",
    "Resample",
    "Source",
    "check_image_list",
    "check_image_stream",
    "decode",
    "decode_bands",
    "describe",
    "describe_bands",
    "resize_crop_only",
    "resize_then_crop",
    "upright_size",
]
