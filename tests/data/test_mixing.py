"""Mixing: any batch, exact shares, and labels that follow the pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.augmentation import Augment
from vitrail.data.mixing import mix_batch, one_hot
from vitrail.errors import InputError


def batch_of(size: int, height: int = 9, width: int = 7) -> tuple[Tensor, Tensor]:
    """Pixels that say which image they are from: all of image i are i. Every image is a class of its own."""
    pixels = torch.arange(size, dtype=torch.float32).reshape(-1, 1, 1, 1).expand(size, 2, height, width).clone()
    return pixels, torch.eye(size)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("step", range(12))
def test_cutmix_labels_have_the_share_of_the_pixels(size: int, step: int) -> None:
    pixels, targets = batch_of(size)
    got = mix_batch(pixels, targets, Augment(cutmix=1.0), seed=3, epoch=0, step=step)
    for row in range(size):
        for source in range(size):
            share = (got.pixels[row] == source).double().mean().item()
            assert got.targets[row, source].item() == pytest.approx(share, abs=1e-6)
    rows = got.pixels.flatten(1)
    assert ((rows == torch.arange(size)[:, None]) | (rows == torch.arange(size).flip(0)[:, None])).all()
    changed = got.pixels[0, 0] != 0
    if changed.any():  # one rectangle, the same in every channel and image
        down, across = changed.any(1).nonzero().flatten(), changed.any(0).nonzero().flatten()
        assert changed.sum() == (down[-1] - down[0] + 1) * (across[-1] - across[0] + 1)
        assert torch.equal(got.pixels[0, 1] != 0, changed)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("step", range(5))
def test_mixup_mixes_pixels_and_labels_alike(size: int, step: int) -> None:
    torch.manual_seed(step)
    pixels, targets = torch.randn(size, 3, 4, 4), torch.eye(size)
    kept = pixels.clone()
    got = mix_batch(pixels, targets, Augment(mixup=0.8), seed=3, epoch=0, step=step)
    assert torch.equal(pixels, kept)
    own = got.targets[0, 0].item() if size > 1 else 1.0
    torch.testing.assert_close(got.pixels, own * pixels + (1 - own) * pixels.flip(0), rtol=0, atol=1e-6)
    torch.testing.assert_close(got.targets, own * targets + (1 - own) * targets.flip(0), rtol=0, atol=1e-6)
    torch.testing.assert_close(got.targets.sum(1), torch.ones(size), rtol=0, atol=1e-6)
    if size % 2:  # the middle one is its own partner, to the bit
        assert torch.equal(got.pixels[size // 2], pixels[size // 2])
        assert torch.equal(got.targets[size // 2], targets[size // 2])


def shares(how: Augment, count: int, **changes: int) -> list[float]:
    """How much of the first of two images is left, step after step."""
    pixels, targets = batch_of(2, 64, 64)
    settings = {"seed": 0, "epoch": 0} | changes
    return [mix_batch(pixels, targets, how, **settings, step=step).targets[0, 0].item() for step in range(count)]


def test_shares_are_drawn_from_the_beta_distribution() -> None:
    """Its variance is 1 / (4 (2 alpha + 1)), about a half."""
    for alpha in (0.2, 0.8, 5.0):
        found = np.array(shares(Augment(mixup=alpha), 1500))
        assert found.mean() == pytest.approx(0.5, abs=0.04)
        assert found.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.12)
        assert len(np.unique(found)) > 1000


def test_the_draw_is_a_function_of_seed_epoch_and_step() -> None:
    how = Augment(mixup=0.8, cutmix=1.0)
    first = shares(how, 20)
    torch.manual_seed(99)
    assert shares(how, 20) == first
    assert shares(how, 20, seed=1) != first
    assert shares(how, 20, epoch=1) != first
    assert len(set(first)) == 20


def test_where_both_are_given_each_batch_takes_one() -> None:
    pixels, targets = batch_of(2, 16, 16)
    how = Augment(mixup=1.0, cutmix=1.0)
    kinds = [
        len(mix_batch(pixels, targets, how, seed=0, epoch=0, step=step).pixels[0].unique()) for step in range(300)
    ]  # cutmix leaves 0 and 1, mixup one value between
    assert 110 < kinds.count(2) < 190
    only = Augment(cutmix=1.0)
    cut = [mix_batch(pixels, targets, only, seed=0, epoch=0, step=step).pixels for step in range(50)]
    assert all(((each == 0) | (each == 1)).all() for each in cut)


def test_cut_boxes_lie_anywhere() -> None:
    """Every part of the image is replaced at times, the middle more often than the rim, no side more."""
    pixels, targets = batch_of(2, 20, 30)
    how = Augment(cutmix=1.0)
    often = sum(mix_batch(pixels, targets, how, seed=0, epoch=0, step=step).pixels[0, 0] for step in range(600)) / 600
    for turned in (often.flip(0), often.flip(1)):
        assert (often - turned).abs().mean() < 0.06
    assert 0.08 < often.min() < often.max() < 0.6
    assert often[5:15, 7:23].mean() > often.mean()


def test_cut_boxes_have_the_area_that_was_drawn() -> None:
    """A box takes a uniform share of the area, less what the border cuts off: 0.321 is left of it in the mean."""
    replaced = 1 - np.array(shares(Augment(cutmix=1.0), 1500))
    side = np.sqrt(np.linspace(0, 1, 10_001))  # of a box, as a share of the image's
    expected = ((side - side**2 / 4) ** 2).mean()  # its centre is anywhere
    assert replaced.mean() == pytest.approx(expected, abs=0.02)
    assert replaced.max() > 0.85


def test_nothing_asked_nothing_changed() -> None:
    pixels, targets = batch_of(3)
    got = mix_batch(pixels, targets, Augment(flip=True), seed=0, epoch=0, step=0)
    assert got.pixels is pixels
    assert got.targets is targets
    with pytest.raises(InputError, match=r"targets: expected \(3, K\), one row an image, got \(3,\)"):
        mix_batch(pixels, torch.arange(3), Augment(mixup=1.0), seed=0, epoch=0, step=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothed_labels_are_torchs(smoothing: float) -> None:
    logits, labels = torch.randn(6, 5), torch.tensor([0, 4, 2, 2, 1, 3])
    targets = one_hot(labels, 5, smoothing)
    expected = F.cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(F.cross_entropy(logits, targets), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(targets.sum(1), torch.ones(6))
    assert targets[1].tolist() == pytest.approx([smoothing / 5] * 4 + [1 - 0.8 * smoothing])


def test_labels_beyond_the_classes_are_refused() -> None:
    with pytest.raises(InputError, match="labels: expected class numbers from 0 to 2, got 3"):
        one_hot(torch.tensor([0, 3]), 3)
    with pytest.raises(InputError, match="labels: expected class numbers from 0 to 2, got -1"):
        one_hot(torch.tensor([-1, 1]), 3)
