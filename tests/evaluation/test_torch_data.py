"""evaluate on torch datasets and loaders: the numbers of the same folder, whichever way its images come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

import vitrail
from network import renames
from vitrail import progress
from vitrail.checkpoint import Checkpoint
from vitrail.errors import InputError
from vitrail.evaluation import Evaluation, evaluate
from vitrail.images import Preprocess
from vitrail.network import ViT, ViTConfig

CLASSES = ("ant", "bee", "cat")
COUNT = 21


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    torch.manual_seed(1)
    model = ViT(ViTConfig(image_size=16, patch_size=8, width=16, depth=1, heads=2, mlp_width=32, classes=3)).eval()
    renames.randomise(model)
    return Checkpoint(model, Preprocess(size=16), CLASSES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    dice = np.random.default_rng(0)
    for row in range(COUNT):
        path = root / CLASSES[row % 3] / f"{row}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(dice.integers(0, 256, (20, 26, 3), np.uint8)).save(path)
    return root


class Photos(torch.utils.data.Dataset[Any]):
    """A folder as torch has it: number of the class beside each image, in the order of `classes`."""

    def __init__(self, folder: Path, transform: Callable[[Image.Image], Any] = lambda image: image) -> None:
        self.paths = [path for name in CLASSES for path in sorted((folder / name).iterdir(), key=lambda p: int(p.stem))]
        self.classes: Any = list(CLASSES)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Any:
        path = self.paths[row]
        return self.transform(Image.open(path).copy()), CLASSES.index(path.parent.name)


class Dicts(Photos):
    """The same as Hugging Face's data sets give it: a dict each, the names of the classes beside the label."""

    def __init__(self, folder: Path, transform: Callable[[Image.Image], Any], names: tuple[str, str]) -> None:
        super().__init__(folder, transform)
        self.keys, self.features = names, {names[1]: SimpleNamespace(names=list(CLASSES))}

    def __getitem__(self, row: int) -> Any:
        image, label = super().__getitem__(row)
        return dict(zip((*self.keys, "path"), (image, label, str(self.paths[row])), strict=True))


class Streamed(IterableDataset[Any]):
    """The same without numbers or an end that is known."""

    def __init__(self, photos: Photos) -> None:
        self.photos = photos

    def __iter__(self) -> Iterator[Any]:
        return (self.photos[row] for row in range(len(self.photos)))


def same(one: Evaluation, other: Evaluation) -> bool:
    return (
        np.array_equal(one.logits, other.logits)
        and np.array_equal(one.targets, other.targets)
        and one.scores == other.scores
        and one.per_class == other.per_class
    )


def with_names(photos: Photos) -> list[tuple[Image.Image, str]]:
    return [(image, CLASSES[label]) for image, label in (photos[row] for row in range(len(photos)))]


def apart(batch: list[Any]) -> list[Any]:
    """Images of a batch that are no tensors."""
    return [list(each) for each in zip(*batch, strict=True)]


def test_every_way_gives_the_numbers_of_the_folder(checkpoint: Checkpoint, folder: Path) -> None:
    expected = evaluate(checkpoint, folder, resamples=50)
    assert len(expected) == COUNT
    photos, prepared = Photos(folder), Photos(folder, checkpoint.transform)
    arrays = Photos(folder, np.array)
    ways = {
        "images": photos,
        "8-bit arrays": arrays,
        "8-bit tensors": Photos(folder, lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1)),
        "pixels": prepared,
        "a list of names": with_names(photos),
        "a generator": iter(with_names(photos)),
        "a stream": Streamed(photos),
        "a loader of pixels": DataLoader(prepared, batch_size=4),
        "a loader of images": DataLoader(photos, batch_size=4, collate_fn=apart),
        "a loader of 8-bit tensors": DataLoader(arrays, batch_size=5),
        "a loader without batches": DataLoader(prepared, batch_size=None),
        "dicts": Dicts(folder, lambda image: image, ("image", "label")),
        "a loader of dicts": DataLoader(Dicts(folder, checkpoint.transform, ("pixel_values", "labels")), batch_size=4),
        "parts": ConcatDataset([Subset(prepared, range(8)), Subset(prepared, range(8, COUNT))]),
    }
    for name, data in ways.items():
        assert same(evaluate(checkpoint, data, resamples=50), expected), name


