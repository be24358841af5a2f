"""Answers of two runtimes to the same images -> how far apart they are, on scales that stay when logits are small.

The largest logit is no scale: a head of two classes leaves it near zero on images of nothing, and any rounding is then
"far". The final norm keeps an embedding's size, and what a head makes of an embedding of that size is known by its
weights; those are the scales.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vitrail.network.heads import Head
from vitrail.types import Array

Norm = Callable[[Array], float]


def largest(values: Array) -> float:
    """The norm for arithmetic that differs in the order of sums alone: one wrong value is enough."""
    return float(np.abs(values).max(initial=0.0))


def typical(values: Array) -> float:
    """The norm for rounding: the root of the mean square; a few values may fall to the other side."""
    return float(np.sqrt(np.square(values, dtype=np.float64).mean())) if values.size else 0.0


def distance(ours: Array, theirs: Array, norm: Norm = largest, least: float = 0.0) -> float:
    """The norm of the difference as a share of that of ours, taken as `least` where it is less; infinite where shapes
    differ or a value is none."""
    if ours.shape != theirs.shape or not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return float("inf")
    return norm(ours - theirs) / max(norm(ours), least, 1e-12)


def from_class_mean(logits: Array) -> Array:
    """Logits (B, K) without what all classes of an image have in common, which softmax does not see."""
    if logits.ndim != 2 or logits.shape[1] < 2:
        return logits
    centred: Array = logits - logits.mean(axis=1, keepdims=True)
    return centred


def head_scale(head: Head, embedding: Array) -> float:
    """The typical logit that a head gives for an embedding of this size that points anywhere; 0 without a head."""
    if head.classify is None:
        return 0.0
    weights = [each.weight.detach().float() for each in (head.classify, head.distil) if each is not None]
    rows = torch.cat(weights, dim=1) / len(weights)  # the logits of two heads are averaged
    return float(rows.norm(dim=1).square().mean().sqrt()) * typical(embedding)


def head_of(head: Head, embedding: Array) -> Array | None:
    """The logits that the network's own head makes of an embedding; None where embeddings are means of two tokens."""
    if head.distilled:
        return None
    weight: Tensor = next(head.parameters(), torch.zeros(()))
    with torch.inference_mode():
        logits: Array = head(torch.from_numpy(embedding).to(weight)).float().cpu().numpy()
    return logits


def changed_answers(ours: Array, theirs: Array, multi_label: bool = False) -> float:
    """The share of our certainty that is in answers theirs changes; a near tie hardly counts."""
    if multi_label:
        margin, changed = np.abs(ours), (ours > 0) != (theirs > 0)
    else:
        ordered = np.sort(ours, axis=1)  # (B, K)
        margin = ordered[:, -1] - ordered[:, -2] if ours.shape[1] > 1 else np.ones(len(ours))
        changed = ours.argmax(axis=1) != theirs.argmax(axis=1)
    return float((margin * changed).sum() / max(float(margin.sum()), 1e-12))
