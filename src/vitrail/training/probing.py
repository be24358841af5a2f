"""Before full tuning: what the pretrained network's own features reach, by neighbours and by a linear probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import torch

from vitrail.checkpoint import Checkpoint
from vitrail.evaluation.intervals import wilson
from vitrail.evaluation.probes import Probe, features, fit_probe, knn, probe_head
from vitrail.evaluation.results import Score
from vitrail.network.vit import ViT
from vitrail.training.job import Part
from vitrail.training.validation import score_of
from vitrail.types import Array

NEIGHBOURS: Final = 10


class Stage(NamedTuple):
    """A way of using the network, and its score on the images the run is judged by."""

    name: str
    score: Score
    note: str


def probe(checkpoint: Checkpoint, parts: Mapping[str, Part], judged: str) -> tuple[tuple[Stage, ...], Probe]:
    """Fit neighbours and a probe on the training images, and score them on those of the split `judged`."""
    train, other, classes = parts["train"], parts[judged], len(checkpoint.classes)
    known, queries = (features(checkpoint, part.views) for part in (train, other))
    fitted = fit_probe(known, train.targets, classes)
    score = _score(fitted.logits(queries), other.targets, fitted.task)
    stages = [Stage("linear probe", score, "only a last layer is trained, on what the network gives")]
    if fitted.task == "single-label" and judged != "train":  # there, the nearest image is itself
        near = knn(known, train.targets, queries, NEIGHBOURS, classes=classes)
        note = f"the {NEIGHBOURS} nearest training images; nothing is learned"
        stages.insert(0, Stage("k-NN", _score(near, other.targets, fitted.task), note))
    return tuple(stages), fitted


def start_head(model: ViT, fitted: Probe, start: str) -> None:
    """Let a head that can start from the probe, so that tuning begins where that ends, or from zeros."""
    weight, bias = (torch.as_tensor(each) for each in probe_head(fitted))
    head = model.head
    if head.distilled or head.classify is None or head.classify.weight.shape != weight.shape:
        return
    with torch.no_grad():
        head.classify.weight.copy_(weight if start == "probe" else torch.zeros_like(weight))
        if head.classify.bias is not None:
            head.classify.bias.copy_(bias if start == "probe" else torch.zeros_like(bias))


def _score(logits: Array, targets: Array, task: str) -> Score:
    value = score_of(logits, targets, task)
    return Score(value, value, value) if task == "multi-label" else wilson(round(value * len(targets)), len(targets))
