"""Scaled decoding is judged by what it does to right answers: labelled images, with and without."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.checkpoint import Checkpoint
from vitrail.data.readers import read_data
from vitrail.evaluation import Evaluation
from vitrail.images import Preprocess
from vitrail.images.model_info import ModelInfo
from vitrail.inference import RuntimeBase, predict

CLASSES = {"chelsea.png": "Egyptian cat", "coffee.png": "espresso", "rocket.jpg": "missile"}


def accuracy(found: Evaluation) -> float:
    return found.scores["top1"].value


def scaled(runtime: Checkpoint) -> Checkpoint:
    return runtime.with_preprocess(dataclasses.replace(runtime.preprocess, scaled_decoding=True))


@pytest.fixture(scope="module")
def real(fixtures: Path) -> Checkpoint:
    return vitrail.load(fixtures / "vit_tiny_patch16_224_in1k.safetensors")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of 1600x1200 in a folder for each class, each image in three cuts."""
    folder = Path(pytest.importorskip("skimage.data").__file__).parent
    root = tmp_path_factory.mktemp("photos")
    for name, label in CLASSES.items():
        (root / label).mkdir()
        with Image.open(folder / name) as image:
            original = image.convert("RGB")
        for number, share in enumerate((0.0, 0.04, 0.08)):
            w, h = original.size
            cut = original.crop((int(share * w), int(share * h), w, h))
            cut.resize((1600, 1200), Image.Resampling.BICUBIC).save(root / label / f"{number}.jpg", quality=90)
    return root


def test_a_real_network_is_right_as_often(real: Checkpoint, photos: Path) -> None:
    """The same labelled photographs decoded in full and at a part of their size: other pixels, the same score."""
    found = vitrail.compare(real, scaled(real), read_data(photos))
    assert accuracy(found.a) == accuracy(found.b) >= 2 / 3
    assert (found.only_a, found.only_b) == (0, 0)
    paths = sorted(photos.rglob("*.jpg"))
    before, after = predict(real, paths, top=1), predict(scaled(real), paths, top=1)
    apart = [abs(a.probabilities[0] - b.probabilities[0]) for a, b in zip(before, after, strict=True)]
    assert 1e-5 < max(apart) < 0.05


class Sharp(RuntimeBase):
    """A stand-in network that is sure of what it sees in full, and wrong about what it does not."""

    def __init__(self, full: np.ndarray, preprocess: Preprocess) -> None:
        self.about = ModelInfo(preprocess, ("smooth", "sharp"))
        self.full = full

    def run(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        same = np.array([np.array_equal(each, self.full) for each in pixels])
        logits = np.stack([~same, same], 1).astype(np.float32)  # (B, 2)
        return logits, logits


def test_a_network_that_it_harms_is_found_out(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((400, 400), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    for name in ("sharp", "smooth"):
        (tmp_path / name).mkdir()
    (tmp_path / "sharp" / "a.jpg").write_bytes(file.getvalue())
    Image.new("RGB", (20, 20)).save(tmp_path / "smooth" / "b.png")
    full = Preprocess(size=32)
    first = Sharp(full(file.getvalue()), full)
    second = first.with_preprocess(dataclasses.replace(full, scaled_decoding=True))
    found = vitrail.compare(first, second, read_data(tmp_path))
    assert (accuracy(found.a), accuracy(found.b)) == (1.0, 0.5)
    assert (found.only_a, found.only_b) == (1, 0)
