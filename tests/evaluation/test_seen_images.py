"""What a run was trained on: by name in its own data, by content anywhere else; and where two runs differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from evaluation.photos import photo
from vitrail.data.image_scan import fingerprint
from vitrail.data.manifest import Entry, Manifest
from vitrail.data.samples import Dataset
from vitrail.errors import InputError
from vitrail.evaluation import data_for, data_for_both
from vitrail.evaluation.caveats import CHOSEN, caveat_for
from vitrail.evaluation.evaluator import chosen
from vitrail.evaluation.seen_images import run_of, source_name

NAMES = ("cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of two images each."""
    for seed, name in enumerate(NAMES):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(seed, (24, 20)).save(path)
    return tmp_path / "photos"


def run(folder: Path, data: Path, splits: tuple[str, ...]) -> Path:
    """What a run leaves behind of its data: each image with the split it had there."""
    entries = []
    for name, split in zip(NAMES, splits, strict=True):
        size, digest = fingerprint(data / name)
        entries.append(Entry(name, (name[:3],), split, "", 20, 24, size, digest.hex()))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"options": {"data": str(data), "pattern": None}}))
    (folder / "data.json").write_text(Manifest(str(data), "single-label", ("cat", "dog"), tuple(entries)).to_json())
    return folder


def splits_of(data: Dataset) -> dict[str, str]:
    return {each.name: each.split for each in data.samples}


def test_own_data_is_marked_by_name(photos: Path, tmp_path: Path) -> None:
    """Named or not; an image that came later was never seen."""
    folder = run(tmp_path / "run", photos, ("train", "val", "test", "train"))
    photo(9, (24, 20)).save(photos / "dog" / "new.png")
    expected = {**dict(zip(NAMES, ("train", "val", "test", "train"), strict=True)), "dog/new.png": ""}
    assert splits_of(data_for(folder)) == expected
    assert splits_of(data_for(folder / "best.safetensors", photos)) == expected
    assert splits_of(data_for(folder, photos / ".." / "photos")) == expected


def test_other_data_is_marked_by_content(photos: Path, tmp_path: Path) -> None:
    """What was trained on or chosen by is seen, under any name; what only tested the run is new."""
    folder = run(tmp_path / "run", photos, ("train", "val", "test", "train"))
    other = tmp_path / "other"
    for seed, name in enumerate(("cat/a.png", "cat/b.png", "dog/c.png", "dog/d.png", "dog/0.png")):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        photo(seed, (24, 20)).save(other / name)
    assert splits_of(data_for(folder, other)) == {
        "cat/a.png": "train",
        "cat/b.png": "train",
        "dog/c.png": "",
        "dog/d.png": "train",
        "dog/0.png": "",  # the name of one that was trained on, and another image
    }


def test_a_copy_of_what_was_seen_is_judged_by_its_validation_images(photos: Path, tmp_path: Path) -> None:
    """Not called training images, which they are not; one that cannot be read is no new image."""
    folder = run(tmp_path / "run", photos, ("train", "val", "val", "train"))
    copy = tmp_path / "copy"
    shutil.copytree(photos, copy)
    (copy / "dog" / "broken.png").write_bytes(b"no image")
    data = data_for(folder, copy)
    assert splits_of(data) == {**dict(zip(NAMES, ("train", "val", "val", "train"), strict=True)), "dog/broken.png": ""}
    assert chosen(data, "")[0] == "val"
    assert caveat_for(chosen(data, "")[1], None) == CHOSEN


def test_what_either_has_seen_is_seen(photos: Path, tmp_path: Path) -> None:
    one = run(tmp_path / "one", photos, ("train", "val", "test", "test"))
    two = run(tmp_path / "two", photos, ("test", "train", "val", "test"))
    assert splits_of(data_for_both(one, two, photos)) == dict(
        zip(NAMES, ("train", "train", "val", "test"), strict=True)
    )
    assert splits_of(data_for_both(two, one, photos)) == splits_of(data_for_both(one, two, photos))


def test_a_checkpoint_that_is_of_no_run(photos: Path, tmp_path: Path) -> None:
    assert set(splits_of(data_for(tmp_path / "x.safetensors", photos)).values()) == {""}
    with pytest.raises(InputError, match="is not of a run, so it does not know its data: name the images"):
        data_for(tmp_path / "x.safetensors")
    folder = run(tmp_path / "run", photos, ("train", "val", "test", "train"))
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="config.json is damaged"):
        data_for(folder)


def test_a_damaged_image_is_left_for_later(photos: Path, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", photos, ("train", "val", "test", "train"))
    other = tmp_path / "other"
    for name in ("cat", "dog"):
        (other / name).mkdir(parents=True)
    (other / "cat" / "a.png").write_bytes((photos / NAMES[0]).read_bytes())
    (other / "dog" / "b.png").write_bytes(b"no image")
    assert splits_of(data_for(folder, other)) == {"cat/a.png": "train", "dog/b.png": ""}


def test_where_a_run_is(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("config.json", "data.json"):
        assert run_of(tmp_path / "run") is None
        (tmp_path / "run" / name).write_text("{}")
    assert run_of(tmp_path / "run") == run_of(tmp_path / "run" / "last.safetensors") == tmp_path / "run"
    assert run_of("vitrail:fashion") is None
    assert source_name("vitrail:fashion") == "vitrail:fashion"
    assert source_name(tmp_path / "run" / "..") == str(tmp_path.resolve())


def test_its_own_images_are_found_from_any_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained on `photos` in one folder and judged in another; what it was trained on is known either way."""
    splits = ("train", "val", "test", "train")
    folder = run(tmp_path / "runs" / "photos-1", photos, splits)
    places = {"folder": str(folder), "paths": {"photos": str(photos)}}
    (folder / "config.json").write_text(json.dumps({"options": {"data": "photos", "pattern": None}, **places}))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    expected = dict(zip(NAMES, splits, strict=True))
    assert splits_of(data_for(folder)) == expected
    assert splits_of(data_for("../runs/photos-1")) == expected
    assert splits_of(data_for(folder, "../photos")) == expected  # its own, by another name
    photos.rename(tmp_path / "renamed")
    with pytest.raises(InputError, match=r"not found: looked for .*/photos, photos; name the images$"):
        data_for(folder)
    assert splits_of(data_for(folder, tmp_path / "renamed"))["cat/0.png"] == "train"  # by content
