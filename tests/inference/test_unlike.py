"""Real photos of hands are familiar to a network that was shown hands; fruits, digits and noise are unlike them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from vitrail.checkpoint import Checkpoint
from vitrail.data.readers import read_data
from vitrail.data.splits import split
from vitrail.images.ood_detector import OodDetector
from vitrail.types import Array
from vitrail.weights.resize import with_size


@pytest.fixture(scope="module")
def network(fixtures: Path) -> Checkpoint:
    """Weights of ImageNet as they are: features as of any network, without a training in between."""
    return with_size(vitrail.load(fixtures / "vit_tiny_patch16_224_in1k.safetensors"), 64)


@pytest.fixture(scope="module")
def hands(network: Checkpoint, fixtures: Path) -> dict[str, Array]:
    """Embeddings of every second photo: 40 % to learn from, 30 % to set the promise, 30 % to measure."""
    photos = split(read_data(str(fixtures / "sign_language_digits")), val=0.3, test=0.3, seed=0).dataset
    return {name: vitrail.embed(network, list(photos.part(name).images)[::2]) for name in ("train", "val", "test")}


def alarms(ood: OodDetector, embedding: Array) -> float:
    return float(ood.is_unlike(ood.familiarity(embedding)).mean())


def test_other_images_are_told_apart(network: Checkpoint, hands: dict[str, Array], fixtures: Path) -> None:
    ood = OodDetector.fit(hands["train"], hands["val"])
    packed = (fixtures / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes()
    others: dict[str, list[Any]] = {
        "fruits": sorted((fixtures / "fruits360_10" / "test").rglob("*.jpg"))[::4],
        "digits": list(np.frombuffer(gzip.decompress(packed), np.uint8, offset=16).reshape(-1, 28, 28)[:100]),
        "noise": list(np.random.default_rng(0).integers(0, 256, (50, 100, 100, 3), np.uint8)),
    }
    for name, images in others.items():
        assert alarms(ood, vitrail.embed(network, images)) >= 0.95, name


def test_false_alarms_are_as_promised(hands: dict[str, Array]) -> None:
    """On hands that set nothing: in one division of the photos, and closer to it over many."""
    ood = OodDetector.fit(hands["train"], hands["val"])
    assert alarms(ood, hands["test"]) == pytest.approx(0.05, abs=0.05)
    held_out, dice, rates = np.concatenate([hands["val"], hands["test"]]), np.random.default_rng(0), []
    for _ in range(60):
        order = dice.permutation(len(held_out))
        setting, measuring = np.split(held_out[order], [len(hands["val"])])
        rates.append(alarms(ood.calibrated(setting), measuring))
    assert np.mean(rates) == pytest.approx(0.05, abs=0.01)
