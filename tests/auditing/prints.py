"""Fingerprints of images in memory, and which of them are alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from vitrail.auditing.duplicates import Near, find_duplicates
from vitrail.auditing.fingerprints import Fingerprints, fingerprint


def prints_of(images: list[Image.Image]) -> Fingerprints:
    return fingerprint([np.asarray(each) for each in images])  # type: ignore[arg-type]


def rows_of(prints: Fingerprints, near: Near | None = None) -> list[tuple[int, ...]]:
    return [each.rows for each in find_duplicates(prints, near)]


def bits_apart(one: Any, other: Any) -> int:
    return int(one ^ other).bit_count()
