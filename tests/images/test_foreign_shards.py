"""Tar files of others: samples by key, labels from .cls and .json, listed once, and listed again where they change."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image

from vitrail.data import read_data, read_unlabelled
from vitrail.errors import InputError
from vitrail.images import foreign_shards
from vitrail.images.foreign_shards import find_shards
from vitrail.inference import stream_images


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((9, 8 + number, 3), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


def pack(path: Path, *members: tuple[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(foreign_shards, "TICK", -(10**12))  # files that were just made count as old
    return tmp_path / "cache" / "shards"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_webdataset_writes_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for split, numbers in (("train", range(6)), ("val", range(6, 8))):
        with webdataset.TarWriter(str(folder / f"digits-{split}-000000.tar")) as tar:
            for number in numbers:
                tar.write({"__key__": f"{number:04d}", "png": picture(number), "cls": number % 2, "txt": "a caption"})
    data = read_data(folder)
    assert data.classes == ("0", "1")
    assert [(each.name, each.labels, each.split) for each in data.samples[:2]] == [
        ("digits-train-000000/0000.png", ("0",), "train"),
        ("digits-train-000000/0001.png", ("1",), "train"),
    ]
    assert [each.split for each in data.samples] == ["train"] * 6 + ["val"] * 2
    assert [bytes(each) for each in data.images] == [picture(number) for number in range(8)]
    named = [(each.name, each.image) for each in stream_images([folder])]  # type: ignore[union-attr]
    assert named[7] == (str(folder / "digits-val-000000" / "0007.png"), picture(7))
    alone = read_data(folder / "digits-train-000000.tar")
    assert (len(alone), len(list(stream_images([folder / "digits-train-000000.tar"])))) == (6, 6)


@pytest.mark.parametrize(
    "said, labels, task",
    [
        ({"label": "cat"}, ("cat",), "single-label"),
        ({"cls": 7, "other": [1]}, ("7",), "single-label"),
        ({"labels": ["dog"]}, ("dog",), "single-label"),
        ({"labels": ["dog", "cat"]}, ("dog", "cat"), "multi-label"),
        ({"labels": []}, (), "multi-label"),
    ],
)
def test_labels_in_json(tmp_path: Path, said: dict[str, Any], labels: tuple[str, ...], task: str) -> None:
    tar = pack(tmp_path / "a.tar", ("x/1.json", json.dumps(said).encode()), ("x/1.png", picture(1)))
    shards = find_shards(tar)
    assert shards is not None
    assert (shards.index.labels, shards.index.task, shards.index.names) == ([labels], task, ["a/x/1.png"])


@pytest.mark.fault("I12")
@pytest.mark.parametrize(
    "members, told",
    [
        ([("1.png", b"x"), ("1.jpg", b"x")], "'1' has 2 images .png, jpg.: expected one a key"),
        ([("1.png", b"x"), ("1.png", b"x")], "'1.png' stands there twice"),
        ([("1.png", b"x"), ("2.png", b"x"), ("1.png", b"x")], "1 names of images stand twice"),
        ([("1.png", b"x"), ("1.cls", b"\xff")], "'1.cls' cannot be read"),
        ([("1.png", b"x"), ("1.json", b"{")], "'1.json' cannot be read"),
        ([("1.png", b"x"), ("1.json", b'{"label": {}}')], "'1.json': 'label' is {}: expected the name or the number"),
        ([("1.png", b"x"), ("1.json", b"[" * 100_000)], "'1.json' cannot be read"),
        ([("1.png", b"x"), ("1.cls", bytes(2**20 + 1))], "'1.cls' has 1,048,577 bytes: expected a label, refused"),
        ([("../1.png", b"x")], "'../1.png' is absolute or leads out of the folder: refused"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, members: list[tuple[str, bytes]], told: str) -> None:
    tar = pack(tmp_path / "set" / "a.tar", *members)
    for look in (find_shards, read_data):
        with pytest.raises(InputError, match=told):
            look(tar.parent)


def test_an_image_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    info = tarfile.TarInfo("1.png")
    info.size = 2**29
    with open(tmp_path / "a.tar", "wb") as file:
        file.write(info.tobuf(tarfile.USTAR_FORMAT))
        file.truncate(2**29 + 2048)
    with pytest.raises(InputError, match="'1.png' has 536,870,912 bytes, over the limit of 268,435,456: refused"):
        find_shards(tmp_path / "a.tar")


def test_without_labels_they_are_for_predict_alone(tmp_path: Path) -> None:
    pack(tmp_path / "set" / "a.tar", ("1.png", picture(1)), ("2.png", picture(2)), ("readme", b"x"), (".x.png", b"x"))
    assert len(list(stream_images([tmp_path / "set"]))) == 2
    assert len(read_unlabelled(tmp_path / "set")) == 2
    with pytest.raises(InputError, match="nothing says what is on a/1.png: expected a .cls or .json with its class"):
        read_data(tmp_path / "set")


def test_they_are_listed_once_and_again_where_they_change(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    real = foreign_shards._images
    monkeypatch.setattr(foreign_shards, "_images", lambda path, shard: listed.append(path.name) or real(path, shard))

    def names() -> list[str]:
        shards = find_shards(tmp_path / "set")
        return [] if shards is None else list(shards.index.names)

    pack(tmp_path / "set" / "a.tar", ("1.png", picture(1)))
    assert names() == names() == ["a/1.png"]
    assert listed == ["a.tar"]
    [path] = cache.iterdir()
    path.write_bytes(path.read_bytes().replace(b"a/1.png", b"a/2.png"))
    assert names() == ["a/1.png"]  # a damaged list is made anew
    pack(tmp_path / "set" / "a.tar", ("2.png", picture(2)))
    assert names() == names() == ["a/2.png"]
    assert len(listed) == 3
    monkeypatch.setattr(foreign_shards, "TICK", 10**12)  # a file that may still change within its tick
    pack(tmp_path / "set" / "a.tar", ("3.png", picture(3)))
    assert names() == names() == ["a/3.png"]
    assert len(listed) == 5


def test_a_folder_of_images_or_of_folders_stays_what_it_was(tmp_path: Path) -> None:
    pack(tmp_path / "set" / "a.tar", ("1.png", picture(1)))
    (tmp_path / "set" / "b.png").write_bytes(picture(2))
    assert find_shards(tmp_path / "set") is None
    assert [str(each) for each in stream_images([tmp_path / "set"])] == [str(tmp_path / "set" / "b.png")]
    (tmp_path / "set" / "b.png").unlink()
    (tmp_path / "set" / "cats").mkdir()
    assert find_shards(tmp_path / "set") is None
