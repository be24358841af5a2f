"""Views on disk: the same bytes as in memory, made once, checked at every reading."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.data import disk_cache as shelves
from vitrail.data.cache import Views
from vitrail.data.disk_cache import open_disk_cache, write_disk_cache
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import InputError
from vitrail.images import Preprocess

LOOK = Preprocess(size=24)
DIGESTS = [f"digest {row}" for row in range(37)]


@pytest.fixture
def images(tmp_path: Path) -> Dataset:
    paths = []
    for row in range(37):
        path = tmp_path / f"{row}.png"
        Image.fromarray(np.random.default_rng(row).integers(0, 256, (20 + row, 60 - row, 3), np.uint8)).save(path)
        paths.append(path)
    return Dataset("set", tuple(Sample(path.name, ("a",)) for path in paths), paths, ("a",))


def cached(images: Dataset, folder: Path, **more: Any) -> Views:
    return Views(images, LOOK, limit=0, cache=(folder, DIGESTS), **more)


@pytest.mark.parametrize("how", [{}, {"threads": 2}, {"workers": 2}], ids=["one", "threads", "processes"])
def test_the_same_bytes_as_in_memory(images: Dataset, tmp_path: Path, how: dict[str, int]) -> None:
    views = cached(images, tmp_path / "cache", **how)
    rows = [36, 0, 7, 7]
    assert views.get(rows).equal(Views(images, LOOK).get(rows))
    assert views.held


def test_a_second_run_decodes_nothing(images: Dataset, tmp_path: Path) -> None:
    expected = cached(images, tmp_path / "cache").get(range(37))
    for path in images.images:
        Path(path).unlink()
    assert cached(images, tmp_path / "cache").get(range(37)).equal(expected)


def test_other_images_or_another_look_get_a_cache_of_their_own(images: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cached(images, folder)
    cached(images, folder, margin=1.25)
    Views(images, LOOK, limit=0, cache=(folder, [*DIGESTS[:-1], "changed"]))
    assert len(list(folder.glob("views-*.npy"))) == 3


def test_any_flipped_bit_is_found(images: Dataset, tmp_path: Path) -> None:
    views = cached(images, tmp_path / "cache")
    expected = views.get(range(37))
    (path,) = (tmp_path / "cache").iterdir()
    good = path.read_bytes()
    dice = np.random.default_rng(0)
    for _ in range(200):
        place = int(dice.integers(128, len(good)))
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << int(dice.integers(8))]) + good[place + 1 :])
        found = open_disk_cache(path, (37, 3, 24, 24))
        assert found is not None
        with pytest.raises(InputError, match=r"damaged at view \d+: delete it"):
            list(map(found.read, range(37)))
    path.write_bytes(good)
    assert cached(images, tmp_path / "cache").get(range(37)).equal(expected)


def test_half_a_cache_is_made_again(images: Dataset, tmp_path: Path) -> None:
    expected = cached(images, tmp_path / "cache").get(range(37))
    (path,) = (tmp_path / "cache").iterdir()
    good = path.read_bytes()
    for size in (0, 50, 128, 5000, len(good) - 1):
        path.write_bytes(good[:size])
        assert cached(images, tmp_path / "cache").get(range(37)).equal(expected)
        assert path.read_bytes() == good


def test_an_image_that_cannot_be_read_leaves_no_cache(images: Dataset, tmp_path: Path) -> None:
    Path(images.images[20]).write_bytes(b"no image")
    with pytest.raises(InputError, match=r"/20\.png"):
        cached(images, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_disk_without_room_is_named_before_anything_is_read(
    images: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(InputError, match=r"needs 0\.0 GB in .*cache.*--cache another folder"):
        cached(images, tmp_path / "cache")


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "SPARE", 0)

    def parts() -> Iterator[np.ndarray]:
        yield np.zeros((1, 3, 2, 2), np.uint8)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(InputError, match="No space left"):
        write_disk_cache(tmp_path / "views-1.npy", (2, 3, 2, 2), np.dtype(np.uint8), parts())
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_goes_away(images: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    dead = 2**22 + 1  # Linux counts processes up to 2**22
    (folder / f".views-1.npy.{dead}.tmp").write_bytes(b"half")
    (folder / f"views-1.{dead}.tmp").write_bytes(b"half, as an earlier release called it")
    (folder / f".views-2.npy.{os.getppid()}.tmp").write_bytes(b"being written")
    (folder / "views-notes.txt.tmp").write_bytes(b"not ours")
    cached(images, folder)
    left = {path.name for path in folder.iterdir()}
    assert {f".views-2.npy.{os.getppid()}.tmp", "views-notes.txt.tmp"} <= left
    assert len(left) == 3


def test_what_another_user_is_writing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may not be signalled is alive."""
    writing = tmp_path / ".views-1.npy.4242.tmp"
    writing.write_bytes(b"being written")

    def kill(process: int, signal: int) -> None:
        assert (process, signal) == (4242, 0)
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "kill", kill)
    write_disk_cache(tmp_path / "views-2.npy", (1, 1, 2, 2), np.dtype(np.uint8), [np.zeros((1, 1, 2, 2), np.uint8)])
    assert writing.read_bytes() == b"being written"


def test_a_cache_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may not leave a name with nothing behind it."""
    path = tmp_path / "views-1.npy"
    steps: list[str] = []
    sync, move = os.fsync, os.replace

    def synced(number: int) -> None:
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            assert status.st_size == 128 + 24 + 4 * 2  # all of it has been handed to the system
        steps.append("synced" if stat.S_ISREG(status.st_mode) else "folder synced")
        sync(number)

    def moved(old: Path, new: Path) -> None:
        steps.append("named")
        move(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", moved)
    write_disk_cache(path, (2, 3, 2, 2), np.dtype(np.uint8), [np.zeros((2, 3, 2, 2), np.uint8)])
    assert steps == ["synced", "named", "folder synced"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_gigabyte_of_the_disk_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    views = np.zeros((2, 3, 2, 2), np.uint8)
    made = {"path": tmp_path / "views-1.npy", "shape": views.shape, "dtype": views.dtype, "parts": [views]}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=(1 << 30) + 23))
    with pytest.raises(InputError, match="where 1.1 GB are free"):
        write_disk_cache(**made)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=(1 << 30) + 24))
    assert write_disk_cache(**made).shape == (2, 3, 2, 2)


def test_a_cache_of_another_shape_is_none(tmp_path: Path) -> None:
    path = tmp_path / "views-1.npy"
    write_disk_cache(path, (2, 3, 2, 2), np.dtype(np.uint8), [np.zeros((2, 3, 2, 2), np.uint8)])
    assert open_disk_cache(path, (2, 3, 2, 2)) is not None
    for shape in ((1, 3, 2, 2), (2, 2, 2, 3), (2, 12)):
        assert open_disk_cache(path, shape) is None


def test_numpy_reads_it_too(tmp_path: Path) -> None:
    views = np.random.default_rng(0).normal(size=(5, 2, 3, 4)).astype(np.float32)
    made = write_disk_cache(tmp_path / "views-1.npy", views.shape, views.dtype, [views[:2], views[2:]])
    np.testing.assert_array_equal(np.load(io.BytesIO(made.path.read_bytes())), views)
    np.testing.assert_array_equal(made.read(4), views[4])
