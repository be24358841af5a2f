"""Views: the same bytes as Preprocess gives, however they are read; and pixels with the same bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import get_worker_info

from vitrail.data.cache import Views, normalise
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import InputError, VitrailError
from vitrail.images import Preprocess

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

PREPROCESSES = {
    "colour": Preprocess(size=24, mean=MEAN, std=STD),
    "blue first": Preprocess(size=24, mean=MEAN[::-1], std=STD[::-1], order="BGR"),
    "grey": Preprocess(size=24, channels=1, mean=0.2860, std=0.3530),
    "squash": Preprocess(size=(20, 28), resize="squash", crop=1.0),
    "pad": Preprocess(size=24, resize="pad", crop=1.0, mean=MEAN, std=STD),
    "sharp": Preprocess(size=24, interpolation="bilinear", antialias=False),
}


def dataset_of(images: Sequence[Path] | np.ndarray, source: str = "set") -> Dataset:
    names = [str(each) if isinstance(each, Path) else f"{row}" for row, each in enumerate(images)]
    return Dataset(source, tuple(Sample(name, ("a",)) for name in names), images, ("a",))


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """More than two chunks of images of all sizes and kinds."""
    found = []
    for row in range(37):
        path = tmp_path / f"{row}.{'jpg' if row % 3 == 0 else 'png'}"
        values = noise(20 + row, 60 - row, 3, seed=row)
        Image.fromarray(values[:, :, 0] if row % 5 == 0 else values).save(path)
        found.append(path)
    return found


def bits(pixels: Any) -> np.ndarray:
    return np.asarray(pixels).view(np.int32)


# ---- the same as Preprocess --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PREPROCESSES)
@pytest.mark.parametrize("limit", [1 << 30, 0])
def test_normalised_views_have_the_bits_of_preprocess(files: list[Path], name: str, limit: int) -> None:
    preprocess = PREPROCESSES[name]
    views = Views(dataset_of(files), preprocess, limit=limit)
    rows = np.array([5, 0, 36, 5])
    pixels = normalise(views.get(rows), preprocess)
    assert pixels.dtype == torch.float32
    np.testing.assert_array_equal(bits(pixels), bits(preprocess.batch([files[row] for row in rows])))


@pytest.mark.parametrize("name", PREPROCESSES)
def test_views_are_the_bytes_of_the_view(files: list[Path], name: str) -> None:
    preprocess = PREPROCESSES[name]
    views = Views(dataset_of(files), preprocess)
    seen = views.get(range(len(files)))
    assert seen.dtype == torch.uint8
    assert (views.held, len(views)) == (True, 37)
    for row, path in enumerate(files):
        expected = np.asarray(preprocess.visible_image(path))
        expected = expected[None] if expected.ndim == 2 else expected.transpose(2, 0, 1)
        np.testing.assert_array_equal(seen[row], expected)


@pytest.mark.fault("T13")
@pytest.mark.parametrize("threads, workers", [(0, 0), (3, 0), (1, 1), (1, 2)])
def test_t13_threads_and_processes_read_the_same(files: list[Path], threads: int, workers: int) -> None:
    preprocess = PREPROCESSES["colour"]
    expected = np.stack([np.asarray(preprocess.visible_image(path)).transpose(2, 0, 1) for path in files])
    before = torch.get_rng_state()
    views = Views(dataset_of(files), preprocess, threads=threads, workers=workers)
    np.testing.assert_array_equal(views.get(range(37)), expected)
    assert torch.equal(torch.get_rng_state(), before)  # else dropout would depend on the workers


def test_a_margin_gives_larger_views_of_the_same_frame(files: list[Path]) -> None:
    preprocess = Preprocess(size=(24, 32), resize="squash", crop=1.0)
    views = Views(dataset_of(files), preprocess, margin=1.25)
    assert views.shape == (3, 30, 40)
    expected = np.asarray(Image.open(files[1]).resize((40, 30), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    np.testing.assert_array_equal(views.get([1])[0], expected)
    with pytest.raises(InputError, match=r"views: expected \('B', 3, 24, 32\), got \(1, 3, 30, 40\)"):
        normalise(views.get([1]), preprocess)


def test_get_hands_out_copies(files: list[Path]) -> None:
    views = Views(dataset_of(files), PREPROCESSES["grey"])
    first = views.get([3])
    first.zero_()
    assert views.get([3]).any()
    floats = views.get([4]).float()
    kept = floats.clone()
    assert not torch.equal(normalise(floats, PREPROCESSES["grey"]), kept)
    assert torch.equal(floats, kept)


# ---- arrays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, channels, order, fast",
    [
        ((40, 28, 28), 1, "RGB", True),
        ((40, 28, 28, 1), 1, "RGB", True),
        ((40, 28, 28), 3, "RGB", True),
        ((40, 28, 28, 3), 3, "RGB", True),
        ((40, 28, 28, 3), 3, "BGR", True),
        ((40, 28, 28, 3), 1, "RGB", False),  # grey has to be computed
        ((40, 28, 28, 4), 3, "RGB", False),  # so has transparency
        ((40, 28, 30), 1, "RGB", False),
    ],
)
def test_arrays_of_the_right_size_are_not_decoded(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], channels: int, order: str, fast: bool
) -> None:
    images = noise(*shape)
    preprocess = Preprocess(size=28, crop=1.0, channels=channels, order=order)  # type: ignore[arg-type]
    expected = preprocess.batch(list(images))
    looked: list[int] = []
    visible_image = Preprocess.visible_image

    def counted(self: Preprocess, source: Any) -> Any:
        looked.append(1)
        return visible_image(self, source)

    monkeypatch.setattr(Preprocess, "visible_image", counted)
    views = Views(dataset_of(images), preprocess)
    rows = np.array([39, 1, 1, 7])
    np.testing.assert_array_equal(bits(normalise(views.get(rows), preprocess)), bits(expected[rows]))
    assert len(looked) == (1 if fast else 40)


@pytest.mark.parametrize("crop, size", [(0.9, 28), (1.0, 24)])
def test_arrays_that_a_view_changes_are_decoded(crop: float, size: int) -> None:
    images = noise(5, 28, 28)
    preprocess = Preprocess(size=size, crop=crop, channels=1)
    views = Views(dataset_of(images), preprocess)
    np.testing.assert_array_equal(
        bits(normalise(views.get(range(5)), preprocess)), bits(preprocess.batch(list(images)))
    )


def test_large_arrays_are_not_copied() -> None:
    images = noise(6, 12, 12, 3)
    views = Views(dataset_of(images), Preprocess(size=12, crop=1.0), limit=0)
    assert views.held
    images[2] = 7
    assert views.get([2]).eq(7).all()


# ---- what cannot be read -----------------------------------------------------------------------------------------


@pytest.mark.fault("T16")
@pytest.mark.parametrize("threads, workers", [(1, 0), (3, 0), (1, 2)])
def test_t16_bad_files_are_errors_by_name(files: list[Path], threads: int, workers: int) -> None:
    for row in (3, 20, 21):
        files[row].write_bytes(files[row].read_bytes()[:60])
    with pytest.raises(InputError, match=r"/3\.jpg: damaged or cut short"):
        Views(dataset_of(files), PREPROCESSES["colour"], threads=threads, workers=workers)
    views = Views(dataset_of(files), PREPROCESSES["colour"], limit=0)
    assert views.get([19, 22]).any()
    with pytest.raises(InputError, match=r"/20\.png"):
        views.get([19, 20])


def test_images_in_memory_outlive_their_files_and_others_do_not(files: list[Path]) -> None:
    held = Views(dataset_of(files), PREPROCESSES["colour"])
    size = 37 * 3 * 24 * 24
    assert Views(dataset_of(files), PREPROCESSES["colour"], limit=size).held
    read = Views(dataset_of(files), PREPROCESSES["colour"], limit=size - 1)
    assert not read.held
    expected = held.get([8])
    assert torch.equal(read.get([8]), expected)
    files[8].unlink()
    assert torch.equal(held.get([8]), expected)
    with pytest.raises(InputError, match=r"/8\.png: no such file"):
        read.get([8])


def test_arrays_that_cannot_be_read_are_named() -> None:
    images = noise(3, 12, 12).astype(np.float32)
    with pytest.raises(InputError, match=r"set, 0: float32 array of shape \(12, 12\): values 0 to 249, expected"):
        Views(dataset_of(images), Preprocess(size=12, crop=1.0, channels=1))


class Deadly(Sequence[Path]):
    """Kills the process that looks at one of the images, as the kernel does when memory runs out."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: Any) -> Any:
        if row == 20 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.paths[row]


