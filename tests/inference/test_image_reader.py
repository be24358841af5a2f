"""Images are read as the runtime wants them: bytes, pixels or whole images; what cannot be read comes in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inference.colours import ByteColours, Colours, reading, shades
from vitrail.errors import ImageError
from vitrail.inference import Named, predict, predictions


def broken(path: Path) -> Path:
    path.write_bytes(b"\x89PNG\r\n\x1a\n")
    return path


@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_a_runtime_that_takes_bytes_is_given_them(order: Any) -> None:
    images = shades(10)
    way = {"order": order, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}
    plain, compact = Colours(**way), ByteColours(**way)
    assert predict(compact, images, batch=4) == predict(plain, images, batch=4)
    assert [each.dtype for each in compact.given] == [np.uint8] * 3
    assert [each.shape for each in compact.given] == [(4, 16, 16, 3), (4, 16, 16, 3), (2, 16, 16, 3)]
    assert [each.dtype for each in plain.given] == [np.float32] * 3
    assert 4 * compact.given[0].nbytes == plain.given[0].nbytes
    for values, pixels in zip(compact.given, plain.given, strict=True):
        assert np.array_equal(compact.preprocess.normalise(values), pixels)


def test_images_of_other_ranges_go_as_pixels() -> None:
    deep = ByteColours(range=65535)
    predict(deep, [np.full((20, 20, 3), 40000, np.uint16)])
    assert [each.dtype for each in deep.given] == [np.float32]


def test_whole_images_go_one_by_one() -> None:
    """A runtime that resizes by itself is given each image as large as it is."""

    class Whole(ByteColours):
        takes = "images"

    dice = np.random.default_rng(0)
    images = [dice.integers(0, 256, (height, width, 3), np.uint8) for height, width in ((20, 30), (41, 17), (20, 30))]
    runtime = Whole(scaled_decoding=True)
    predict(runtime, images, batch=4)
    assert len(runtime.given) == 3
    for values, image in zip(runtime.given, images, strict=True):
        assert np.array_equal(values, image[None])
    grey = Whole(channels=1)
    predict(grey, [images[0]])
    assert np.array_equal(grey.given[0], np.asarray(Image.fromarray(images[0]).convert("L"))[None, :, :, None])


def test_an_image_that_cannot_be_read_comes_in_its_place(tmp_path: Path) -> None:
    given = [*shades(3), broken(tmp_path / "b.png"), *shades(4)]
    seen: list[str] = []
    with pytest.raises(ImageError, match="b.png"):
        seen.extend(each.path for each in predictions(Colours(), given, batch=8))
    assert seen == ["image 0", "image 1", "image 2"]
    assert reading() == []
    told: list[str] = []
    count: list[int] = []
    for batch in (1, 3, 8):
        told.clear()
        count.clear()
        found = list(
            predictions(Colours(), given, batch=batch, skip=lambda name, _: told.append(name), done=count.append)
        )
        assert [each.path for each in found] == [f"image {number}" for number in (0, 1, 2, 4, 5, 6, 7)]
        assert told == [str(tmp_path / "b.png")]
        assert sum(count) == 8


def test_an_image_that_was_not_even_found() -> None:
    given = [Named("a", shades(1)[0]), Named("clip", ImageError("clip: cut short")), Named("b", shades(1)[0])]
    with pytest.raises(ImageError, match="clip: cut short"):
        list(predictions(Colours(), given))
    told: list[tuple[str, str]] = []
    found = list(predictions(Colours(), given, skip=lambda name, error: told.append((name, str(error)))))
    assert [each.path for each in found] == ["a", "b"]
    assert told == [("clip", "clip: cut short")]
