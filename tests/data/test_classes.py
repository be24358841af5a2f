"""Classes are agreed on by name; where they disagree, the error is a diff."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from data.empty_files import touch
from vitrail.data import read_data
from vitrail.data.classes import as_label
from vitrail.errors import InputError


def test_given_classes_are_matched_by_name(tmp_path: Path) -> None:
    data = read_data(touch(tmp_path, "a/1.jpg", "b/1.jpg", "caf\N{LATIN SMALL LETTER E WITH ACUTE}/1.jpg"))
    assert data.targets().tolist() == [0, 1, 2]
    other = ["b", "cafe\N{COMBINING ACUTE ACCENT}", "a"]
    given = read_data(tmp_path, classes=other)
    assert given.classes == tuple(other)
    assert given.targets().tolist() == [2, 0, 1]


def test_other_classes_than_given_are_an_error_with_a_diff(tmp_path: Path) -> None:
    touch(tmp_path, "roses/1.jpg", "daisy/1.jpg")
    with pytest.raises(
        InputError,
        match=r"are not those that were expected: missing: 'rose', 'tulip'; unknown: 'roses' \(did you mean 'rose'\?\)",
    ):
        read_data(tmp_path, classes=["tulip", "rose", "daisy"])
    with pytest.raises(InputError, match="classes: expected every name once"):
        read_data(tmp_path, classes=["daisy", "roses", "roses"])
    with pytest.raises(InputError, match="classes: expected a list of names, got 'daisy'"):
        read_data(tmp_path, classes="daisy")


def test_long_diffs_are_cut(tmp_path: Path) -> None:
    touch(tmp_path, *(f"c{number}/1.jpg" for number in range(30)))
    with pytest.raises(InputError, match=r"missing: 'x'; unknown: 'c0', .*'c7' and 22 more$"):
        read_data(tmp_path, classes=["x"])


@pytest.mark.fault("T22")
def test_a_class_folder_without_images(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/2.jpg", "tulip/notes.txt", "tulip/.hidden.jpg")
    with pytest.raises(InputError, match=r"has no images of 'tulip': .*\(left out: 1 (file|hid).*, 1 (file|hid).*\)$"):
        read_data(tmp_path)
    with pytest.raises(InputError, match=rf"'tulip': add images, or delete {re.escape(str(tmp_path / 'tulip'))} \("):
        read_data(tmp_path)
    assert read_data(tmp_path, classes=["tulip", "b", "a"]).targets().tolist() == [2, 1]


def test_a_class_without_images_in_any_split(tmp_path: Path) -> None:
    pairs = ("train/a/1.jpg", "train/b/2.jpg", "test/a/3.jpg", "test/b/4.jpg")
    touch(tmp_path, *pairs, "train/c/notes.txt", "test/c/notes.txt")
    with pytest.raises(InputError) as told:
        read_data(tmp_path)
    folders = " and ".join(str(tmp_path / split / "c") for split in ("train", "test"))
    assert f"has no images of 'c': add images, or delete {folders} (" in str(told.value)


@pytest.mark.fault("T22")
def test_one_image_of_a_class_is_enough_and_one_class_is_not(tmp_path: Path) -> None:
    assert len(read_data(touch(tmp_path / "two", "a/1.jpg", "b/1.jpg"))) == 2
    with pytest.raises(InputError, match="has one class only, 'a': expected two or more; if the labels stand in the n"):
        read_data(touch(tmp_path / "one", "a/1.jpg", "a/2.jpg"))


@pytest.mark.fault("T22")
@pytest.mark.parametrize(
    "name, wrong", [(b"new\nline", "holds control characters: rename it"), (b"caf\xe9", "is not UTF-8: rename it")]
)
def test_class_names_that_no_checkpoint_could_keep_are_refused(tmp_path: Path, name: bytes, wrong: str) -> None:
    touch(tmp_path, "a/1.jpg", f"{os.fsdecode(name)}/1.jpg")
    with pytest.raises(InputError, match=wrong):
        read_data(tmp_path)


def test_one_name_in_two_spellings_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "caf\N{LATIN SMALL LETTER E WITH ACUTE}/1.jpg", "cafe\N{COMBINING ACUTE ACCENT}/1.jpg")
    with pytest.raises(InputError, match="has two folders called 'café', spelled differently"):
        read_data(tmp_path)


# Names


def test_labels_have_one_spelling() -> None:
    assert as_label("cafe\N{COMBINING ACUTE ACCENT}", "x") == "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
    family = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN} & <b>"
    assert as_label(family, "x") == family
    assert as_label("x" * 500, "x") == "x" * 500


@pytest.mark.fault("T22")
@pytest.mark.parametrize(
    "text, wrong",
    [
        ("", "expected the name of a class, got ''"),
        (" ", "expected the name of a class, got ' '"),
        ("x" * 501, "a class name of 501 characters, expected at most 500"),
        ("a\nb", r"'a\\nb' holds control characters"),
        ("caf\udce9", r"'caf\\udce9' is not UTF-8"),
    ],
)
def test_labels_that_could_not_be_kept_are_refused(text: str, wrong: str) -> None:
    with pytest.raises(InputError, match=f"line 7: .*{wrong}"):
        as_label(text, "line 7")
