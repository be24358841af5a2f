"""Folders: which files are samples of which class and split, and what happens to all the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.empty_files import touch
from vitrail.data import Dataset, read_data, read_unlabelled
from vitrail.errors import InputError


def shown(dataset: Dataset) -> dict[str, tuple[str, str]]:
    return {each.name: (each.labels[0], each.split) for each in dataset.samples}


# Classes


@pytest.mark.row("003.17")
def test_a_folder_a_class(tmp_path: Path) -> None:
    touch(tmp_path, "cat/10.jpg", "cat/9.PNG", "cat/old/1.webp", "dog/a.tif", "dog/b.npy")
    data = read_data(tmp_path)
    assert data.classes == ("cat", "dog")
    assert [(each.name, each.labels, each.split, each.group) for each in data.samples] == [
        ("cat/9.PNG", ("cat",), "", ""),
        ("cat/10.jpg", ("cat",), "", ""),
        ("cat/old/1.webp", ("cat",), "", ""),
        ("dog/a.tif", ("dog",), "", ""),
        ("dog/b.npy", ("dog",), "", ""),
    ]
    assert list(data.images) == [tmp_path / each.name for each in data.samples]
    assert list(data.images[1:3]) == [tmp_path / "cat/10.jpg", tmp_path / "cat/old/1.webp"]
    assert (data.task, data.source, data.left_out) == ("single-label", str(tmp_path), {})
    assert read_data(str(tmp_path)).samples == data.samples


def test_numbers_are_classes_in_their_own_order(tmp_path: Path) -> None:
    data = read_data(touch(tmp_path, *(f"{number}/a.png" for number in range(12))))
    assert data.classes == tuple(map(str, range(12)))
    assert data.targets().tolist() == list(range(12))


@pytest.mark.row("P.14", "003.17")
def test_split_folders(tmp_path: Path) -> None:
    touch(tmp_path, "Train/b/1.jpg", "Train/a/1.jpg", "Train/a/2.jpg", "validation/a/3.jpg", "validation/b/deep/4.jpg")
    data = read_data(touch(tmp_path, "test/a/5.jpg", "test/b/6.jpg", "readme.txt", "test/stray.jpg"))
    assert shown(data) == {
        "Train/a/1.jpg": ("a", "train"),
        "Train/a/2.jpg": ("a", "train"),
        "Train/b/1.jpg": ("b", "train"),
        "validation/a/3.jpg": ("a", "val"),
        "validation/b/deep/4.jpg": ("b", "val"),
        "test/a/5.jpg": ("a", "test"),
        "test/b/6.jpg": ("b", "test"),
    }
    assert data.splits == ("train", "val", "test")
    assert data.left_out == {"not images (.txt)": 1, "images outside class folders": 1}


def test_a_split_alone_is_a_split(tmp_path: Path) -> None:
    assert read_data(touch(tmp_path, "test/a/1.jpg", "test/b/2.jpg")).splits == ("test",)
    assert read_data(tmp_path / "test").splits == ()


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    data = read_data(touch(tmp_path, "train/1.jpg", "car/2.jpg", "plane/3.jpg"))
    assert data.classes == ("car", "plane", "train")
    touch(tmp_path, "train/cat/1.jpg")
    with pytest.raises(InputError, match=r"holds 'train' with folders in them, beside 'car', 'plane': expected either"):
        read_data(tmp_path)


def test_folders_that_hold_no_classes_stand_beside_splits_and_are_told(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/a/2.jpg", "val/b/2.jpg", "__pycache__/x.pyc", ".idea/x.xml")
    touch(tmp_path, "logs/events.1", "Runs/first/batch.jpg", "notes/read.txt", "__MACOSX/1.jpg", "@eaDir/1.jpg")
    touch(tmp_path, "node_modules/icon.png", "venv/lib/plot.png")
    (tmp_path / "empty").mkdir()
    data = read_data(touch(tmp_path, ".ipynb_checkpoints/1.jpg", "train/a/__pycache__/1.jpg"))
    assert [each.name for each in data.samples] == ["train/a/1.jpg", "train/b/1.jpg", "val/a/2.jpg", "val/b/2.jpg"]
    assert data.classes == ("a", "b")
    assert data.left_out == {
        "hidden folders": 2,
        "folders of tools": 6,
        "folders of logs": 2,
        "folders without images": 2,
    }
    assert set(data.left_out_names["hidden folders"]) == {".idea", ".ipynb_checkpoints"}
    tools = {"__pycache__", "__MACOSX", "@eaDir", "train/a/__pycache__", "node_modules", "venv"}
    assert set(data.left_out_names["folders of tools"]) == tools
    assert set(data.left_out_names["folders of logs"]) == {"logs", "Runs"}
    assert set(data.left_out_names["folders without images"]) == {"notes", "empty"}


def test_a_folder_of_images_beside_splits_is_an_error_that_names_it(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/a/2.jpg", "val/b/2.jpg", "logs/x.txt", "unlabelled/1.jpg")
    with pytest.raises(
        InputError, match=r"holds 'train' and 'val' with folders in them, beside 'unlabelled': expected"
    ):
        read_data(tmp_path)


def test_logs_beside_classes_are_told_and_a_class_of_logs_stays_a_class(tmp_path: Path) -> None:
    touch(tmp_path, "oak/1.jpg", "pine/1.jpg", "logs/x.txt", "__pycache__/x.pyc")
    data = read_data(tmp_path)
    assert data.classes == ("oak", "pine")
    assert data.left_out == {"folders of tools": 1, "folders of logs": 1}
    assert read_data(touch(tmp_path, "logs/1.jpg")).classes == ("logs", "oak", "pine")
    assert read_data(touch(tmp_path / "trains", "train/1.jpg", "logs/1.jpg")).classes == ("logs", "train")


def test_logs_beside_splits_do_not_hide_the_splits_from_a_pattern(tmp_path: Path) -> None:
    data = read_data(
        touch(tmp_path, "train/cat.0.jpg", "train/dog.0.jpg", "test/dog.1.jpg", "logs/x.txt"),
        pattern=r".*?(?P<label>cat|dog).*",
    )
    assert data.splits == ("train", "test")
    assert data.left_out == {"folders without images": 1}


def test_a_class_that_one_split_lacks_is_an_error_with_a_diff(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/rose/1.jpg", "train/tulip/1.jpg", "val/a/1.jpg", "val/tulips/1.jpg")
    with pytest.raises(
        InputError,
        match=r"the classes of val are not those of train: missing: 'rose', 'tulip'; "
        r"unknown to train: 'tulips' \(did you mean 'tulip'\?\) \(a class of which val has no images needs an empty",
    ):
        read_data(tmp_path)


def test_an_empty_folder_says_that_a_split_has_no_images_of_a_class(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", "test/a/1.jpg", "test/c/1.jpg")
    (tmp_path / "test/b").mkdir()
    data = read_data(tmp_path)
    assert data.classes == ("a", "b", "c")
    assert data.part("test").targets().tolist() == [0, 2]  # the missing class shifts nothing


def test_two_folders_for_one_split_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "val/a/1.jpg", "valid/a/1.jpg")
    with pytest.raises(InputError, match="'val' and 'valid' both stand for val"):
        read_data(tmp_path)


def test_split_folders_without_classes_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.jpg", "test/2.jpg")
    with pytest.raises(InputError, match=r"test holds no class folders: expected test/<class>/image; if the labels"):
        read_data(tmp_path)


# A checkpoint's classes


def test_targets_follow_the_classes_asked_for(tmp_path: Path) -> None:
    data = read_data(touch(tmp_path, "a/1.jpg", "b/1.jpg", "b/2.jpg"))
    assert data.targets(["b", "z", "a"]).tolist() == [2, 0, 0]
    with pytest.raises(InputError, match=r"a/1\.jpg: class 'a' is unknown"):
        data.targets(["b", "z"])
    marks = replace(data, task="multi-label").targets(["b", "z", "a"])
    assert marks.tolist() == [[0, 0, 1], [1, 0, 0], [1, 0, 0]]


# Odd folders


@pytest.mark.parametrize(
    "names, wrong",
    [
        ([], "holds no class folders: expected <class>/image, or train/<class>/image; if the labels stand in the"),
        (["1.jpg"], "holds no class folders"),
        (["1.jpg", "labels.csv"], "holds no class folders: .*; if the labels stand in labels.csv, name that file"),
        (["images/1.jpg", "labels.csv"], "has one class only, 'images': .*; if the labels stand in labels.csv, name"),
        (
            ["a/1.txt", "b/2.txt"],
            r"no images in .*: expected files ending in \.jpg, .*left out: 2 files that are not images",
        ),
    ],
)
def test_folders_without_labels(tmp_path: Path, names: list[str], wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        read_data(touch(tmp_path, *names))


# Labels in file names


@pytest.mark.row("003.17")
def test_the_synset_after_the_last_underscore(tmp_path: Path) -> None:
    """The layout of ImageNet's own folders train and val, flat, the label at the end of the name."""
    touch(tmp_path, "train/n01_7_n01.JPEG", "train/n02_3_n02.JPEG", "val/ILSVRC2012_val_0001_n02.JPEG")
    data = read_data(tmp_path, pattern=r".*_(?P<label>n\d+)\.JPEG")
    assert shown(data) == {
        "train/n01_7_n01.JPEG": ("n01", "train"),
        "train/n02_3_n02.JPEG": ("n02", "train"),
        "val/ILSVRC2012_val_0001_n02.JPEG": ("n02", "val"),
    }