def test_a_loader_with_workers_gives_the_same(checkpoint: Checkpoint, folder: Path) -> None:
    loader = DataLoader(
        Photos(folder, checkpoint.transform), batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    assert same(evaluate(checkpoint, loader, resamples=20), evaluate(checkpoint, folder, resamples=20))


def test_a_shuffled_loader_gives_the_same_accuracy(checkpoint: Checkpoint, folder: Path) -> None:
    loader = DataLoader(Photos(folder, checkpoint.transform), batch_size=4, shuffle=True)
    one, other = evaluate(checkpoint, loader, resamples=0), evaluate(checkpoint, folder, resamples=0)
    assert one.scores["top1"].value == other.scores["top1"].value
    assert sorted(one.targets) == sorted(other.targets)


def test_numbers_are_meant_in_the_order_of_the_datasets_own_classes(checkpoint: Checkpoint, folder: Path) -> None:
    """The checkpoint's classes stand in another order: names decide."""
    other = replace(checkpoint, classes=("cat", "ant", "bee"))
    ours, theirs = evaluate(other, Photos(folder), resamples=0), evaluate(other, folder, resamples=0)
    assert np.array_equal(ours.targets, theirs.targets)
    assert ours.targets.tolist()[:7] == [1] * 7
    dicts = Dicts(folder, lambda image: image, ("img", "label"))
    del dicts.classes  # their names are known by the label's feature alone
    assert np.array_equal(evaluate(other, dicts, resamples=0).targets, theirs.targets)
    for wrapped in (DataLoader(Photos(folder, other.transform)), Subset(Photos(folder), range(COUNT))):
        assert evaluate(other, wrapped, resamples=0).scores == theirs.scores


def test_labels_without_names_are_numbers_of_the_checkpoint(checkpoint: Checkpoint, folder: Path) -> None:
    pairs = [(image, torch.tensor(CLASSES.index(name))) for image, name in with_names(Photos(folder))]
    assert same(evaluate(checkpoint, pairs, resamples=0), evaluate(checkpoint, folder, resamples=0))


def test_several_labels_an_image_come_as_names_or_as_zeros_and_ones(checkpoint: Checkpoint, folder: Path) -> None:
    several = replace(checkpoint, task="multi-label")
    images = [image for image, _ in with_names(Photos(folder))]
    names = [(image, ["ant", "cat"] if row % 2 else []) for row, image in enumerate(images)]
    marks = [(image, torch.tensor([1.0, 0.0, 1.0]) * (row % 2)) for row, image in enumerate(images)]
    one, other = evaluate(several, names, resamples=0), evaluate(several, marks, resamples=0)
    assert np.array_equal(one.targets, other.targets)
    assert one.targets[:2].tolist() == [[0, 0, 0], [1, 0, 1]]


def test_an_image_that_cannot_be_read_is_left_out_with_its_label(checkpoint: Checkpoint, folder: Path) -> None:
    pairs: list[Any] = with_names(Photos(folder))
    pairs.insert(1, (b"no image at all", "cat"))
    told: list[str] = []
    result = evaluate(checkpoint, pairs, resamples=0, skip=lambda name, error: told.append(name))
    assert told == ["image 1"]
    assert [name for name, _ in result.skipped] == told
    assert result.names[:2] == ("image 0", "image 2")
    assert np.array_equal(result.targets, evaluate(checkpoint, folder, resamples=0).targets)


def test_done_counts_every_image(checkpoint: Checkpoint, folder: Path) -> None:
    for transform in (checkpoint.transform, np.asarray):
        told: list[int] = []
        evaluate(checkpoint, Photos(folder, transform), batch=8, resamples=0, done=told.append)
        assert sum(told) == COUNT


def test_a_bar_knows_how_many_images_there_are(
    checkpoint: Checkpoint, folder: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    photos = Photos(folder, checkpoint.transform)
    for data, last in (
        (DataLoader(photos, batch_size=4), "21/21 images"),
        (Subset(photos, range(5)), "5/5 images"),
        (Streamed(photos), "21 images"),
    ):
        evaluate(checkpoint, data, resamples=0, progress=True)
        assert capsys.readouterr().err.rstrip().endswith(f"\r{last}")
        evaluate(checkpoint, data, resamples=0)
        assert capsys.readouterr().err == ""  # nobody watches


def test_what_it_was_is_named(checkpoint: Checkpoint, folder: Path) -> None:
    result = evaluate(checkpoint, DataLoader(Photos(folder, checkpoint.transform)), resamples=0)
    assert (result.source, result.split) == ("Photos", "all")
    rooted = Photos(folder)
    rooted.root = str(folder)  # type: ignore[attr-defined]
    assert evaluate(checkpoint, rooted, resamples=0).source == f"Photos {folder}"


def test_other_classes_are_an_error_with_a_diff(checkpoint: Checkpoint, folder: Path) -> None:
    photos = Photos(folder)
    photos.classes = ["ant", "bees", "cat"]
    with pytest.raises(InputError, match=r"missing: 'bee'; unknown: 'bees' \(did you mean 'bee'\?\)"):
        evaluate(checkpoint, photos)
    with pytest.raises(InputError, match="'dog' is unknown"):
        evaluate(checkpoint, [(Image.new("RGB", (20, 20)), "dog")])


@pytest.mark.parametrize("scale, shift", [(1.0, 0.0), (255.0, 0.0)])
def test_pixels_that_were_not_normalised_are_refused(checkpoint: Checkpoint, scale: float, shift: float) -> None:
    pixels = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0)) * scale + shift
    with pytest.raises(InputError, match=r"not normalised as this network's are, from -1 to 1: .*checkpoint.transform"):
        evaluate(checkpoint, [(pixels, 0), (pixels, 1)])


