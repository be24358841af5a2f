"""Evaluations and reports to test pages by."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from evaluation.markup import Page, read
from vitrail.evaluation.report import Report, build
from vitrail.evaluation.results import Evaluation, Score
from vitrail.evaluation.scoring import evaluation_of
from vitrail.evaluation.training_sections import (
    DataFacts,
)

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


CLASSES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")


@cache
def made(
    count: int = 300,
    classes: tuple[str, ...] = CLASSES,
    lift: float = 2.0,
    reject: float | None = 0.5,
    seed: int = 0,
    folder: str = "photos",
) -> Evaluation:
    dice = np.random.default_rng(seed)
    targets = np.random.default_rng(1).integers(0, len(classes), count)
    logits = dice.normal(size=(count, len(classes)))
    logits[np.arange(count), targets] += lift
    logits[np.arange(count), (targets + 1) % len(classes)] += 0.8
    names = [f"{folder}/{place:04d}.png" for place in range(count)]
    return evaluation_of(
        logits, targets, names, classes, "single-label", 1.3, None, reject, "flowers", "test", resamples=20
    )


@cache
def several() -> Evaluation:
    dice = np.random.default_rng(0)
    targets = (dice.random((120, 4)) < 0.4).astype(int)
    logits = dice.normal(size=(120, 4)) + 3 * (targets - 0.5)
    names = [f"{place}.png" for place in range(120)]
    return evaluation_of(
        logits, targets, names, CLASSES[:4], "multi-label", None, [0.4] * 4, None, "scenes", "test", resamples=20
    )


def square(row: int) -> Image.Image:
    return Image.new("RGB", (8, 8), (row % 256, row // 256, 77))


def history(epochs: int = 6, rise: float = 0.0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for epoch in range(1, epochs + 1):
        rows += [
            {"event": "step", "epoch": epoch, "step": 10 * epoch - 5, "loss": 2 / epoch, "lr": 1e-3 / epoch},
            {
                "event": "epoch",
                "epoch": epoch,
                "step": 10 * epoch,
                "loss": 1.8 / epoch,
                "val_loss": 2 / min(epoch, 3) + rise * max(0, epoch - 3),
                "val_score": 1 - 0.5 / epoch,
                "best": epoch <= 4,
            },
        ]
    return rows


def full(**changes: Any) -> Report:
    facts: dict[str, Any] = {
        "title": "flowers-3",
        "command": "vitrail train flowers --epochs 6 --seed 3",
        "summary": [("parameters", "2,679,370")],
        "history": history(),
        "times": [{"epoch": 1, "data_seconds": 2.0, "compute_seconds": 8.0, "images_per_second": 600.0}],
        "stages": [("nearest neighbours", Score(0.5, 0.4, 0.6), "20 of them"), ("linear probe", 0.62, "")],
        "evaluation": made(),
        "validation": made(seed=3),
        "images": square,
        "seen": [(square(place), CLASSES[place % 7]) for place in range(9)],
        "data": DataFacts("flowers", CLASSES, {"train": [90] * 7, "test": [10, 60, 50, 40, 30, 20, 90]}, {"hidden": 2}),
        "environment": [("torch", "2.13.0")],
        "warnings": ["The batch is small."],
    }
    return Report(**(facts | changes))


@cache
def whole() -> Page:
    return read(build(full()))