def test_the_label_before_the_number(tmp_path: Path) -> None:
    data = read_data(touch(tmp_path, "cat.0.jpg", "dog.0.jpg", "cat.10.jpg"), pattern=r"(?P<label>cat|dog)\.\d+\.jpg")
    assert data.classes == ("cat", "dog")
    assert data.targets().tolist() == [0, 0, 1]
    assert data.splits == ()


def test_a_pattern_may_name_split_and_group(tmp_path: Path) -> None:
    touch(tmp_path, "p1/training/a-1.jpg", "p1/training/b-2.jpg", "p2/testing/b-3.jpg", "p3/a-4.jpg")
    pattern = r"(?P<group>p\d)/(?:(?P<split>\w+)/)?(?P<label>[ab])-\d\.jpg"
    assert [tuple(each) for each in read_data(tmp_path, pattern=pattern).samples] == [
        ("p1/training/a-1.jpg", ("a",), "train", "p1"),
        ("p1/training/b-2.jpg", ("b",), "train", "p1"),
        ("p2/testing/b-3.jpg", ("b",), "test", "p2"),
        ("p3/a-4.jpg", ("a",), "", "p3"),
    ]


def test_names_that_do_not_match_are_listed(tmp_path: Path) -> None:
    touch(tmp_path, "cat.0.jpg", "dog.0.jpg", "cat.1.jpg.png", "bird.jpg")
    with pytest.raises(
        InputError, match=r"2 of 4 images in .* do not match .*: bird\.jpg, cat\.1\.jpg\.png: it must match the whole"
    ):
        read_data(tmp_path, pattern=r"(?P<label>cat|dog)\.\d+\.jpg")
    with pytest.raises(InputError, match=r"1 of 4 images in .* do not match"):
        read_data(tmp_path, pattern=r"(?P<label>cat|dog|)[.\w]+")  # no label is no match


