"""A checkpoint and a runtime made of it -> the checkpoint whose out-of-distribution detector fits that runtime.

Rounding and token merging move embeddings a little: the Gaussian stays, its promise is made anew on images that choose.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vitrail.checkpoint import Checkpoint
from vitrail.data.samples import Dataset
from vitrail.errors import ImageError
from vitrail.images.ood_detector import MOST_FALSE_ALARMS, OodDetector, fewest, promised_by
from vitrail.inference import Runtime
from vitrail.inference.batches import run_batches
from vitrail.types import LogCallback

USED = 1000  # images, at most


def recalibrated(
    checkpoint: Checkpoint,
    ood: OodDetector | None,
    runtime: Runtime,
    choosing: Dataset,
    batch: int = 32,
    log: LogCallback = lambda text: None,
) -> Checkpoint:
    """The checkpoint with this detector, its false alarms promised of what the runtime makes of images that choose.

    Without one where they are too few, or were trained on: the promise is of images that the network has not seen.
    """
    if ood is None:
        return checkpoint
    if any(each.split == "train" for each in choosing.samples):
        log("no validation images: the file will not tell which images are unlike the training ones")
        return replace(checkpoint, ood=None)
    rows = np.linspace(0, len(choosing) - 1, min(USED, len(choosing))).round().astype(int)
    images = [choosing.images[row] for row in rows]
    results = list(run_batches(runtime, images, batch=batch, skip=_leave_out))
    embedding = np.concatenate([each.embedding for each in results]) if results else np.empty((0, ood.width))
    possible = promised_by(len(embedding))
    if possible is None:
        log(
            f"{len(embedding)} images are too few to promise at most {100 * MOST_FALSE_ALARMS:g} % false alarms "
            f"(expected {fewest(MOST_FALSE_ALARMS)}): the file will not tell which images are unlike the training ones"
        )
        return replace(checkpoint, ood=None)
    false_alarms = max(ood.false_alarms, possible)
    moved = float((ood.familiarity(embedding) <= ood.false_alarms).mean())
    log(
        f"images unlike the training ones: {100 * moved:.1f} % of {len(embedding)} images would be taken for such; "
        f"calibrated anew, so that at most {100 * false_alarms:g} % are"
    )
    return replace(checkpoint, ood=ood.calibrated(embedding, false_alarms))


def _leave_out(name: str, error: ImageError) -> None:
    """An image that cannot be read is told of by the judge, who reads the same."""
