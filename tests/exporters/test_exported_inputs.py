"""Exported files: what their graph is given, and how their runtime is asked; with stand-ins, so nothing is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.export_infos import Array, contents
from vitrail.errors import InputError
from vitrail.exporters.export_info import ExportInfo
from vitrail.exporters.exported import Exported
from vitrail.images import Preprocess


def opened(given: ExportInfo) -> tuple[Exported, list[Array]]:
    """A file whose graph keeps what it is given."""
    seen: list[Array] = []

    def compute(img: Array, outputs: Any) -> list[Array]:
        seen.append(img)
        return [np.zeros((len(img), 2)), np.zeros((len(img), 3))]

    return Exported(Path("a.onnx"), given, compute), seen


VALUES = np.random.default_rng(0).integers(0, 256, (2, 8, 16, 3), np.uint8)


# ---- what the graph is given -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_pixels_go_back_to_the_bytes_they_were_made_of(order: Any) -> None:
    preprocess = Preprocess(size=(8, 16), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), order=order)
    runtime, seen = opened(contents(preprocess, pixels="bytes"))
    runtime.run(preprocess.normalise(VALUES))
    runtime.run_uint8(VALUES)
    assert [each.dtype for each in seen] == [np.uint8] * 2
    assert np.array_equal(seen[0], VALUES)
    assert np.array_equal(seen[1], VALUES)


def test_pixels_that_were_no_bytes_are_refused() -> None:
    runtime, seen = opened(contents(pixels="bytes"))
    pixels = runtime.preprocess.normalise(VALUES)
    for wrong in (pixels + 0.3 / 255, np.where(pixels == pixels.max(), pixels + 9, pixels), pixels * np.nan):
        with pytest.raises(InputError, match="takes 8-bit values, and these pixels are none that were normalised"):
            runtime.run(wrong.astype(np.float32))
    assert seen == []


def test_bytes_are_normalised_for_a_graph_of_pixels() -> None:
    runtime, seen = opened(contents())
    logits, embedding = runtime.run_uint8(VALUES)
    assert np.array_equal(seen[0], runtime.preprocess.normalise(VALUES))
    assert (logits.dtype, embedding.dtype) == (np.float32, np.float32)
    assert seen[0].flags.c_contiguous
    for wrong in (VALUES[0], VALUES[..., :2], VALUES[:0], VALUES.astype(np.int16), [1]):
        with pytest.raises(InputError, match=r"expected (values \(B, H, W, 3\)|8-bit values)"):
            runtime.run_uint8(wrong)  # type: ignore[arg-type]


def test_sides_are_multiples_of_a_patch() -> None:
    fixed, _ = opened(contents())
    free, seen = opened(contents(dynamic_size=True))
    for height, width in ((8, 16), (4, 8), (12, 8), (4, 40)):
        free.run(np.zeros((1, 3, height, width), np.float32))
    assert [each.shape[2:] for each in seen] == [(8, 16), (4, 8), (12, 8), (4, 40)]
    for height, width in ((6, 8), (8, 12), (8, 4), (2, 8), (0, 8)):
        with pytest.raises(InputError, match=f"multiples of 4x8 pixels, got {height}x{width}"):
            free.run(np.zeros((1, 3, height, width), np.float32))
    with pytest.raises(InputError, match="takes images of 8x16 only, got 16x8"):
        fixed.run(np.zeros((1, 3, 16, 8), np.float32))


def test_a_graph_that_resizes_takes_full_images() -> None:
    runtime, seen = opened(contents(pixels="bytes", resize_inside=True))
    whole = np.zeros((1, 51, 37, 3), np.uint8)
    runtime.run_uint8(whole)
    assert np.array_equal(seen[0], whole)
    with pytest.raises(InputError, match="resizes and crops by itself, so it takes whole images"):
        runtime.run(np.zeros((1, 3, 8, 16), np.float32))
