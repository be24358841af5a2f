"""After training: the best network on training and validation images -> OodDetector, which tells images unlike them."""

from __future__ import annotations

from typing import Final

import numpy as np
from torch.nn.functional import interpolate

from vitrail.checkpoint import Checkpoint, answers
from vitrail.checkpoint.devices import device_of
from vitrail.data.cache import Views, normalise
from vitrail.errors import InputError
from vitrail.images.ood_detector import MOST_FALSE_ALARMS, OodDetector, fewest, promised_by
from vitrail.reporting.html_page import counted
from vitrail.training.job import Job
from vitrail.types import Array

ENOUGH: Final = 512  # training images that are always looked at, where there are so many
MOST: Final = 10_000  # a Gaussian of a thousand numbers needs no more
SHARE: Final = 0.15  # of the images that training looked at: a look without gradients costs a third, so 5 % of its time
CALIBRATED: Final = 2000  # validation images, at most: the promise hardly gains from more


def fit_ood(job: Job, checkpoint: Checkpoint, validation: Array, seen: int) -> OodDetector | None:
    """From embeddings of training images, and of the validation images (n, D); None where nothing can be promised.

    `seen` is how many images training has looked at, each as often as it did. Validation images chose the epoch, and
    nothing that the distances are made of.
    """
    log, false_alarms = job.callbacks.log, promised_by(len(validation))
    if false_alarms is None:
        log(
            f"{counted(len(validation), 'validation image')} cannot promise at most {100 * MOST_FALSE_ALARMS:g} % "
            f"false alarms ({fewest(MOST_FALSE_ALARMS)} can): answers will not say which images are unlike "
            "the training ones"
        )
        return None
    dice = np.random.default_rng(job.plan.seed)
    count = min(len(job.train.targets), MOST, max(ENOUGH, int(SHARE * seen)))
    rows = np.sort(dice.permutation(len(job.train.targets))[:count])
    kept = np.sort(dice.permutation(len(validation))[:CALIBRATED])
    try:
        ood = OodDetector.fit(training_embeddings(job, checkpoint, rows), validation[kept], false_alarms)
    except (InputError, np.linalg.LinAlgError) as error:
        log(f"answers will not say which images are unlike the training ones: {error}")
        return None
    log(
        f"what is familiar was learned from {count:,} training images; at most {100 * false_alarms:g} % of images like "
        f"them are taken for unlike, set on {len(kept):,} validation images"
    )
    return ood


def training_embeddings(job: Job, checkpoint: Checkpoint, rows: Array, batch: int = 128) -> Array:
    """Embeddings (n, D) of these training images without augmentation; views with room for crops are scaled down."""
    preprocess, views = job.plan.preprocess, job.train.views
    parts = []
    for start in range(0, len(rows), batch):
        images = views.get(rows[start : start + batch])
        if tuple(images.shape[2:]) != preprocess.size:
            images = interpolate(images.float(), preprocess.size, mode="bilinear", antialias=True)
        parts.append(answers(checkpoint.model, normalise(images, preprocess, device_of(checkpoint.model)))[1])
    return np.concatenate(parts)


def answers_of(checkpoint: Checkpoint, views: Views, batch: int = 128) -> tuple[Array, Array]:
    """Logits (n, K) and embeddings (n, D) of every image, in order."""
    model, device = checkpoint.model, device_of(checkpoint.model)
    parts = [
        answers(model, normalise(views.get(range(start, min(start + batch, len(views)))), views.preprocess, device))
        for start in range(0, len(views), batch)
    ]
    logits, embeddings = zip(*parts, strict=True)
    return np.concatenate(logits), np.concatenate(embeddings)