IMAGE, PIXELS = Image.new("RGB", (20, 20)), torch.full((3, 16, 16), -0.5)


@pytest.mark.parametrize(
    "data, words",
    [
        ([], "no images"),
        ([(PIXELS[:, :8], 0)], r"expected pixels \(3, 16, 16\)"),
        ([(PIXELS, 0), (IMAGE, 1)], "expected pixels"),
        ([(IMAGE, 0), (PIXELS, 1)], "pixels among images"),
        ([IMAGE, IMAGE], r"expected a pair \(image, label\)"),
        ([(IMAGE, 0, "a.jpg")], "got tuple of 3 from list"),
        ([{"image": IMAGE, "class": 0}], "expected a dict with image or pixel_values and label or labels, got one of"),
        ([(IMAGE, 3)], "class number 3: expected one from 0 to 2"),
        ([(IMAGE, -1)], "class number -1"),
        ([(IMAGE, 0.5)], "number or the name of a class"),
        ([(IMAGE, True)], "number or the name of a class"),
        ([(IMAGE, None)], "number or the name of a class"),
        ({"a": 1}, "expected a Dataset, or a path"),
        (7, "expected a Dataset, or a path"),
    ],
)
def test_what_cannot_be_evaluated_is_told(checkpoint: Checkpoint, data: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        evaluate(checkpoint, data)


def test_a_split_belongs_to_a_folder(checkpoint: Checkpoint, folder: Path) -> None:
    with pytest.raises(InputError, match="no splits to choose 'test' from"):
        evaluate(checkpoint, Photos(folder), split="test")


def test_comparing_needs_images_that_keep_their_place(checkpoint: Checkpoint, folder: Path) -> None:
    with pytest.raises(InputError, match="one by one are for evaluate"):
        vitrail.compare(checkpoint, checkpoint, DataLoader(Photos(folder, checkpoint.transform)))  # type: ignore[arg-type]
