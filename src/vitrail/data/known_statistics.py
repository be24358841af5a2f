"""Mean and deviation of images that were measured before: looked up by the very bytes and the very preprocessing."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from vitrail.data.known_images import FORMAT, decoder
from vitrail.data.statistics import BandStatistics
from vitrail.files import atomic_write, cache_folder
from vitrail.images import Preprocess
from vitrail.types import Array

MOST: Final = 200  # measurements that are remembered


def recall_statistics(digests: Array, preprocess: Preprocess, measure: Callable[[], BandStatistics]) -> BandStatistics:
    """What `measure` gave for images of these digests (n, 32), in this order, seen this way; else what it gives now."""
    folder = cache_folder()
    if folder is None:
        return measure()
    path = folder / "statistics.json"
    seen_as = json.dumps([FORMAT, decoder(), preprocess.to_dict()])
    key = hashlib.sha256(seen_as.encode() + digests.tobytes()).hexdigest()
    known = _read(path)
    if key in known and (found := _statistics(known[key], preprocess.channels)) is not None:
        return found
    measured = measure()
    known.pop(key, None)
    kept = {**dict(list(known.items())[1 - MOST :]), key: [measured.mean, measured.std]}
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps({"check": _check(kept), "known": kept}), encoding="utf-8")
    return measured


def _read(path: Path) -> dict[str, Any]:
    """What was measured; nothing where the file is not whole."""
    try:
        plain = json.loads(path.read_text("utf-8"))
        known = plain["known"]
        return known if isinstance(known, dict) and plain["check"] == _check(known) else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _check(known: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def _statistics(values: Any, channels: int) -> BandStatistics | None:
    """Mean and deviation as they were written; None where they are none."""
    try:
        mean, std = (tuple(map(float, each)) for each in values)
    except (TypeError, ValueError):
        return None
    whole = len(mean) == len(std) == channels and all(map(math.isfinite, (*mean, *std))) and min(std) > 0
    return BandStatistics(mean, std) if whole else None
