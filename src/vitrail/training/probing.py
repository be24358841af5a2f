"""Before full tuning: what the pretrained network's own features reach, by neighbours and by a linear probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor

from vitrail.evaluation.intervals import wilson
from vitrail.evaluation.metrics import mean_average_precision, top_k
from vitrail.evaluation.probes import fit_probe, knn, probe_head
from vitrail.evaluation.results import Score
from vitrail.images import Preprocess
from vitrail.network.vit import ViT
from vitrail.training.job import Part
from vitrail.training.validation import outputs_of
from vitrail.types import Array

NEIGHBOURS: Final = 10


class Stage(NamedTuple):
    """A way of using the network, and its score on the images the run is judged by."""

    name: str
    score: Score
    note: str


class ProbeResult(NamedTuple):
    """What the features reach, and the probe as a head: weight (K, D), bias (K,)."""

    stages: tuple[Stage, ...]
    weight: Tensor
    bias: Tensor


def features_of(model: ViT, part: Part, preprocess: Preprocess, batch: int = 64) -> Array:
    """What the head receives for every image, where it receives several tokens their mean: (n, D)."""
    features = outputs_of(model, model.embed, part, preprocess, batch)
    return (features if features.ndim == 2 else features.flatten(1, -2).mean(1)).numpy()


def probe(
    model: ViT, preprocess: Preprocess, parts: Mapping[str, Part], judged: str, classes: int, task: str
) -> ProbeResult:
    """Fit neighbours and a probe on the training images, and score them on those of the split `judged`."""
    train, other = parts["train"], parts[judged]
    features, queries = (features_of(model, each, preprocess) for each in (train, other))
    fitted = fit_probe(features, train.targets, classes)
    weight, bias = probe_head(fitted)
    logits = queries @ weight.T + bias
    stages = [Stage("linear probe", _score(logits, other.targets, task), "the head alone, on cached features")]
    if task == "single-label" and judged != "train":  # there, the nearest image is itself
        near = knn(features, train.targets, queries, NEIGHBOURS, classes=classes)
        note = f"the {NEIGHBOURS} nearest training images; nothing is learned"
        stages.insert(0, Stage("k-NN", _score(near, other.targets, task), note))
    return ProbeResult(tuple(stages), torch.as_tensor(weight), torch.as_tensor(bias))


def start_head(model: ViT, probed: ProbeResult, start: str = "probe") -> bool:
    """Let the head start from the probe, so that tuning begins where that ends, or from zeros; whether it could."""
    head = model.head
    if head.distilled or head.classify is None or head.classify.weight.shape != probed.weight.shape:
        return False
    with torch.no_grad():
        head.classify.weight.copy_(probed.weight if start == "probe" else torch.zeros_like(probed.weight))
        if head.classify.bias is not None:
            head.classify.bias.copy_(probed.bias if start == "probe" else torch.zeros_like(probed.bias))
    return True


def _score(logits: Array, targets: Array, task: str) -> Score:
    if task == "multi-label":
        value = mean_average_precision(logits, targets)
        return Score(value, value, value)
    return wilson(round(top_k(logits, targets, 1) * len(targets)), len(targets))