@pytest.mark.fault("T14")
@pytest.mark.parametrize("workers", [1, 2])
def test_t14_a_killed_process_is_a_clear_error(files: list[Path], workers: int) -> None:
    with pytest.raises(VitrailError, match=r"set: a process that read images died \(DataLoader worker"):
        Views(dataset_of(Deadly(files)), PREPROCESSES["grey"], workers=workers)
    assert Views(dataset_of(Deadly(files)), PREPROCESSES["grey"]).held  # and without processes it goes on


# ---- other bands, and wrong values -------------------------------------------------------------------------------


@pytest.mark.parametrize("channels, full", [(5, 10_000.0), (3, 65_535.0), (1, 4095.0), (2, 255.0)])
@pytest.mark.parametrize("limit", [1 << 30, 0])
def test_bands_keep_their_own_numbers(channels: int, full: float, limit: int) -> None:
    """Nothing is cut down to 8 bits, and the pixels have the bits that predicting gives."""
    kind = np.uint8 if full == 255 else np.uint16
    images = np.random.default_rng(0).integers(0, int(full) + 1, (20, 14, 14, channels), kind)
    for size in (14, 12):
        preprocess = Preprocess(size=size, crop=1.0, channels=channels, range=full, mean=0.3, std=0.2)
        views = Views(dataset_of(images), preprocess, limit=limit, threads=2)
        assert (views.dtype, views.shape, views.held) == (np.float32, (channels, size, size), limit > 0)
        expected = preprocess.batch(list(images[[19, 4]]))
        np.testing.assert_array_equal(bits(normalise(views.get([19, 4]), preprocess)), bits(expected))
        if size == 14:
            np.testing.assert_array_equal(views.get([7])[0], images[7].transpose(2, 0, 1))


def test_wrong_values_are_refused(files: list[Path]) -> None:
    views = Views(dataset_of(files[:4]), PREPROCESSES["grey"])
    for rows in ([4], [-1], [[0, 1]]):
        with pytest.raises(InputError, match="rows: expected a list of numbers from 0 to 3, got"):
            views.get(rows)  # type: ignore[arg-type]
    assert views.get([]).shape == (0, 1, 24, 24)
    with pytest.raises(InputError, match="set: no images to look at"):
        Views(dataset_of([]), PREPROCESSES["grey"])
    with pytest.raises(VitrailError, match="margin: expected a number from 1.0 to 4.0, got 0.5"):
        Views(dataset_of(files), PREPROCESSES["grey"], margin=0.5)
    with pytest.raises(InputError, match="workers: expected a whole number"):
        Views(dataset_of(files), PREPROCESSES["grey"], workers=-1)
    with pytest.raises(InputError, match=r"views: expected \('B', 3, 24, 24\), got \(4, 1, 24, 24\)"):
        normalise(views.get(range(4)), PREPROCESSES["colour"])
