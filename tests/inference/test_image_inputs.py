"""Whatever images come as: a path, a folder, one image, arrays, tensors, open files, generators; or pixels."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.checkpoint import Checkpoint
from vitrail.errors import ImageError, InputError
from vitrail.images import Preprocess
from vitrail.inference import predictions
from vitrail.inference.image_inputs import PreparedPixels, as_image, as_images, count_of
from vitrail.network import ViT, ViTConfig

CONFIG = ViTConfig(image_size=16, patch_size=4, width=24, depth=1, heads=1, mlp_width=48, classes=3, head_bias_init=0.0)
WAY = Preprocess(size=16)


@pytest.fixture(scope="module")
def small() -> Checkpoint:
    torch.manual_seed(0)
    model = ViT(CONFIG).eval()
    torch.nn.init.normal_(model.head.classify.weight)
    return Checkpoint(model, WAY, ("a", "b", "c"))


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (3, 20, 24, 3), dtype=np.uint8)


@pytest.fixture
def folder(values: np.ndarray, tmp_path: Path) -> Path:
    """Three images and something else."""
    for number, image in zip((1, 2, 10), values, strict=True):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("none")
    return tmp_path


def probabilities(small: Checkpoint, images: Any) -> np.ndarray:
    """By class, so that answers can be held against each other."""
    answers = vitrail.predict(small, images)
    return np.array([[p for _, p in sorted(zip(each.labels, each.probabilities, strict=True))] for each in answers])


def channels_first(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).movedim(-1, -3).contiguous()


ONE: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "path": lambda values, path: path,
    "text": lambda values, path: str(path),
    "PIL image": lambda values, path: Image.fromarray(values),
    "array": lambda values, path: values,
    "bytes": lambda values, path: path.read_bytes(),
    "bytearray": lambda values, path: bytearray(path.read_bytes()),
    "BytesIO": lambda values, path: io.BytesIO(path.read_bytes()),
    "tensor": lambda values, path: channels_first(values),
    "batch of one": lambda values, path: values[None],
    "list": lambda values, path: [path],
    "list of a tensor": lambda values, path: [channels_first(values)],
    "pattern": lambda values, path: path.parent / "1.p*",
}
SEVERAL: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "folder": lambda values, folder: folder,
    "folder as text": lambda values, folder: f"{folder}/",
    "array": lambda values, folder: values,
    "tensor": lambda values, folder: channels_first(values),
    "list": lambda values, folder: list(values),
    "tuple": lambda values, folder: tuple(Image.fromarray(each) for each in values),
    "generator": lambda values, folder: (folder / f"{number}.png" for number in (1, 2, 10)),
    "mixed": lambda values, folder: [
        values[0],
        channels_first(values[1]),
        io.BytesIO((folder / "10.png").read_bytes()),
    ],
    "pattern": lambda values, folder: str(folder / "*.png"),
}


@pytest.mark.parametrize("way", ONE)
def test_one_image_gives_a_list_of_one(small: Checkpoint, values: np.ndarray, folder: Path, way: str) -> None:
    expected = small.run(WAY.batch([values[0]]))
    answers = vitrail.predict(small, ONE[way](values[0], folder / "1.png"))
    assert len(answers) == 1
    name = str(folder / "1.png") if way in ("path", "text", "list", "pattern") else "image 0"
    assert answers[0].path == name
    assert np.argmax(expected[0]) == small.classes.index(answers[0].labels[0])
    found = probabilities(small, ONE[way](values[0], folder / "1.png"))
    assert np.abs(found - torch.from_numpy(expected[0]).double().softmax(-1).numpy()).max() < 1e-6
    assert np.abs(vitrail.embed(small, ONE[way](values[0], folder / "1.png")) - expected[1]).max() < 1e-5


@pytest.mark.parametrize("way", SEVERAL)
def test_several_images_are_answered_in_order(small: Checkpoint, values: np.ndarray, folder: Path, way: str) -> None:
    expected = small.run(WAY.batch(list(values)))
    found = probabilities(small, SEVERAL[way](values, folder))
    assert np.abs(found - torch.from_numpy(expected[0]).double().softmax(-1).numpy()).max() < 1e-6
    assert np.abs(vitrail.embed(small, SEVERAL[way](values, folder)) - expected[1]).max() < 1e-5
    streamed = [each.labels for each in predictions(small, SEVERAL[way](values, folder))]
    assert streamed == [each.labels for each in vitrail.predict(small, list(values))]


def test_float_tensors_are_pixels_that_are_prepared(small: Checkpoint, values: np.ndarray) -> None:
    pixels = torch.from_numpy(WAY.batch(list(values)))
    for given in (pixels, pixels.double(), pixels.requires_grad_()):
        assert np.array_equal(probabilities(small, given), probabilities(small, list(values)))
    assert np.abs(vitrail.embed(small, pixels[0]) - vitrail.embed(small, values[0])).max() < 1e-6
    done: list[int] = []
    answers = vitrail.predict(small, pixels, batch=2, done=done.append)
    assert ([each.path for each in answers], done) == (["image 0", "image 1", "image 2"], [2, 1])
    for wrong in (pixels[:, :, :8], pixels[:, :1], pixels[None], torch.zeros(16, 16, 3)):
        with pytest.raises(InputError, match=r"float tensors are pixels .*\(B, 3, 16, 16\), got one of shape"):
            vitrail.predict(small, wrong)
    for wrong in ((pixels + 1) / 2, 255 * pixels):  # not normalised; of another scale
        with pytest.raises(InputError, match=r"are not normalised as this network's are, from -1 to 1"):
            vitrail.predict(small, wrong)
    assert len(vitrail.predict(small, torch.ones(1, 3, 16, 16))) == 1  # a white image
    with pytest.raises(InputError, match=r"prepared already: .* as one tensor \(B, C, H, W\)"):
        vitrail.predict(small, [pixels[0]])


@pytest.mark.parametrize(
    "wrong, words",
    [
        (torch.zeros(20, 24, 3, dtype=torch.uint8), "channels come first and not last"),
        (torch.zeros(7, 20, 24, dtype=torch.uint8), "channels come first$"),
        (torch.zeros(20, 24, dtype=torch.uint8), "channels come first$"),
        (torch.zeros(3, 20, 24, dtype=torch.int64), "8-bit images .*got torch.int64"),
        (np.zeros((3, 20, 24), np.uint8), "its channels first, or 3 grey ones"),
        (np.zeros(20, np.uint8), r"got one of shape \(20,\)"),
        (None, "expected images as a path, .*got NoneType"),
        (5, "got int"),
        ({"a.png": 1}, "got dict"),
        (io.StringIO("text"), "open it in binary mode"),
        ("nowhere.png", "no file or folder nowhere.png"),
        ([None], "expected a path, bytes"),
    ],
)
def test_what_is_ambiguous_or_no_image_is_refused(small: Checkpoint, wrong: Any, words: str) -> None:
    for verb in (vitrail.predict, vitrail.embed):
        with pytest.raises(InputError, match=words):
            verb(small, wrong)


def test_how_many_there_are_is_known_where_it_can_be(values: np.ndarray, folder: Path) -> None:
    for given, count in (
        *((way(values[0], folder / "1.png"), 1) for way in ONE.values()),
        *((way(values, folder), 3) for name, way in SEVERAL.items() if name != "generator"),
        (torch.zeros(5, 3, 16, 16), 5),
        (iter(values), None),
    ):
        assert count_of(given, as_images(given, WAY)) == count


def test_grey_arrays_and_networks_of_other_channels() -> None:
    grey = Preprocess(size=16, channels=1)
    assert len(list(as_images(np.zeros((5, 20, 24), np.uint8), grey))) == 5
    assert len(list(as_images(np.zeros((3, 20, 24), np.uint8), grey))) == 3
    assert len(list(as_images(np.zeros((20, 24), np.uint8), grey))) == 1
    bands = Preprocess(size=16, channels=5, mean=(0.5,) * 5, std=(0.5,) * 5)
    [one] = as_images(np.zeros((20, 24, 5), np.uint8), bands)
    assert np.shape(one) == (20, 24, 5)
    [one] = as_images(torch.zeros(5, 20, 24, dtype=torch.uint8), bands)
    assert np.shape(one) == (20, 24, 5)
    assert isinstance(as_images(torch.zeros(5, 16, 16), bands), PreparedPixels)


def test_a_list_may_hold_folders_and_patterns(small: Checkpoint, folder: Path) -> None:
    names = [Path(each.path).name for each in vitrail.predict(small, folder)]
    assert len(names) > 1
    given = [folder, str(folder / "*.png"), folder / names[0]]
    paths = [Path(each.path).name for each in vitrail.predict(small, given)]
    assert paths == [*names, *names, names[0]]
    assert count_of(given, as_images(given, small.preprocess)) is None  # only their end tells
    assert count_of(given[2:], as_images(given[2:], small.preprocess)) == 1


def test_an_open_file_of_text_or_at_its_end_is_told(small: Checkpoint, folder: Path) -> None:
    path = next(folder.glob("*.png"))
    with open(path) as text, pytest.raises(InputError, match="open it in binary mode"):
        vitrail.predict(small, text)
    with open(path, "rb") as file:
        file.read()
        with pytest.raises(ImageError, match=r"wants a seek\(0\) first"):
            vitrail.predict(small, file)


def test_files_that_are_open_keep_their_name(small: Checkpoint, folder: Path) -> None:
    with open(folder / "1.png", "rb") as file:
        [answer] = vitrail.predict(small, file)
    assert answer.path == str(folder / "1.png")


def test_folders_that_may_not_be_read_are_unreadable_images(
    small: Checkpoint, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir
    (folder / "private").mkdir()

    def forbidden(path: Any) -> Any:
        if str(path).endswith("private"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(ImageError, match="private: a folder that cannot be read"):
        vitrail.predict(small, folder)
    told: list[str] = []
    assert len(vitrail.predict(small, folder, skip=lambda name, error: told.append(name))) == 3
    assert told == [str(folder / "private")]


def test_one_image_of_an_explanation(small: Checkpoint, values: np.ndarray, folder: Path) -> None:
    expected = vitrail.explain(small, values[0], "attention", check=False)
    for way in ("path", "BytesIO", "tensor", "PIL image"):
        given = ONE[way](values[0], folder / "1.png")
        assert np.array_equal(vitrail.explain(small, given, "attention", check=False).map, expected.map), way
    with pytest.raises(InputError, match="expected one image, got a tensor of 3"):
        as_image(channels_first(values), WAY)
