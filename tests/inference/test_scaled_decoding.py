"""scaling_effect: what scaled decoding does to a real network's answers on photographs."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.checkpoint import Checkpoint
from vitrail.errors import InputError
from vitrail.images import Preprocess
from vitrail.images.model_info import About, Described
from vitrail.inference import ScalingEffect, predict, scaling_effect


@pytest.fixture(scope="module")
def real(fixtures: Path) -> Checkpoint:
    return vitrail.load(fixtures / "vit_tiny_patch16_224_in1k.safetensors")


@pytest.fixture(scope="module")
def photos(fixtures: Path) -> list[bytes]:
    """JPEGs of 1600x1200: a cat, a cup, an astronaut, a rocket; three photographs of hands as they are, 3024x3024."""
    folder = Path(pytest.importorskip("skimage.data").__file__).parent
    found = []
    for name in ("chelsea.png", "coffee.png", "astronaut.png", "rocket.jpg"):
        with Image.open(folder / name) as image:
            large = image.convert("RGB").resize((1600, 1200), Image.Resampling.BICUBIC)
        file = io.BytesIO()
        large.save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    folder = fixtures / "sign_language_digits" / "7"
    hands = sorted(folder.iterdir(), key=lambda path: (path.stat().st_size, path.name))[-3:]
    return [*found, *(path.read_bytes() for path in hands)]


def test_the_answers_of_a_real_network_stay(real: Checkpoint, photos: list[bytes]) -> None:
    """Seven photographs, every likeliest class the same; no probability moves by more than 0.05."""
    found = scaling_effect(real, photos, batch=4)
    assert found[:3] == (7, 7, 1.0)
    assert 1e-5 < found.largest_difference < 0.05
    scaled = dataclasses.replace(real, preprocess=dataclasses.replace(real.preprocess, scaled_decoding=True))
    assert scaling_effect(scaled, photos, batch=7) == pytest.approx(found, abs=1e-5)
    before, after = (predict(each, photos, top=1000) for each in (real, scaled))
    apart = 0.0
    for one, other in zip(before, after, strict=True):
        by_label = dict(zip(other.labels, other.probabilities, strict=True))
        pairs = zip(one.labels, one.probabilities, strict=True)
        apart = max(apart, *(abs(by_label[label] - value) for label, value in pairs))
    assert apart == pytest.approx(found.largest_difference, abs=1e-5)


def test_images_that_nothing_is_done_to_do_not_count(real: Checkpoint, photos: list[bytes]) -> None:
    small = np.zeros((100, 100, 3), np.uint8)
    assert scaling_effect(real, [small, small]) == ScalingEffect(2, 0, 1.0, 0.0)
    assert scaling_effect(real, [small, photos[0]])[:2] == (2, 1)
    for wrong in ([], "a.jpg"):
        with pytest.raises(InputError):
            scaling_effect(real, wrong)  # type: ignore[arg-type]


class Steps(Described):
    """A stand-in network whose logits depend on whether the full image was seen, and are `apart` if it was not."""

    def __init__(self, full: np.ndarray, apart: float) -> None:
        self.about = About(Preprocess(size=32), ("smooth", "sharp"))
        self.full, self.apart = full, apart
        self.given: list[int] = []

    def run(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.given.append(len(pixels))
        same = np.array([np.array_equal(each, self.full) for each in pixels])
        logits = np.where(same[:, None], [0.0, 1.0], [self.apart, 0.0]).astype(np.float32)  # (B, 2)
        return logits, logits


def test_near_ties_are_settled_before_they_are_compared() -> None:
    """Two of three images are scaled: as far apart as 0.2 they are decided in full, at 0.5 they stay as they are."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((400, 400), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    images = [file.getvalue(), np.zeros((20, 20, 3), np.uint8), file.getvalue()]
    full = Preprocess(size=32)(file.getvalue())
    near, clear = Steps(full, 0.2), Steps(full, 0.5)
    assert scaling_effect(near, images, batch=2) == ScalingEffect(3, 2, 1.0, 0.0, 2)
    assert near.given == [1] * 6  # of each batch the scaled one: in full, scaled, and in full again
    found = scaling_effect(clear, images, batch=3)
    one, other = 1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(0.5))  # how likely sharp is, in full and scaled
    assert found[:3] == (3, 2, 0.0)
    assert found.largest_difference == pytest.approx(one - other, abs=1e-6)
    assert (found.settled, clear.given) == (0, [2, 2])
