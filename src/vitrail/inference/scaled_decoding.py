"""What scaled decoding does to the answers: a runtime and images -> how often and how far they differ."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vitrail.checks import check_int
from vitrail.errors import InputError
from vitrail.images import Preprocess, Resample, Source, check_image_list
from vitrail.inference.batches import Images
from vitrail.inference.prediction import probabilities
from vitrail.inference.runtime import Array, Runtime, check_runtime
from vitrail.inference.settling import near_ties


class ScalingEffect(NamedTuple):
    """Answers with scaled decoding beside those without."""

    images: int
    changed: int  # images of which the network sees other pixels, since they are scaled, or resized otherwise
    agreement: float  # share of the changed ones with the same likeliest class; 1.0 if none changed
    largest_difference: float  # of any probability of any of them
    settled: int = 0  # near ties among the changed ones, which `predict` decides by the full image, as here


def scaling_effect(runtime: Runtime, images: Images, batch: int = 16) -> ScalingEffect:
    """Compare the answers of a runtime with and without `Preprocess.scaled_decoding`, whichever of them it has.

    An image that cannot be read raises ImageError.
    """
    check_runtime(runtime)
    check_image_list(images)
    check_int("batch", batch, error=InputError)
    if not len(images) or not runtime.classes:
        raise InputError("expected images, and a network with a head, to compare answers")
    full, scaled = (replace(runtime.preprocess, scaled_decoding=way) for way in (False, True))
    resample: Resample | None = getattr(runtime, "resample", None)
    changed = agreeing = settled = 0
    largest = 0.0
    for start in range(0, len(images), batch):
        part = list(images[start : start + batch])
        before, after = full.batch(part), _read(scaled, part, resample)
        other = np.any(before != after, axis=(1, 2, 3))  # (B,)
        if not other.any():
            continue
        whole_logits, logits = (np.array(runtime.run(pixels[other])[0]) for pixels in (before, after))
        ties = np.flatnonzero(near_ties(logits, runtime.task))
        if len(ties):
            unclear = [part[row] for row in np.flatnonzero(other)[ties]]
            logits[ties] = runtime.run(_read(full, unclear, resample))[0]
        first, second = (probabilities(each, runtime.task, runtime.temperature) for each in (whole_logits, logits))
        settled += len(ties)
        changed += int(other.sum())
        agreeing += int((first.argmax(axis=1) == second.argmax(axis=1)).sum())
        largest = max(largest, float(np.abs(first - second).max()))
    return ScalingEffect(len(images), changed, agreeing / changed if changed else 1.0, largest, settled)


def _read(way: Preprocess, images: list[Source], resample: Resample | None) -> Array:
    """Pixels of some images, resized in a runtime's own way."""
    return way.normalise(np.stack([way.to_uint8(each, resample) for each in images]))
