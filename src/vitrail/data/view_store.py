"""ViewStore: views (C, H, W) made while the scan has an image decoded, so that Views need not decode it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from vitrail.images import Preprocess, decode, decode_bands
from vitrail.images.file_bytes import FileBytes
from vitrail.types import Array

LIMIT: Final = 2 * 2**30  # bytes of one kind of view held in memory


class StoredViews:
    """All views that one Preprocess gives, a row for every image of the data set; those not `made` are zero."""

    def __init__(self, preprocess: Preprocess, wanted: Array, rows: Mapping[str, int], sizes: Array) -> None:
        shape = (len(wanted), preprocess.channels, *preprocess.size)
        self.preprocess = preprocess
        self.wanted = wanted  # (n,) bool
        self.made = np.zeros(len(wanted), bool)  # (n,)
        self.views = np.zeros(shape, view_dtype(preprocess))  # (n, C, H, W)
        self.rows = rows  # by the name of the sample
        self.sizes = sizes  # (n, 2): height and width of each image

    def add(self, row: int, source: Path | FileBytes | Array) -> None:
        """Decode an image and keep its view, so that it is decoded once."""
        decoded = _decoded(source, self.preprocess)
        self.put(row, decoded)
        self.sizes[row] = _size_of(decoded)

    def put(self, row: int, decoded: Any) -> None:
        """Keep the view of a decoded image."""
        self.views[row] = view_of(decoded, self.preprocess)
        self.made[row] = True  # last: another thread may be waiting for it


class ViewStore:
    """Views by the name of their image; what would take more than `limit` bytes is not kept.

    `wanted` gives the rows of which a Preprocess will be asked for. Those decoded at a part of their size are left
    out: they are other bits than a whole image gives.
    """

    def __init__(
        self, names: Sequence[str], wanted: Iterable[tuple[Preprocess, Sequence[int]]], *, limit: int = LIMIT
    ) -> None:
        self._rows = {name: row for row, name in enumerate(names)}
        self._sizes = np.zeros((len(names), 2), np.int64)  # (height, width)
        self._kinds: dict[Preprocess, StoredViews] = {}
        for preprocess, rows in wanted:
            view_bytes = preprocess.channels * np.prod(preprocess.size) * view_dtype(preprocess).itemsize
            if rows and not preprocess.scaled_decoding and len(rows) * view_bytes <= limit:
                mask = np.zeros(len(names), bool)
                mask[list(rows)] = True
                self._kinds[_kind_of(preprocess)] = StoredViews(preprocess, mask, self._rows, self._sizes)

    def add(self, row: int, source: Path | FileBytes | Array) -> tuple[int, int] | None:
        """Decode an image, once, and keep its views; gives its height and width. An ImageError leaves nothing.

        None where no view of it will be asked for.
        """
        wanted = [kind for kind in self._kinds.values() if kind.wanted[row]]
        if not wanted:
            return None
        decoded = _decoded(source, wanted[0].preprocess)  # the kinds differ in size alone
        size = _size_of(decoded)
        for kind in wanted:
            kind.put(row, decoded)
        self._sizes[row] = size
        return size

    def find(self, preprocess: Preprocess) -> StoredViews | None:
        """The views that a Preprocess gives, as far as they were made; None where they were not wanted."""
        kind = self._kinds.get(_kind_of(preprocess))
        if kind is None:
            return None
        bars_differ = (preprocess.mean, preprocess.order) != (kind.preprocess.mean, kind.preprocess.order)
        if preprocess.resize == "pad" and bars_differ:
            for row in np.flatnonzero(kind.made):  # bars have the mean's colour, and that was measured since
                seen = kind.views[row].transpose(1, 2, 0)  # (H, W, C)
                kind.views[row] = preprocess.with_bars(seen, *self._sizes[row].tolist()).transpose(2, 0, 1)
        kind.preprocess = preprocess
        return kind

    def clear(self) -> None:
        """Let go of all views that nobody holds."""
        self._kinds.clear()


def view_of(source: Any, preprocess: Preprocess) -> Array:
    """What the network sees of an image before normalisation: (C, H, W), 8-bit, or float32 of other bands."""
    seen = np.asarray(preprocess.visible_image(source)) if preprocess.is_8bit else preprocess.array(source)
    return seen[None] if seen.ndim == 2 else seen.transpose(2, 0, 1)


def view_dtype(preprocess: Preprocess) -> np.dtype[Any]:
    """Of its views."""
    return np.dtype(np.uint8 if preprocess.is_8bit else np.float32)


def _size_of(decoded: Any) -> tuple[int, int]:
    """(height, width) of what `_decoded` gives."""
    if isinstance(decoded, np.ndarray):
        return int(decoded.shape[0]), int(decoded.shape[1])
    return decoded.height, decoded.width


def _decoded(source: Path | FileBytes | Array, preprocess: Preprocess) -> Any:
    """An image as the Preprocess decodes it, whole and upright; taking it again changes nothing."""
    if preprocess.is_8bit:
        return decode(source, "L" if preprocess.channels == 1 else "RGB")
    return decode_bands(source, preprocess.channels, preprocess.range)


def _kind_of(preprocess: Preprocess) -> Preprocess:
    """The same for all that differ in the normalisation alone, which comes after the view."""
    return replace(preprocess, mean=(0.0,) * preprocess.channels, std=(1.0,) * preprocess.channels, order="RGB")
