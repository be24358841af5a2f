"""The built-in set: what it holds, that it is the beginning of the whole one, and where that is looked for."""

from __future__ import annotations

import hashlib
import struct
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import fashion as maker
import vitrail
from vitrail.data import read_data
from vitrail.data.fashion_mnist import FOLDER, NAMES
from vitrail.data.npz import read_npz
from vitrail.errors import InputError

OFFICIAL = (  # as Zalando's own page numbers them
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
SHIPPED = Path(str(resources.files("vitrail"))) / "data"


@pytest.fixture
def whole() -> Path:
    if not Path(FOLDER).is_dir():
        pytest.skip(f"no Fashion-MNIST in {FOLDER}: it is Debian's package dataset-fashion-mnist")
    return Path(FOLDER)


def test_the_built_in_set() -> None:
    data = read_data("vitrail:fashion")
    assert data.classes == (
        *("Ankle boot", "Bag", "Coat", "Dress", "Pullover"),
        *("Sandal", "Shirt", "Sneaker", "T-shirt/top", "Trouser"),
    )
    images = np.asarray(data.images)
    assert (data.source, data.splits, data.task) == ("vitrail:fashion", ("train", "test"), "single-label")
    assert (images.shape, images.dtype) == ((7000, 28, 28), np.uint8)
    assert np.bincount(data.part("train").targets()).tolist() == [600] * 10
    assert np.bincount(data.part("test").targets()).tolist() == [100] * 10
    names = [each.labels[0] for each in data.samples[:24]]
    first = [9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9, 1, 0, 6, 4, 3, 1, 4, 8]  # as everyone knows them
    assert names == [OFFICIAL[number] for number in first]
    assert len({each.name for each in data.samples}) == 7000
    assert hashlib.sha256(images.tobytes()).hexdigest()[:16] == "4743a14d4f707c07"


def test_classes_go_by_name_here_too() -> None:
    data = read_data("vitrail:fashion", classes=NAMES)
    assert data.classes == NAMES
    assert data.targets()[:4].tolist() == [9, 0, 0, 3]  # the numbers that the set itself gives them
    with pytest.raises(InputError, match="are not those that were expected: missing: '0'.*; unknown: 'Ankle boot'"):
        read_data("vitrail:fashion", classes=[str(number) for number in range(10)])


def test_its_licence_comes_with_it() -> None:
    text = (SHIPPED / "fashion-licence.txt").read_text("utf-8")
    assert "Copyright (c) 2017 Zalando SE" in text
    assert "Permission is hereby granted, free of charge" in text


def test_it_is_what_its_maker_makes(whole: Path, tmp_path: Path) -> None:
    made = maker.choose(whole)
    shipped = read_npz(SHIPPED / "fashion.npz", made)
    assert list(made) == ["train_images", "train_labels", "test_images", "test_labels"]
    for name, array in made.items():
        assert np.array_equal(shipped[name], array), name
    few = {name: array[:50] for name, array in made.items()}
    maker.write(tmp_path / "1.npz", few)
    maker.write(tmp_path / "2.npz", few)
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()


def test_the_whole_set(whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        (tmp_path / name).symlink_to(whole / name)
    monkeypatch.setenv("VITRAIL_FASHION", str(tmp_path))  # half of it, for speed
    data = read_data("vitrail:fashion-full")
    assert (data.source, len(data), data.splits) == ("vitrail:fashion-full", 10_000, ("test",))
    assert data.classes == read_data("vitrail:fashion").classes
    assert np.bincount(data.targets()).tolist() == [1000] * 10
    part = read_data("vitrail:fashion").part("test")
    assert np.array_equal(np.asarray(data.images)[:500], np.asarray(part.images)[:500])


def test_the_whole_set_is_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three images under its file names, and their numbers by name."""
    images = np.arange(3 * 28 * 28, dtype=np.uint64).astype(np.uint8).reshape(3, 28, 28)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(
        struct.pack(">4B3I", 0, 0, 8, 3, *images.shape) + images.tobytes()
    )
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 3) + bytes([9, 0, 6]))
    monkeypatch.setenv("VITRAIL_FASHION", str(tmp_path))
    data = read_data("vitrail:fashion-full")
    assert (data.source, data.splits) == ("vitrail:fashion-full", ("test",))
    assert [each.labels for each in data.samples] == [("Ankle boot",), ("T-shirt/top",), ("Shirt",)]
    assert data.classes == tuple(sorted(OFFICIAL))
    assert np.array_equal(data.images, images)


def test_a_whole_set_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path, tmp_path / "never"):
        monkeypatch.setenv("VITRAIL_FASHION", str(folder))
        with pytest.raises(
            InputError, match=r"no Fashion-MNIST in .*: install the package dataset-fashion-mnist .* VITRAIL_FASHION"
        ):
            read_data("vitrail:fashion-full")


def test_the_built_in_network_knows_the_built_in_images() -> None:
    trained = vitrail.load("vitrail:fashion")
    found = vitrail.evaluate(trained, "vitrail:fashion", resamples=0)
    assert found.split == "test"
    assert found.scores["top1"].value >= 0.87
    assert trained.provenance.source == "vitrail:fashion"
    image = read_data("vitrail:fashion").part("test")
    answers = vitrail.predict(trained, list(image.images[:200]), top=1)
    correct = [each.labels == sample.labels for each, sample in zip(answers, image.samples[:200], strict=True)]
    assert sum(correct) >= 0.84 * len(correct)
    sure = [right for right, each in zip(correct, answers, strict=True) if each.confident]
    assert 140 <= len(sure) < 200
    assert sum(sure) >= 0.9 * len(sure)