@pytest.mark.parametrize(
    "pattern, wrong",
    [("(", "no regular expression: missing"), (".*", "expected a group named label"), (3, "no regular expression")],
)
def test_patterns_that_are_none(tmp_path: Path, pattern: str, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        read_data(touch(tmp_path, "a.jpg"), pattern=pattern)


# Without labels


def test_images_without_labels(tmp_path: Path) -> None:
    data = read_unlabelled(touch(tmp_path, "2.jpg", "10.jpg", "deep/er/1.png", "notes.txt"))
    assert [each.name for each in data.samples] == ["2.jpg", "10.jpg", "deep/er/1.png"]
    assert {each.labels for each in data.samples} == {()}
    assert (data.classes, data.task) == ((), "multi-label")
    assert np.array_equal(data.targets(), np.zeros((3, 0)))
    with pytest.raises(InputError, match="no images in"):
        read_unlabelled(touch(tmp_path / "empty", "x.txt"))
    with pytest.raises(InputError, match="expected a folder of images"):
        read_unlabelled(tmp_path / "2.jpg")


# Real ones


@pytest.mark.row("P.14")
def test_real_folders(fixtures: Path) -> None:
    fruits = read_data(fixtures / "fruits360_10")
    counts = [(split, len(fruits.part(split)), np.bincount(fruits.part(split).targets())) for split in fruits.splits]
    assert [(split, size, set(each.tolist())) for split, size, each in counts] == [
        ("train", 1000, {100}),
        ("test", 400, {40}),
    ]
    digits = read_data(fixtures / "sign_language_digits")
    assert (len(digits), digits.classes) == (2062, tuple("0123456789"))
    assert all(each.name.split("/")[0] == each.labels[0] for each in digits.samples)
