"""shard: the same images, names, classes and splits out of tar files, whole or not there; webdataset reads them."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image

import vitrail
from vitrail.data import Dataset, read_data, scan, shard_writing
from vitrail.data.shard_writing import shard
from vitrail.errors import ImageError, InputError
from vitrail.images.shards import read_index
from vitrail.network.config import ViTConfig
from vitrail.training import Recipe

NETWORK = ViTConfig(image_size=16, patch_size=8, width=8, depth=1, heads=1, mlp_width=16)


def make_images(root: Path, count: int = 24, splits: bool = True) -> Path:
    dice = np.random.default_rng(3)
    for row in range(count):
        top = ("train", "train", "train", "val", "test")[row % 5] if splits else ""
        path = root / top / ("ants", "b.bees")[row // 5 % 2] / f"a.{row}.{('jpg', 'PNG')[row % 2]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(dice.integers(0, 256, (20, 18 + row % 3, 3), np.uint8)).save(path)
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_images(tmp_path / "folder" / "photos")


def same(one: Dataset, other: Dataset) -> None:
    assert one.samples == other.samples
    assert (one.classes, one.task) == (other.classes, other.task)
    images = zip(one.images, other.images, strict=True)
    assert all(bytes(each) == Path(str(path)).read_bytes() for path, each in images)


@pytest.mark.parametrize("size", [1, 6_000, 10**9])
def test_what_comes_out_is_what_went_in(photos: Path, tmp_path: Path, size: int) -> None:
    report = shard(photos, tmp_path / "out", shard_bytes=size)
    same(read_data(photos), read_data(tmp_path / "out"))
    assert report.images == 24
    assert {1: 24, 10**9: 3}.get(size, len(report.shards)) == len(report.shards)
    for each in report.shards:
        raw = (tmp_path / "out" / each.name).read_bytes()
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (each.bytes, each.sha256)
        with tarfile.open(tmp_path / "out" / each.name) as tar:
            assert {info.mtime for info in tar} == {0}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    again = shard(tmp_path / "out", tmp_path / "again", shard_bytes=size)  # shards of shards
    assert again.shards == report.shards


def test_labels_by_table_several_of_them_and_groups(tmp_path: Path) -> None:
    photos = make_images(tmp_path / "photos", 6, splits=False)
    names = sorted(str(path.relative_to(tmp_path)) for path in photos.rglob("*.*") if path.is_file())
    labels, groups = ("cat|dog", "dog", "", "cat", "cat", "dog"), ("p1", "p1", "", "", "p2", "p2")
    with open(tmp_path / "labels.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "group"])
        writer.writerows(zip(names, labels, groups, strict=True))
    shard(tmp_path / "labels.csv", tmp_path / "out")
    same(read_data(tmp_path / "labels.csv"), read_data(tmp_path / "out"))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # it leaves the tar files open
def test_webdataset_reads_them(photos: Path, tmp_path: Path) -> None:
    report = shard(photos, tmp_path / "out", shard_bytes=6_000)
    data = read_data(photos)
    seen = {}
    urls = [str(tmp_path / "out" / each.name) for each in report.shards]
    for sample in webdataset.WebDataset(urls, shardshuffle=False, empty_check=False):
        row = int(sample["__key__"])
        told = json.loads(sample["json"])
        assert data.classes[int(sample["cls"])] == told["labels"][0]
        assert (told["name"], told["split"]) == (data.samples[row].name, data.samples[row].split)
        seen[told["name"]] = sample.get("jpg") or sample.get("png")
    assert seen == {
        each.name: Path(str(path)).read_bytes() for each, path in zip(data.samples, data.images, strict=True)
    }


@pytest.mark.fault("T16")
def test_images_that_cannot_be_read_are_left_out_and_named(photos: Path, tmp_path: Path) -> None:
    bad = next(photos.rglob("a.0.jpg"))
    bad.write_bytes(bad.read_bytes()[:100])
    report = shard(photos, tmp_path / "out")
    assert [name for name, _ in report.unreadable] == [str(bad.relative_to(photos))]
    assert len(read_data(tmp_path / "out")) == report.images == 23
    assert any("a.0.jpg" in note for note in report.notes)
    with pytest.raises(ImageError, match="a.0.jpg"):
        shard(photos, tmp_path / "other", unreadable="stop")
    assert not (tmp_path / "other").exists()


def test_what_is_there_stays(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shard(photos, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(InputError, match="is there already: give another name, or --force to write over it"):
        shard(photos, out)
    shard(photos, out, shard_bytes=1, force=True)
    assert len(list(out.iterdir())) == 25 != len(before)
    for force in (False, True):
        with pytest.raises(InputError, match="is there already, and holds no shards of ours: give another name"):
            shard(out, photos, force=force)
    assert len(read_data(photos)) == 24
    (tmp_path / "empty").mkdir()
    shard(photos, tmp_path / "empty")
    with pytest.raises(InputError, match="holds arrays: expected images in files"):
        shard("vitrail:fashion", tmp_path / "fashion")


@pytest.mark.fault("T16")
def test_what_fails_on_the_way_leaves_nothing(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, an image that changes meanwhile, a disk that gives back other bytes: the older shards stay."""
    out = tmp_path / "out"
    shard(photos, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    real = shard_writing._TarWriter.add

    def full(tar: Any, name: str, data: bytes) -> int:
        if name.startswith("000000009"):
            raise OSError(28, "No space left on device")
        return real(tar, name, data)

    def flipped(tar: Any, name: str, data: bytes) -> int:
        place = real(tar, name, data)
        tar.file.flush()
        os.pwrite(tar.file.fileno(), bytes([data[0] ^ 1]), place)
        return place

    def other(image: Any) -> Any:
        return shard_writing_read(image)[:-1]

    shard_writing_read = shard_writing.read_file
    for name, patch, told in (
        ("_TarWriter.add", full, "could not write .*: No space left on device"),
        ("_TarWriter.add", flipped, r"\.tar came back otherwise than it was written: expected SHA-256 .*, got"),
        ("read_file", other, "has changed since it was read: start again"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(f"vitrail.data.shard_writing.{name}", patch)
            with pytest.raises(InputError, match=told):
                shard(photos, out, force=True)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "out"]


@pytest.mark.fault("T16", "I12")
def test_a_damaged_shard_is_named_with_what_was_expected(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shard(photos, out, shard_bytes=6_000)
    index = read_index(out).index
    row = 7
    tar = out / index.shards[int(index.shard[row])].name
    whole = tar.read_bytes()
    place = int(index.offsets[row]) + 5
    tar.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
    expected = index.digests[row].tobytes().hex()[:16] if index.digests is not None else ""
    told = (
        rf"{tar.name} is damaged at .* \(byte .*\): expected SHA-256 {expected}\.\.\., got [0-9a-f]{{16}}\.\.\.: copy"
    )
    data = read_data(out)
    for look in (lambda: scan(data), lambda: list(data.images)):
        with pytest.raises(InputError, match=told):
            look()
    tar.write_bytes(whole[:-1])
    with pytest.raises(
        InputError, match=f"the shard .*{tar.name} has {len(whole) - 1:,} bytes, expected {len(whole):,}"
    ):
        read_data(out)
    tar.unlink()
    with pytest.raises(InputError, match=f"the shard .*{tar.name} is missing .*: copy it again"):
        read_data(out)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_from_shards_is_the_training_from_the_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """To the last bit of the file, the name of the data and of the run being the same."""
    (tmp_path / "shards").mkdir()
    shard(photos, tmp_path / "shards" / "photos", shard_bytes=6_000)
    digests = []
    for where in ("folder", "shards"):
        monkeypatch.chdir(tmp_path / where)
        recipe = Recipe(epochs=2, batch=4)
        run = vitrail.train(
            "photos", model=NETWORK, recipe=recipe, name="run", workers=workers, check=False, report=False
        )
        digests.append(hashlib.sha256((run.folder / "last.safetensors").read_bytes()).hexdigest())
    assert digests[0] == digests[1]
    data = [json.loads((tmp_path / each / "runs" / "run" / "data.json").read_text()) for each in ("folder", "shards")]
    assert data[0] == data[1]
