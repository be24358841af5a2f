"""Images in arrays: idx files and .npz, what their labels mean, and claims that are not believed."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.data import Dataset, read_data
from vitrail.data.idx import check_size
from vitrail.errors import InputError

Array = np.ndarray[Any, Any]

IMAGES = np.arange(6 * 2 * 3, dtype=np.uint8).reshape(6, 2, 3)
NUMBERS = np.array([3, 10, 3, 2, 10, 2])


def idx(array: Array, shape: tuple[int, ...] | None = None, kind: int = 8) -> bytes:
    shape = array.shape if shape is None else shape
    return struct.pack(">BBBB", 0, 0, kind, len(shape)) + struct.pack(f">{len(shape)}I", *shape) + array.tobytes()


def write_idx(folder: Path, **changed: bytes) -> Path:
    """Four images to train and two to test; the test half is packed, and named with dots."""
    folder.mkdir(exist_ok=True)
    files = {
        "train-images-idx3-ubyte": idx(IMAGES[:4]),
        "train-labels-idx1-ubyte": idx(NUMBERS[:4].astype(np.uint8)),
        "t10k-images.idx3-ubyte.gz": gzip.compress(idx(IMAGES[4:])),
        "t10k-labels.idx1-ubyte.gz": gzip.compress(idx(NUMBERS[4:].astype(np.uint8))),
    }
    for name, data in (files | changed).items():
        (folder / name).write_bytes(data)
    return folder


def npz(path: Path, **arrays: object) -> Dataset:
    np.savez_compressed(path / "x.npz", **{name: np.asarray(each) for name, each in arrays.items()})
    return read_data(path / "x.npz")


def labels(data: Dataset) -> list[tuple[str, ...]]:
    return [each.labels for each in data.samples]


# idx


def test_idx_files(tmp_path: Path) -> None:
    data = read_data(write_idx(tmp_path))
    assert data.classes == ("2", "3", "10")
    assert [tuple(each)[:3] for each in data.samples] == [
        ("train/0", ("3",), "train"),
        ("train/1", ("10",), "train"),
        ("train/2", ("3",), "train"),
        ("train/3", ("2",), "train"),
        ("test/0", ("10",), "test"),
        ("test/1", ("2",), "test"),
    ]
    assert np.array_equal(data.images, IMAGES)
    assert data.part("test").targets().tolist() == [2, 0]


def test_an_unpacked_file_goes_before_a_packed_one(tmp_path: Path) -> None:
    data = read_data(write_idx(tmp_path, **{"train-images-idx3-ubyte.gz": b"still on its way"}))
    assert np.array_equal(data.images, IMAGES)


def test_one_half_may_be_alone(fixtures: Path) -> None:
    data = read_data(fixtures / "mnist")
    assert (data.splits, np.shape(data.images), data.classes) == (("test",), (10000, 28, 28), tuple("0123456789"))
    assert data.targets()[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]  # as everyone knows them
    assert np.asarray(data.images)[0].sum() == 18454


@pytest.mark.parametrize(
    "data, wrong",
    [
        (b"", "no idx file"),
        (b"\x1f\x8b\x08\x00", "no idx file"),
        (idx(IMAGES[:4], kind=0x0D), "numbers of kind 0x0d, expected bytes"),
        (idx(IMAGES[:4])[:10], "is cut short: get the file anew"),
        (idx(IMAGES[:4])[:-1], r"\[4, 2, 3\] takes 24 bytes, 23 are there"),
        (idx(IMAGES[:4]) + b"x", "takes 24 bytes, more are there"),
        (idx(IMAGES[:4], (4_000_000_000, 2, 3)), "bytes that claim to unpack to 24,000,000,000: refused"),
        (idx(IMAGES[:4], (4_000_000, 28, 28)), "bytes that claim to unpack to 3,136,000,000: refused"),
        (idx(IMAGES[:3]), "4 labels for 3 images in train"),
        (idx(IMAGES[:4, :, :2]), "must be alike in size and kind, got train uint8 .4, 2, 2.; test uint8 .2, 2, 3."),
        (idx(NUMBERS[:4].astype(np.uint8)), r"images are uint8 \[4\], expected"),
    ],
)
def test_idx_files_that_lie(tmp_path: Path, data: bytes, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        read_data(write_idx(tmp_path, **{"train-images-idx3-ubyte": data}))


def test_damaged_gzip_and_missing_halves(tmp_path: Path) -> None:
    packed = gzip.compress(idx(IMAGES[4:]))
    for data, wrong in ((packed[:-9], "Compressed file ended"), (b"plain", "Not a gzipped file")):
        with pytest.raises(InputError, match=f"t10k-images.* cannot be read: {wrong}"):
            read_data(write_idx(tmp_path, **{"t10k-images.idx3-ubyte.gz": data}))
    (tmp_path / "t10k-images.idx3-ubyte.gz").unlink()
    with pytest.raises(InputError, match="has no images of test, which is half of an idx set"):
        read_data(tmp_path)


# npz


@pytest.mark.parametrize("train, test", [("train_", "test_"), ("x_train y_train", "x_test y_test")])
def test_npz_by_split(tmp_path: Path, train: str, test: str) -> None:
    names = [
        name for half in (train, test) for name in (half.split() if " " in half else [half + "images", half + "labels"])
    ]
    values = [IMAGES[:4], NUMBERS[:4], IMAGES[4:], NUMBERS[4:, None]]
    data = npz(tmp_path, **dict(zip(names, values, strict=True)), extra=np.ones(3))
    assert labels(data) == [(str(each),) for each in NUMBERS]
    assert [each.split for each in data.samples] == ["train"] * 4 + ["test"] * 2
    assert np.array_equal(data.images, IMAGES)


def test_npz_with_names_and_splits(tmp_path: Path) -> None:
    splits = np.array(["train", "train", "", "val", "validation", "test"])
    names = ["zero", "one", "two"]
    data = npz(tmp_path, images=IMAGES, labels=[0, 1, 2, 0, 1, 2], splits=splits, classes=names)
    assert data.classes == ("one", "two", "zero")
    assert labels(data) == [("zero",), ("one",), ("two",)] * 2
    assert data.targets().tolist() == [2, 0, 1] * 2
    assert [each.split for each in data.samples] == ["train", "train", "", "val", "val", "test"]
    assert [each.name for each in data.samples] == list("012345")
    assert read_data(tmp_path / "x.npz", classes=names).targets().tolist() == [0, 1, 2] * 2


def test_labels_may_be_text_or_marks(tmp_path: Path) -> None:
    text = npz(tmp_path, images=IMAGES, labels=np.array(["b", "a", "b", "é", "a", "b"]))
    assert text.classes == ("a", "b", "é")
    binary = npz(tmp_path, images=IMAGES, labels=np.array([each.encode() for each in ("b", "a", "b", "é", "a", "b")]))
    assert labels(binary) == labels(text)
    one = npz(tmp_path, images=IMAGES, labels=np.eye(3)[[0, 1, 2, 0, 1, 2]])
    assert (one.task, one.targets().tolist()) == ("single-label", [0, 1, 2, 0, 1, 2])
    marks = np.array([[1, 0], [0, 0], [1, 1], [0, 1], [0, 1], [0, 1]])
    several = npz(tmp_path, images=IMAGES, labels=marks, classes=["x", "y"])
    assert several.task == "multi-label"
    assert labels(several) == [("x",), (), ("x", "y"), ("y",), ("y",), ("y",)]
    assert np.array_equal(several.targets(), marks)


def test_the_order_of_memory_does_not_matter(tmp_path: Path) -> None:
    colour = np.arange(6 * 2 * 3 * 3, dtype=np.float32).reshape(6, 2, 3, 3) / 108
    data = npz(tmp_path, images=np.asfortranarray(colour), labels=NUMBERS.astype(">u2"))
    assert np.array_equal(data.images, colour)
    assert labels(data) == [(str(each),) for each in NUMBERS]


@pytest.mark.parametrize(
    "arrays, wrong",
    [
        ({"images": IMAGES}, "has images but no array 'labels'"),
        (
            {"labels": NUMBERS},
            "has no images: expected the arrays train_images and train_labels, or images and labels",
        ),
        ({"images": IMAGES, "labels": NUMBERS[:5]}, "5 labels for 6 images"),
        ({"images": IMAGES, "labels": NUMBERS - 3}, "labels from -1 to 7, expected 0 or more"),
        (
            {"images": IMAGES, "labels": NUMBERS, "classes": ["a", "b"]},
            "from 2 to 10, expected 0 to 1, as classes has 2",
        ),
        ({"images": IMAGES, "labels": NUMBERS / 2}, "labels of kind float64, expected whole numbers or names"),
        ({"images": IMAGES, "labels": np.full((6, 2), 2)}, "expected nothing but 0 and 1"),
        (
            {"images": IMAGES, "labels": np.eye(6), "classes": ["a", "b"]},
            "labels have 6 columns, but classes has 2 names",
        ),
        ({"images": IMAGES, "labels": np.zeros((6, 1, 1), int)}, r"labels of shape \[6, 1, 1\]"),
        (
            {"images": IMAGES, "labels": list("aabbcc"), "classes": ["a", "b"]},
            "labels that classes does not name: 'c'",
        ),
        ({"images": IMAGES, "labels": [0, 1] * 3, "classes": ["a", "a"]}, "classes: expected every name once"),
        ({"images": IMAGES, "labels": [0, 1] * 3, "classes": ["a", "b", "c"]}, "has no images of 'c'"),
        ({"images": IMAGES, "labels": [0, 1] * 3, "classes": [1, 2]}, "classes: expected a list of text, got int64"),
        ({"images": IMAGES, "labels": [0, 1] * 3, "splits": ["train"]}, "1 splits for 6 images"),
        ({"images": IMAGES, "labels": [0, 1] * 3, "splits": ["x"] * 6}, "splits: the split 'x' is unknown"),
        ({"images": IMAGES[:, 0], "labels": NUMBERS}, r"images are uint8 \[6, 3\], expected \(n, H, W\)"),
        ({"images": IMAGES.astype(np.int64), "labels": NUMBERS}, "images are int64"),
        ({"images": np.zeros((6, 3, 8, 8)), "labels": NUMBERS}, "seem to have channels first"),
        ({"images": np.array([{}] * 6), "labels": NUMBERS}, "'images.npy' holds Python objects, which is a pickle"),
        ({"images": IMAGES.astype("m8"), "labels": NUMBERS}, "values of kind timedelta64, expected numbers or text"),
    ],
)
def test_arrays_that_make_no_set(tmp_path: Path, arrays: dict[str, object], wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        npz(tmp_path, **arrays)


def header(shape: tuple[int, ...], word: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": word, "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize(
    "data, wrong",
    [
        (header((2, 10**6, 10**6)) + bytes(24), "takes 2,000,000,000,000 bytes, 24 are there: refused"),
        (header((2, 3, 4)) + bytes(23), "takes 24 bytes, 23 are there"),
        (header((2, -3, -4)) + bytes(24), "refused"),
        (b"\x93NUMPY\1\0\xff\xff{", "is no array that can be read"),
        (b"\x93NUMPY\7\0", "is no array that can be read"),
        (b"GIF89a", "is no array that can be read"),
        (header((2, 3, 4)).replace(b"), }", b", { "), "is no array that can be read"),
    ],
)
def test_headers_that_lie(tmp_path: Path, data: bytes, wrong: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("images.npy", data)
        archive.writestr("labels.npy", header((2,)) + b"\0\1")
    with pytest.raises(InputError, match=wrong):
        read_data(tmp_path / "x.npz")


def test_arrays_with_headers_of_the_second_kind(tmp_path: Path) -> None:
    """numpy writes them where a header is long, and the third kind where a name in it is not ASCII."""
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name, array, version in (("images", IMAGES, (2, 0)), ("labels", NUMBERS, (3, 0))):
            file = io.BytesIO()
            np.lib.format.write_array(file, array, version)
            archive.writestr(f"{name}.npy", file.getvalue())
    data = read_data(tmp_path / "x.npz")
    assert np.array_equal(data.images, IMAGES)
    assert labels(data) == [(str(each),) for each in NUMBERS]


def test_how_much_a_file_may_unpack_to() -> None:
    """16 MiB, or a hundred times what it weighs; and never more than 8 GiB."""
    for weight, most in ((0, 16 << 20), (1000, (16 << 20) + 100_000), (1 << 40, 8 << 30)):
        check_size("x", weight, most)
        with pytest.raises(InputError, match=f"x: {weight:,} bytes that claim to unpack to {most + 1:,}: refused"):
            check_size("x", weight, most + 1)


def test_a_small_file_does_not_unpack_to_a_large_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"bytes that claim to unpack to 40,000,\d+: refused; use a folder of images"):
        npz(tmp_path, images=np.zeros((2, 2000, 10000), np.uint8), labels=[0, 1])


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"PK\3\4 and no more of it than that")
    with pytest.raises(InputError, match="x.npz: a zip archive that is damaged"):
        read_data(tmp_path / "x.npz")
