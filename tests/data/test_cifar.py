"""CIFAR as it is published: both sets, both forms, and what is wrong with damaged files."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.data.cifar import LAYOUTS, find_cifar
from vitrail.data.readers import read_data
from vitrail.errors import InputError

Array = np.ndarray[Any, Any]

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
HUNDRED = tuple(f"thing_{number}" for number in range(100))
FORMS = ("python", "binary")


def rows(seed: int, count: int, classes: int) -> tuple[Array, list[int]]:
    """Images as CIFAR lays them, (n, 3072): all red, all green, all blue; and their labels."""
    dice = np.random.default_rng(seed)
    labels = dice.permutation(np.arange(count) + seed * count) % classes  # every class, in files enough
    return dice.integers(0, 256, (count, 3072), dtype=np.uint8), labels.tolist()


def text(value: bytes) -> bytes:
    """A text of Python 2 in a pickle."""
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value


def of_python_2(data: Array, more: dict[str, list[Any]]) -> bytes:
    """A dict with an array, as Python 2 and its numpy pickled it for CIFAR: protocol 2, texts without a kind."""
    shape = b"M" + struct.pack("<H", len(data)) + b"M" + struct.pack("<H", data.shape[1]) + b"\x86"
    kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\0K\1\x87R(K\3" + text(b"|") + b"NNNJ\xff\xff\xff\xff"
    kind += b"J\xff\xff\xff\xffK\0tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text(b"b") + b"\x87R"
    array += b"(K\1" + shape + kind + b"\x89" + text(data.tobytes()) + b"tb"
    lists = b""
    for key, values in more.items():
        items = b"".join(text(each.encode()) if isinstance(each, str) else b"K" + bytes([each]) for each in values)
        lists += text(key.encode()) + b"](" + items + b"e"
    return b"\x80\x02}(" + text(b"data") + array + lists + b"u."


def write(folder: Path, form: str, hundred: bool) -> dict[str, list[tuple[Array, list[int]]]]:
    """A small CIFAR in one of its forms; gives what went into its splits."""
    folder.mkdir(parents=True, exist_ok=True)
    names = HUNDRED if hundred else TEN
    train = ["train"] if hundred else [f"data_batch_{number}" for number in range(1, 6)]
    test = "test" if hundred else "test_batch"
    made: dict[str, list[tuple[Array, list[int]]]] = {"train": [], "test": []}
    for seed, file in enumerate([*train, test]):
        count = 100 if file == "train" else 7
        images, labels = rows(seed, count, len(names))
        made["test" if file == test else "train"].append((images, labels))
        if form == "binary":
            coarse = [np.full((count, 1), 99, np.uint8)] if hundred else []
            table = np.concatenate([*coarse, np.array(labels, np.uint8)[:, None], images], axis=1)
            (folder / f"{file}.bin").write_bytes(table.tobytes())
            continue
        keys: dict[str, list[Any]] = {"filenames": [f"{row}.png" for row in range(count)]}
        keys |= {"fine_labels": labels, "coarse_labels": [9] * count} if hundred else {"labels": labels}
        (folder / file).write_bytes(of_python_2(images, keys))
    if form == "binary":
        (folder / ("fine_label_names.txt" if hundred else "batches.meta.txt")).write_text("\n".join(names) + "\n\n")
    else:
        about = {"fine_label_names" if hundred else "label_names": list(names), "num_vis": 3072}
        (folder / ("meta" if hundred else "batches.meta")).write_bytes(pickle.dumps(about, 2))
    return made


@pytest.mark.row("002.08")
@pytest.mark.parametrize("hundred", [False, True], ids=["CIFAR-10", "CIFAR-100"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_its_images_labels_and_split(tmp_path: Path, form: str, hundred: bool) -> None:
    made = write(tmp_path / "cifar", form, hundred)
    data = read_data(tmp_path / "cifar")
    names = HUNDRED if hundred else TEN
    assert set(data.classes) == set(names)
    for split, parts in made.items():
        part = data.part(split)
        images = np.concatenate([images for images, _ in parts])
        labels = [label for _, labels in parts for label in labels]
        assert [each.labels for each in part.samples] == [(names[label],) for label in labels]
        for row in range(len(labels)):
            for channel in range(3):  # red, green, blue; rows from the top
                plane = images[row, 1024 * channel : 1024 * (channel + 1)].reshape(32, 32)
                np.testing.assert_array_equal(part.images[row][:, :, channel], plane)


def test_pickles_written_anew_are_read_too(tmp_path: Path) -> None:
    """By Python 3, with keys that are bytes; and images that happen to be text."""
    write(tmp_path, "python", False)
    plain = (np.arange(7 * 3072).reshape(7, 3072) % 100).astype(np.uint8)
    for protocol in (2, 3, 4):
        for key in (str.encode, str):
            content = {key("data"): plain, key("labels"): [1] * 7}
            (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol))
            part = read_data(tmp_path).part("test")
            np.testing.assert_array_equal(part.images[3][:, :, 0].ravel(), plain[3, :1024])
    umlauts = np.frombuffer("ä".encode() * (7 * 1536), np.uint8).reshape(7, 3072)  # bytes that are UTF-8, too
    (tmp_path / "test_batch").write_bytes(of_python_2(umlauts, {"labels": [1] * 7}))
    np.testing.assert_array_equal(read_data(tmp_path).part("test").images[0][0, :2, 0], [0xC3, 0xA4])


def test_nothing_of_a_pickle_is_ever_called(tmp_path: Path) -> None:
    write(tmp_path, "python", True)

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "touched",))

    (tmp_path / "test").write_bytes(pickle.dumps({"data": Evil(), "fine_labels": [1]}, 2))
    with pytest.raises(InputError, match="asks for more than plain values and arrays of bytes: refused"):
        read_data(tmp_path)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_wrong_is_told(tmp_path: Path, form: str) -> None:
    write(tmp_path, form, False)
    ending = ".bin" if form == "binary" else ""
    (tmp_path / f"data_batch_3{ending}").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"is CIFAR-10, but lacks data_batch_3{ending}: unpack the archive anew"):
        read_data(tmp_path)
    (tmp_path / "elsewhere").rename(tmp_path / f"data_batch_3{ending}")
    path = tmp_path / f"test_batch{ending}"
    intact = path.read_bytes()
    path.write_bytes(intact[:-5])
    with pytest.raises(InputError, match="get the file anew"):
        read_data(tmp_path)
    if form == "binary":
        path.write_bytes(bytes([10]) + intact[1:])
        with pytest.raises(InputError, match="labels from \\d to 10, expected 0 to 9"):
            read_data(tmp_path)
        return
    images, _ = rows(0, 7, 10)
    for data, message in (
        (of_python_2(images[:, :300], {"labels": [1] * 7}), r"no array of images \(n, 3072\)"),
        (of_python_2(images, {"labels": ["1"] * 7}), "no list of numbers 'labels'"),
        (of_python_2(images, {"labels": [1] * 6}), "6 labels for 7 images"),
        (pickle.dumps({"data": images.astype(float), "labels": [1] * 7}, 2), "an array of other things than bytes"),
        (pickle.dumps([1], 2), "expected one dict"),
        (intact + b"x", "nothing behind it"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=message):
            read_data(tmp_path)


def test_folders_called_train_and_test_are_no_cifar(tmp_path: Path) -> None:
    for name in ("train", "test", "meta"):
        (tmp_path / name).mkdir()
    assert find_cifar(tmp_path) is None
    assert len({each.files for each in LAYOUTS}) == 4
