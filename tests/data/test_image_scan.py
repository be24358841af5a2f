"""scan: every image decoded once; bad ones named and dropped, or an error, and the same for any number of threads."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data import Dataset, Entry, Sample, read_data, scan, split
from vitrail.errors import ConfigError, ImageError


def make_image(path: Path, seed: int = 0, size: tuple[int, int] = (8, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(values).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for row in range(24):
        make_image(tmp_path / "ab"[row % 2] / f"{row}.png", row, (8 + row, 6))
    return tmp_path


def spoil(root: Path) -> dict[str, str]:
    """Five bad files of five kinds, and what is said of them."""
    whole = (root / "a/0.png").read_bytes()
    (root / "a/2.png").write_bytes(whole[:60])
    (root / "a/4.png").write_bytes(b"")
    (root / "b/1.png").write_bytes(b"<!doctype html><html>not found</html>")
    (root / "b/3.png").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    (root / "b/5.png").write_bytes(whole.replace(b"IDAT", b"IDAX"))
    return {
        "a/2.png": "damaged or cut short",
        "a/4.png": "empty, 0 bytes",
        "b/1.png": "it seems to be a web page",
        "b/3.png": "it seems to be a git-LFS pointer",
        "b/5.png": "not an image that can be read",
    }


def test_every_image_is_measured(photos: Path) -> None:
    data = read_data(photos)
    found = scan(data)
    assert (found.dataset, found.bad) == (data, ())
    assert [each.name for each in found.entries] == [each.name for each in data.samples]
    raw = (photos / "b/7.png").read_bytes()
    [entry] = [each for each in found.entries if each.name == "b/7.png"]
    assert entry == Entry("b/7.png", ("b",), "", "", 6, 15, len(raw), hashlib.sha256(raw).hexdigest())


def test_images_in_arrays_are_measured_too() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 7, 3), np.uint8)
    samples = tuple(Sample(f"train/{row}", ("a",), "train", "g") for row in range(5))
    [*_, last] = scan(Dataset("x", samples, images, ("a",))).entries
    assert last == Entry("train/4", ("a",), "train", "g", 4, 7, 84, hashlib.sha256(images[4].tobytes()).hexdigest())


def test_an_image_that_lies_on_its_side_is_measured_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (20, 10)).save(tmp_path / name / "1.jpg", exif=exif)
    assert [(each.height, each.width) for each in scan(read_data(tmp_path)).entries] == [(20, 10)] * 2


@pytest.mark.fault("T16")
def test_bad_files_are_named_skipped_and_counted(photos: Path) -> None:
    expected = spoil(photos)
    data = read_data(photos)
    found = scan(data)
    assert [name for name, _ in found.bad] == ["a/2.png", "a/4.png", "b/1.png", "b/3.png", "b/5.png"]
    for name, reason in found.bad:
        assert expected[name] in reason
        assert str(photos) not in reason  # the name is said beside it
    good = [each.name for each in data.samples if each.name not in expected]
    assert [each.name for each in found.dataset.samples] == [each.name for each in found.entries] == good
    assert list(found.dataset.images) == [photos / name for name in good]
    assert found.dataset.left_out == {"unreadable images": 5}
    assert found.dataset.classes == ("a", "b")


def test_a_second_scan_adds_to_what_the_first_left_out(photos: Path) -> None:
    spoil(photos)
    first = scan(read_data(photos))
    (photos / "a/6.png").write_bytes(b"x")
    second = scan(first.dataset)
    assert [name for name, _ in second.bad] == ["a/6.png"]
    assert second.dataset.left_out == {"unreadable images": 6}


@pytest.mark.fault("T16")
def test_bad_files_stop_it_by_policy(photos: Path) -> None:
    spoil(photos)
    with pytest.raises(
        ImageError,
        match=r"5 of 24 images in .* cannot be read: a/2.png: damaged.*; b/5.png: .*; put them right, or skip",
    ):
        scan(read_data(photos), policy="stop")
    with pytest.raises(ConfigError, match="policy 'repair' is unknown"):
        scan(read_data(photos), policy="repair")


@pytest.mark.fault("T16")
def test_too_many_bad_files_are_an_error_anyway(photos: Path) -> None:
    for row in range(13):
        (photos / "ab"[row % 2] / f"{row}.png").write_bytes(b"x")
    with pytest.raises(ImageError, match=r"13 of 24 .*, which is more than half: a/0.png: .* and 5 more$"):
        scan(read_data(photos))
    make_image(photos / "a/0.png")
    assert len(scan(read_data(photos)).bad) == 12


@pytest.mark.fault("T16")
def test_a_class_that_loses_all_its_images_is_an_error_anyway(photos: Path) -> None:
    for number in (1, 2):
        (photos / "c").mkdir(exist_ok=True)
        (photos / f"c/{number}.jpg").write_bytes(b"x")
    with pytest.raises(ImageError, match="2 of 26 .* cannot be read, and no image of 'c' is left: c/1.jpg: "):
        scan(read_data(photos))
    make_image(photos / "c/1.jpg")
    assert len(scan(read_data(photos)).bad) == 1
    data = split(read_data(photos), val=0.2).dataset
    for number in (1, 2):
        (photos / f"c/{number}.jpg").write_bytes(b"x")
        make_image(photos / f"c/{3 - number}.jpg")
        if data.samples[-3 + number].split == "train":
            with pytest.raises(ImageError, match="and no image of 'c' is left in train: c/"):
                scan(data)
        else:
            assert len(scan(data).bad) == 1


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_the_result_is_the_same_for_any_number_of_threads(photos: Path, threads: int) -> None:
    for row in range(200):
        make_image(photos / "a" / f"more{row}.png", row)
    spoil(photos)
    data = read_data(photos)
    found, plain = scan(data, threads=threads), scan(data)
    assert (found.entries, found.bad) == (plain.entries, plain.bad)
    assert (len(found.entries), len(found.bad)) == (len(data) - len(plain.bad), len(plain.bad))


@pytest.mark.fault("T16", "I11")
def test_files_that_change_after_they_were_listed(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = read_data(photos)
    (photos / "a/0.png").unlink()
    (photos / "a/2.png").unlink()
    (photos / "a/2.png").mkdir()
    (photos / "b/1.png").unlink()
    os.mkfifo(photos / "b/1.png")
    real = open

    def closed(path: Path, mode: str) -> object:
        if Path(path).name == "3.png":
            raise PermissionError(13, "Permission denied")
        return real(path, mode)

    monkeypatch.setattr("vitrail.images.decoding.open", closed, raising=False)
    found = dict(scan(data).bad)
    assert list(found) == ["a/0.png", "a/2.png", "b/1.png", "b/3.png"]
    assert found["a/0.png"] == "no such file"
    assert found["a/2.png"] == "a folder, expected an image"
    assert found["b/1.png"] == "a pipe, socket or device, expected an ordinary file"
    assert found["b/3.png"] == "may not be read: check its permissions"


def test_images_of_many_bands(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    dice = np.random.default_rng(0)
    np.save(tmp_path / "a/eight.npy", dice.integers(0, 256, (5, 6, 8), np.uint8))
    np.save(tmp_path / "a/deep.npy", dice.integers(0, 10_000, (5, 7, 6), np.uint16))
    np.save(tmp_path / "b/share.npy", dice.random((4, 7, 12), np.float32))
    np.save(tmp_path / "b/wide.npy", 3000 * dice.random((4, 8, 12), np.float32))
    np.save(tmp_path / "b/grey.npy", dice.integers(0, 256, (3, 9), np.uint8))
    np.save(tmp_path / "b/hole.npy", np.full((4, 8, 12), np.nan, np.float32))
    found = scan(read_data(tmp_path))
    assert {each.name: (each.height, each.width) for each in found.entries} == {
        "a/deep.npy": (5, 7),
        "a/eight.npy": (5, 6),
        "b/grey.npy": (3, 9),
        "b/share.npy": (4, 7),
        "b/wide.npy": (4, 8),
    }
    [(name, reason)] = found.bad
    assert name == "b/hole.npy"
    assert "NaN" in reason


@pytest.mark.fault("T22", "I11")
def test_odd_names_are_printable_in_messages(photos: Path) -> None:
    (photos / "a/new\nline<script>.jpg").write_bytes(b"x")
    (photos / os.fsdecode(b"b/\xff.jpg")).write_bytes(b"x")
    found = scan(read_data(photos))
    assert {name for name, _ in found.bad} == {"a/new\nline<script>.jpg", os.fsdecode(b"b/\xff.jpg")}
    assert all(reason.isprintable() for _, reason in found.bad)
    with pytest.raises(ImageError, match=r"'a/new\\nline<script>\.jpg': .*'b/\\udcff\.jpg': ") as caught:
        scan(read_data(photos), policy="stop")
    assert str(caught.value).isprintable()
