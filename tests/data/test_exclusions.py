"""exclude: the images named in a table are gone, no others are, and a name that is not known is an error."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from vitrail.data import Dataset, Sample, exclude
from vitrail.errors import InputError

NAMES = ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2, blue.jpg", os.fsdecode(b"dog/\xff.jpg"))


def dataset(root: Path) -> Dataset:
    samples = tuple(Sample(name, (name[:3],)) for name in NAMES)
    return Dataset("photos", samples, [root / name for name in NAMES], ("cat", "dog"))


def write(folder: Path, text: str) -> Path:
    (folder / "out.csv").write_bytes(os.fsencode(text))
    return folder / "out.csv"


def test_names_in_the_column_path_are_excluded(tmp_path: Path) -> None:
    table = write(tmp_path, f'reason,path\nblurred,cat/2.jpg\nleak,"{NAMES[3]}"\nodd,{NAMES[4]}\nagain,cat/2.jpg\n')
    kept, count = exclude(dataset(tmp_path), table)
    assert count == 3
    assert [each.name for each in kept.samples] == ["cat/1.jpg", "dog/1.jpg"]
    assert list(kept.images) == [tmp_path / "cat/1.jpg", tmp_path / "dog/1.jpg"]
    assert kept.classes == ("cat", "dog")


def test_a_column_exclude_decides(tmp_path: Path) -> None:
    answers = ["", "0", "No", "yes", " x "]
    rows = "".join(f'"{name}",{answer}\n' for name, answer in zip(NAMES, answers, strict=True))
    kept, count = exclude(dataset(tmp_path), write(tmp_path, f"path,Exclude\n{rows}"))
    assert (count, [each.name for each in kept.samples]) == (2, list(NAMES[:3]))
    for answer in ("no", "n", "N", "false", "FALSE", " no ", "0", " "):
        same, none = exclude(dataset(tmp_path), write(tmp_path, f"path,exclude\ncat/1.jpg,{answer}\nnever.jpg,no\n"))
        assert (none, same.samples) == (0, dataset(tmp_path).samples), answer


def test_paths_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = write(tmp_path, f"path\n{tmp_path}/cat/1.jpg\n./dog/1.jpg\n")
    kept, _ = exclude(dataset(tmp_path), table)
    assert [each.name for each in kept.samples] == [NAMES[1], NAMES[3], NAMES[4]]


def test_images_in_arrays_go_by_name(tmp_path: Path) -> None:
    samples = tuple(Sample(f"train/{row}", ("ab"[row % 2],)) for row in range(4))
    data = Dataset("x.npz", samples, np.arange(4)[:, None, None], ("a", "b"))
    kept, count = exclude(data, write(tmp_path, "path\ntrain/2\n"))
    assert (count, np.asarray(kept.images).ravel().tolist()) == (1, [0, 1, 3])


@pytest.mark.parametrize(
    "text, wrong",
    [
        (
            "path\ncat/1.jpg\ncat/3.jpg\ncat/4.jpg\n",
            "excludes 2 images not in photos: line 3: cat/3.jpg; line 4",
        ),
        ("path\ncat/1.jpg\ncat/2.jpg\n", "leaves photos without any image of 'cat': exclude fewer"),
        ("name\ncat/1.jpg\n", "has no column 'path'"),
    ],
)
def test_what_cannot_be_excluded(tmp_path: Path, text: str, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        exclude(dataset(tmp_path), write(tmp_path, text))


def test_images_without_labels_are_never_all_excluded(tmp_path: Path) -> None:
    data = Dataset("photos", (Sample("1", ()), Sample("2", ())), np.zeros((2, 4, 4), np.uint8), (), "multi-label")
    kept, count = exclude(data, write(tmp_path, "path\n2\n"))
    assert ([each.name for each in kept.samples], count) == (["1"], 1)
    with pytest.raises(InputError, match="leaves photos without any image: exclude fewer"):
        exclude(data, write(tmp_path, "path\n1\n2\n"))


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="never.csv cannot be read: No such file"):
        exclude(dataset(tmp_path), tmp_path / "never.csv")
