"""read_data: what a name stands for, and what is no data."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from vitrail.data import read_data
from vitrail.errors import InputError


@pytest.mark.parametrize("source", [None, 3, b"x", "", "a\0b"])
def test_no_name_at_all(source: object) -> None:
    with pytest.raises(
        InputError,
        match="data: expected a folder of class folders, .* or of CIFAR, a table .*, or vitrail:fashion, got",
    ):
        read_data(source)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("never", r"no data in .*never \(No such file or directory\): expected a folder"),
        ("vitrail:fashon", "no built-in data 'vitrail:fashon': did you mean 'vitrail:fashion'"),
        ("x.zip", "x.zip is an archive: unpack it first: expected a folder"),
        ("x.jpg", "x.jpg is one image: expected a folder"),
        ("x.parquet", "x.parquet is of another kind: save the table as CSV"),
        ("x.bin", "x.bin is of a kind that is not known"),
    ],
)
def test_names_that_are_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wrong: str) -> None:
    monkeypatch.chdir(tmp_path)
    if name.startswith("x."):
        Path(name).touch()
    with pytest.raises(InputError, match=wrong):
        read_data(name)


@pytest.mark.fault("I11")
def test_a_pipe_is_never_opened(tmp_path: Path) -> None:
    for name in ("x", "x.csv", "x.npz"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(InputError, match="is a pipe, socket or device: expected a folder"):
            read_data(tmp_path / name)
    (tmp_path / "set").mkdir()
    os.mkfifo(tmp_path / "set/train-images-idx3-ubyte")
    os.mkfifo(tmp_path / "set/train-labels-idx1-ubyte")
    with pytest.raises(InputError, match="train-images-idx3-ubyte: expected a file"):
        read_data(tmp_path / "set")


def test_a_pattern_is_for_folders(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("path,label\n")
    for source in (tmp_path / "x.csv", "vitrail:fashion"):
        with pytest.raises(InputError, match="a pattern reads labels from the names of files in a folder, which this"):
            read_data(source, pattern="(?P<label>.*)")


def test_suffixes_in_capitals_will_do(tmp_path: Path) -> None:
    """As cameras and Windows write them."""
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "LABELS.CSV").write_text("path,label\na.jpg,cat\nb.jpg,dog\n")
    assert read_data(tmp_path / "LABELS.CSV").classes == ("cat", "dog")
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 4, 4), np.uint8), labels=[0, 1])
    (tmp_path / "x.npz").rename(tmp_path / "X.NPZ")
    assert read_data(tmp_path / "X.NPZ").classes == ("0", "1")
