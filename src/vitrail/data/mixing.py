"""Mixing: a batch of pixels and targets -> the same batch, each image mixed with another of it.

The partner is the batch in reverse, so any size will do: one image, or the middle of an odd batch, stays itself.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augmentation import Augment
from vitrail.data.counter_rng import key
from vitrail.errors import InputError


class Mixed(NamedTuple):
    """Pixels (B, C, H, W) and targets (B, K) after mixing."""

    pixels: Tensor
    targets: Tensor


def mix_batch(pixels: Tensor, targets: Tensor, augment: Augment, *, seed: int, epoch: int, step: int) -> Mixed:
    """Mixup (Zhang et al. 2018) or CutMix (Yun et al. 2019), with one share for the batch; the inputs stay."""
    if not augment.mixup and not augment.cutmix:
        return Mixed(pixels, targets)
    if targets.ndim != 2 or len(targets) != len(pixels):
        raise InputError(f"targets: expected ({len(pixels)}, K), one row an image, got {tuple(targets.shape)}")
    dice = np.random.Generator(np.random.Philox(key=key(seed, f"mix {epoch}", step)))
    coin = dice.random() < 0.5
    cut = augment.cutmix > 0 and (coin or not augment.mixup)
    alpha = augment.cutmix if cut else augment.mixup
    share = 1 - float(dice.beta(alpha, alpha))  # of the partner
    if not cut:
        return Mixed(_blend(pixels, share), _blend(targets, share))
    top, bottom = _side(pixels.shape[2], share, dice.random())
    left, right = _side(pixels.shape[3], share, dice.random())
    found = pixels.clone()
    found[:, :, top:bottom, left:right] = pixels[:, :, top:bottom, left:right].flip(0)
    # The border cuts boxes off, so the labels follow the pixels that were really replaced.
    return Mixed(found, _blend(targets, (bottom - top) * (right - left) / (pixels.shape[2] * pixels.shape[3])))


def one_hot(labels: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """Class numbers (B,) -> targets (B, K), as `CrossEntropyLoss(label_smoothing=…)` sees them."""
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise InputError(f"labels: expected class numbers from 0 to {classes - 1}, got {int(wrong)}")
    targets = torch.full((len(labels), classes), smoothing / classes)
    return targets.scatter_(1, labels[:, None].long(), 1 - smoothing + smoothing / classes)  # (B, K)


def _blend(values: Tensor, share: float) -> Tensor:
    """As much of the partner as `share` says; the same values where the partner is the image itself."""
    return values.flip(0).sub_(values).mul_(share).add_(values)


def _side(length: int, share: float, place: float) -> tuple[int, int]:
    """Where a box of this share of the area begins and ends along one side, its centre anywhere."""
    cut = int(length * math.sqrt(share))
    start = int(place * length) - cut // 2
    return max(start, 0), min(start + cut, length)
