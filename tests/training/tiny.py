"""A tiny training with every part that has a state: Muon and AdamW, an average, dropout, augmentation, batch norm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.data.augmentation import Augment
from vitrail.data.cache import Views
from vitrail.data.samples import Dataset, Sample
from vitrail.images import Preprocess
from vitrail.network.config import ConvStem, ViTConfig
from vitrail.network.vit import ViT
from vitrail.training.job import Job, Part
from vitrail.training.plan import Plan
from vitrail.training.recipe import Recipe

CONFIG = ViTConfig(
    image_size=(8, 8),
    patch_size=(2, 2),
    channels=1,
    width=16,
    depth=2,
    heads=2,
    mlp_width=32,
    classes=3,
    stem=ConvStem((8,)),
    drop_path=0.1,
    dropout=0.1,
)
RECIPE = Recipe(
    batch=8,
    optimiser="muon",
    lr=2e-3,
    ema=0.9,
    smoothing=0.1,
    augment=Augment(shift=1, flip=True, erase=0.2, mixup=0.2, cutmix=0.5),
)


def make_images(count: int = 64) -> Dataset:
    """Three classes of noise with a bright corner each."""
    dice = np.random.default_rng(7)
    labels = np.arange(count) % 3
    images = dice.integers(0, 120, (count, 8, 8), dtype=np.uint8)
    for row, label in enumerate(labels):
        images[row, 4 * (label % 2) : 4 * (label % 2) + 3, 4 * (label // 2) : 4 * (label // 2) + 3] += 100
    samples = tuple(
        Sample(f"{row}", (f"class {label}",), "val" if row % 4 == 0 else "train") for row, label in enumerate(labels)
    )
    return Dataset("noise", samples, images, ("class 0", "class 1", "class 2"))


def job(folder: Path, steps: int, recipe: Recipe = RECIPE, **changes: Any) -> Job:
    """The training in a folder; changes are of Job."""
    torch.manual_seed(0)
    dataset = make_images()
    preprocess = Preprocess(size=8, crop=1.0, channels=1)
    parts = []
    for split in ("train", "val"):
        part = dataset.part(split)
        parts.append(Part(Views(part, preprocess), part.targets()))
    plan = Plan(
        data="noise",
        classes=dataset.classes,
        task="single-label",
        model=CONFIG,
        preprocess=preprocess,
        recipe=recipe,
        steps=steps,
        per_epoch=len(parts[0].targets) // recipe.batch,
        seed=3,
        threads=1,
        versions={},
    )
    folder.mkdir(parents=True, exist_ok=True)
    made = Job(
        plan=plan,
        model=ViT(CONFIG),
        train=parts[0],
        val=parts[1],
        folder=folder,
        threads=1,
        save_seconds=0.02,
        save_share=0.5,
    )
    return replace(made, **changes)
