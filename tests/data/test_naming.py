"""Names: natural order, the usual names of splits, labels in one spelling."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from vitrail.data.naming import SUFFIXES, as_label, as_split, in_order, natural
from vitrail.errors import InputError
from vitrail.inference import sources

NAMES = ["a", "a1", "a01", "a2", "a10", "a1b", "a-1", "a!", "", "1", "10", "9", "a1b2", "a1b10", "٣", "a٣", "Z", "z2/1"]


def test_numbers_sort_by_value() -> None:
    assert in_order(["10", "9", "a10", "a2", "1", "b"]) == ["1", "9", "10", "a2", "a10", "b"]
    assert in_order(["x10", "x٣", "x2"]) == ["x2", "x٣", "x10"]
    assert in_order(["a1", "a01"]) == in_order(["a01", "a1"]) == ["a01", "a1"]
    assert in_order(["9" * 5000, "1" + "0" * 5000]) == ["9" * 5000, "1" + "0" * 5000]


def test_the_order_is_that_of_predict() -> None:
    for first, second in itertools.permutations(NAMES, 2):
        theirs = sources.natural(Path(first)) < sources.natural(Path(second))
        if first and second:  # Path("") is "."
            assert (natural(first) < natural(second)) == theirs, (first, second)


def test_images_are_what_predict_takes_for_images() -> None:
    assert set(sources.SUFFIXES) | {".npy"} == set(SUFFIXES)


def test_splits_go_by_their_usual_names() -> None:
    assert [as_split(each, "x") for each in ("Train", " validation ", "VALID", "testing", "")] == [
        *("train", "val", "val", "test", ""),
    ]
    with pytest.raises(InputError, match="line 3: the split 'tset' is unknown: did you mean 'test'"):
        as_split("tset", "line 3")


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
