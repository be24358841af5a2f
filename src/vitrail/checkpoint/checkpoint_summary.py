"""A checkpoint -> its Card: what it is, from where, which classes, what it scored."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from vitrail.images import Preprocess
from vitrail.reporting.html_page import counted
from vitrail.reporting.metric_names import metric_name, metric_value
from vitrail.reporting.object_card import Card, listing

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint

TELLING: Final = ("top1", "mean_ap", "exact", "macro_f1", "ece")  # of many scores
SPLIT_WORDS: Final = {
    "test": "test images",
    "val": "validation images, which also chose it",
    "train": "the images it learned from",
}


def checkpoint_card(checkpoint: Checkpoint) -> Card:
    """Nine rows at most are filled; what is not known is left out."""
    origin = checkpoint.provenance
    name = origin.run or os.path.basename(origin.source.rstrip("/"))
    return Card(
        f"Checkpoint: {name}" if name else "Checkpoint",
        (
            ("network", _network(checkpoint)),
            ("images", _images(checkpoint.preprocess)),
            ("classes", listing(checkpoint.classes) or "none: this network gives embeddings alone"),
            ("answers", _answers(checkpoint) if checkpoint.classes else ""),
            ("scored", scores_in_words(origin.metrics)),
            ("from", f"{origin.source} (read as {origin.family})" if origin.family else ""),
            ("learned from", "" if origin.family else origin.source),
            ("left open", origin.left_open and f"{origin.left_open}; .provenance.settings says why"),
            ("licence", origin.licence),
            ("started from" if origin.run else "notes", origin.notes),
        ),
    )


def scores_in_words(metrics: Mapping[str, float]) -> str:
    """The scores of a checkpoint on the images that tell most: "on test images: accuracy 74.2 %, …"."""
    for split in ("test", "val", "train"):
        scores = {key: metrics[f"{split}_{key}"] for key in TELLING if f"{split}_{key}" in metrics}
        if scores:
            words = [f"{metric_name(key)} {metric_value(key, value)}" for key, value in scores.items()]
            return f"on {SPLIT_WORDS[split]}: {', '.join(words)}"
    return ""


def _network(checkpoint: Checkpoint) -> str:
    config = checkpoint.model.config
    weights = list(checkpoint.model.parameters())
    heads = config.heads if isinstance(config.heads, int) else "/".join(map(str, config.heads))
    patch = " x ".join(map(str, config.cell))
    return (
        f"{counted(config.depth, 'block')} of width {config.width}, {heads} heads, patches of {patch}; "
        f"{sum(each.numel() for each in weights) / 1e6:.3g} M weights in {_kind(weights[0])} on {weights[0].device}"
    )


def _kind(weight: Any) -> str:
    return str(weight.dtype).removeprefix("torch.")


def _images(preprocess: Preprocess) -> str:
    height, width = preprocess.size
    bands = {1: "grey", 3: preprocess.order}.get(preprocess.channels, f"{preprocess.channels} channels")
    share = f" {preprocess.crop:.3g}" if preprocess.resize == "crop" else ""
    size = f"{height} x {width}" if height == width else f"{height} high, {width} wide"
    return f"{size}, {bands}; {preprocess.resize}{share}, {preprocess.interpolation}"


def _answers(checkpoint: Checkpoint) -> str:
    words = ["one label an image" if checkpoint.task == "single-label" else "any number of labels an image"]
    words.append("not calibrated" if checkpoint.temperature is None else "calibrated")
    if checkpoint.thresholds is not None:
        words.append("a threshold for each class")
    if checkpoint.reject is not None:
        words.append(f"minimum confidence {100 * checkpoint.reject:.3g} %")
    if checkpoint.ood is not None:
        words.append("tells unlike images")
    return ", ".join(words)
