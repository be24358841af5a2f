"""Names: the usual names of splits, labels in one spelling."""

from __future__ import annotations

import pytest

from vitrail.data.naming import as_label, as_split
from vitrail.errors import InputError


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
