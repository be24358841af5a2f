"""ViewStore: the views of images that are decoded once, the same bits as Views that read them alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.data import Dataset, Sample, scan
from vitrail.data.cache import Views, with_margin
from vitrail.data.view_store import ViewStore
from vitrail.errors import ImageError, InputError
from vitrail.images import Preprocess

COUNT = 9


@pytest.fixture
def images(tmp_path: Path) -> Dataset:
    """Photos of several shapes, one in grey, one transparent, one lying on its side."""
    dice = np.random.default_rng(7)
    paths = []
    for row in range(COUNT):
        pixels = dice.integers(0, 256, (20 + 3 * row, 44 - 2 * row, 3), np.uint8)
        image = Image.fromarray(pixels)
        image = image.convert("L") if row == 3 else image.convert("RGBA") if row == 4 else image
        turned = Image.Exif()
        turned[0x0112] = 6 if row == 5 else 1
        path = tmp_path / (f"{row}.png" if row in (3, 4) else f"{row}.jpg")
        image.save(path, exif=turned)
        paths.append(path)
    samples = tuple(Sample(path.name, ("a",), "train") for path in paths)
    return Dataset("set", samples, paths, ("a",))


def stored(images: Dataset, *wanted: tuple[Preprocess, list[int]], **more: Any) -> ViewStore:
    store = ViewStore([each.name for each in images.samples], wanted, **more)
    scan(images, store=store)
    return store


@pytest.mark.parametrize("resize", ["crop", "squash", "pad"])
@pytest.mark.parametrize("channels", [1, 3])
def test_views_of_a_store_are_those_that_are_read_alone(images: Dataset, resize: Any, channels: int) -> None:
    preprocess = Preprocess(size=(16, 24), resize=resize, crop=1.0, channels=channels, mean=0.5, std=0.5)
    rows = list(range(COUNT))
    store = stored(images, (preprocess, rows), (with_margin(preprocess, 1.25), rows))
    measured = Preprocess.from_dict(preprocess.to_dict() | {"mean": [0.1, 0.7, 0.3][:channels], "std": 0.2})
    for margin in (1.0, 1.25):
        for now in (preprocess, measured):  # bars have the colour of the mean, which is known only later
            views = Views(images, now, margin=margin, store=store)
            assert views.get(rows).equal(Views(images, now, margin=margin).get(rows))


def test_bands_of_their_own_range_are_kept_too() -> None:
    tiles = np.random.default_rng(0).integers(0, 60_000, (6, 14, 20, 5), np.uint16)
    data = Dataset("tiles", tuple(Sample(str(row), ("a",)) for row in range(6)), tiles, ("a",))
    preprocess = Preprocess(size=12, resize="pad", crop=1.0, channels=5, range=65535.0, mean=0.4, std=0.2)
    store = stored(data, (preprocess, list(range(6))))
    brighter = replace(preprocess, mean=(0.5, 0.6, 0.7, 0.8, 0.9))
    for now in (preprocess, brighter):
        assert Views(data, now, store=store).get(range(6)).equal(Views(data, now).get(range(6)))


def test_a_part_of_the_images_reads_only_what_is_missing(images: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    preprocess = Preprocess(size=16)
    store = stored(images, (preprocess, [1, 2, 7]))
    expected = Views(images, preprocess).get([7, 8, 1])
    for row in (1, 7):
        Path(images.images[row]).unlink()  # they are needed no more
    part = images.select([7, 8, 1])
    assert Views(part, preprocess, store=store).get(range(3)).equal(expected)
    Path(images.images[8]).unlink()  # read by then
    assert Views(part, preprocess, store=store).get(range(3)).equal(expected)


def test_what_is_not_wanted_or_too_large_is_not_kept(images: Dataset) -> None:
    preprocess, rows = Preprocess(size=16), list(range(COUNT))
    needed = COUNT * 3 * 16 * 16
    assert stored(images, (preprocess, rows), limit=needed).find(preprocess) is not None
    assert stored(images, (preprocess, rows), limit=needed - 1).find(preprocess) is None
    assert stored(images, (preprocess, [])).find(preprocess) is None
    assert stored(images, (preprocess, rows)).find(replace(preprocess, size=(17, 17))) is None
    scaled = replace(preprocess, scaled_decoding=True)
    assert stored(images, (scaled, rows)).find(scaled) is None  # other bits than a whole image gives
    store = stored(images, (preprocess, rows))
    store.clear()
    assert store.find(preprocess) is None


def test_a_damaged_image_leaves_no_view(images: Dataset) -> None:
    path = Path(images.images[2])
    path.write_bytes(path.read_bytes()[:200])
    store = ViewStore([each.name for each in images.samples], [(Preprocess(size=16), list(range(COUNT)))])
    scanned = scan(images, store=store)
    assert [name for name, _ in scanned.bad] == ["2.jpg"]
    found = store.find(Preprocess(size=16))
    assert found is not None
    assert found.made.tolist() == [row != 2 for row in range(COUNT)]
    with pytest.raises(ImageError, match="damaged or cut short"):
        store.add(2, path)


def test_views_not_made_are_made_by_any_number_of_threads(images: Dataset) -> None:
    preprocess, rows = Preprocess(size=16), list(range(COUNT))
    expected = Views(images, preprocess).get(rows)
    for threads in (1, 2, 20):
        store = ViewStore([each.name for each in images.samples], [(preprocess, rows)])
        views = Views(images, preprocess, store=store, threads=threads)
        assert views.get([4]).equal(expected[[4]])
        assert views.get([5, 3, 5, 4]).equal(expected[[5, 3, 5, 4]])
        assert views.get(rows).equal(expected)
    store = ViewStore([each.name for each in images.samples], [(preprocess, rows)])
    views = Views(images, preprocess, store=store, threads=2)
    views.make_all()
    path = Path(images.images[6])
    path.write_bytes(path.read_bytes()[:200])
    assert views.get(rows).equal(expected)
    store = ViewStore([each.name for each in images.samples], [(preprocess, rows)])
    with pytest.raises(InputError, match="6.jpg: damaged or cut short"):
        Views(images, preprocess, store=store, threads=4).get(rows)
