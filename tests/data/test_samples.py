"""Samples: the usual names of splits, labels split by split, and files by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitrail.data.samples import Files, Sample, as_split, labels_of
from vitrail.errors import InputError


def test_splits_go_by_their_usual_names() -> None:
    assert [as_split(each, "x") for each in ("Train", " validation ", "VALID", "testing", "")] == [
        *("train", "val", "val", "test", ""),
    ]
    with pytest.raises(InputError, match="line 3: the split 'tset' is unknown: did you mean 'test'"):
        as_split("tset", "line 3")


def test_labels_are_gathered_split_by_split() -> None:
    samples = [Sample("1", ("a",), "train"), Sample("2", ("b", "c"), "val"), Sample("3", ("d",)), Sample("4", ())]
    assert labels_of(samples) == {"a", "b", "c", "d"}
    assert labels_of(samples, ("train", "")) == {"a", "d"}
    assert labels_of(samples, ("test",)) == set()


def test_files_are_paths_when_asked_for() -> None:
    files = Files(Path("photos"), ["a/1.jpg", "b/2.jpg", "/far/3.jpg"])
    assert list(files) == [Path("photos/a/1.jpg"), Path("photos/b/2.jpg"), Path("/far/3.jpg")]
    assert list(files[::2]) == [Path("photos/a/1.jpg"), Path("/far/3.jpg")]
    assert (len(files), files[-1]) == (3, Path("/far/3.jpg"))
