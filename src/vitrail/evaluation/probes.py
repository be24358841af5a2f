"""Probes: what features that lie in memory know of the classes, without training the network that made them.

Features are (n, D); targets are class numbers (n,), or 0 and 1 (n, K) for several labels.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from vitrail.checks import check_int, check_number
from vitrail.data.cache import Views, normalise
from vitrail.data.counter_rng import uniform
from vitrail.data.loader import epoch_order
from vitrail.data.samples import Dataset
from vitrail.errors import InputError
from vitrail.evaluation.logistic import Basis, basis_of, fit, tensor_of
from vitrail.evaluation.metrics import losses
from vitrail.images import check_image_list
from vitrail.inference import Runtime, probabilities
from vitrail.inference.batches import Images, run_batches
from vitrail.inference.image_reader import Named, Skip
from vitrail.types import Array, ProgressCallback

LADDER: Final = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5)  # values of l2 that are tried
TRIED: Final = 6000  # images they are tried on, at most
TRIED_FOLDS: Final = 3  # parts of these, each held out once
DEFAULT: Final = 1e-2  # l2 where there are too few to try


class Probe(NamedTuple):
    """A linear layer on standardised features: logits are (features - mean) / std @ weight.T + bias."""

    weight: Array  # (K, D) float64
    bias: Array  # (K,)
    mean: Array  # (D,)
    std: Array  # (D,)
    task: str = "single-label"
    l2: float = 0.0

    def logits(self, features: Array) -> Array:
        """Features (n, D) -> logits (n, K)."""
        weight, bias = probe_head(self)
        return np.asarray(features @ weight.T + bias)

    def probabilities(self, features: Array) -> Array:
        """Features (n, D) -> probabilities (n, K)."""
        return probabilities(self.logits(features), self.task)


def probe_head(probe: Probe) -> tuple[Array, Array]:
    """Weight (K, D) and bias (K,) for the features as they are: what a network's own head would need to hold."""
    weight = probe.weight / probe.std
    return weight, probe.bias - weight @ probe.mean


def features(
    runtime: Runtime,
    images: Dataset | Views | Images,
    *,
    batch: int = 64,
    threads: int = 2,
    skip: Skip | None = None,
    done: ProgressCallback | None = None,
) -> Array:
    """What the head receives of every image, in order: float32 (n, D).

    An image that cannot be read raises ImageError; give `skip` to be told of it, and its row is NaN. Views are
    images that were read before, for the preprocessing of this runtime.
    """
    if isinstance(images, Views):
        return _features_of_views(runtime, images, batch, done)
    sources: Images = images.images if isinstance(images, Dataset) else images
    check_image_list(sources)
    names = [result.name for result in images.samples] if isinstance(images, Dataset) else _numbered(images)
    embeddings: Array | None = None
    named = map(Named, names, sources)
    for result in run_batches(runtime, named, batch=batch, threads=threads, skip=skip, done=done):
        if embeddings is None:
            embeddings = np.full((len(names), result.embedding.shape[1]), np.nan, np.float32)
        embeddings[result.rows] = result.embedding
    if embeddings is None:
        raise InputError("no images that can be read, so no features")
    return embeddings


def fit_probe(features: Array, targets: Array, classes: int, *, l2: float | None = None, seed: int = 0) -> Probe:
    """Logistic regression: over all classes, or for several labels each by itself. `choose_l2` gives l2 unless given.

    The loss is the mean cross entropy + l2 / 2 * |weight|², on standardised features: scikit-learn's
    LogisticRegression with C = 1 / (n * l2), or twice that for two classes, of which it fits one row alone. A class
    that no image shows is never the answer.
    """
    features, targets, classes = _checked(features, targets, classes)
    strength = _strength(features, targets, classes, l2, seed)
    basis = basis_of(features)
    weight, bias = fit(basis, targets, classes, strength)
    return Probe(weight, bias, basis.mean, basis.std, _task(targets), strength)


def choose_l2(features: Array, targets: Array, classes: int, *, seed: int = 0) -> float:
    """The l2, of a ladder from 1 down to 0.00001, with the lowest loss in cross-validation, on at most 6,000 images.

    The more images, the less they need it: what suits m of them is given out as m / n of it for n. The ladder is
    walked down until the loss rises.
    """
    features, targets, classes = _checked(features, targets, classes)
    count, folds = len(features), TRIED_FOLDS
    if count < 2 * folds:
        return DEFAULT
    rows = np.sort(epoch_order(seed, 0, count)[:TRIED])
    basis, kept = basis_of(features[rows], torch.float32), targets[rows]
    fold = stratified(kept, folds, seed)
    best, lowest = DEFAULT, np.inf
    for l2 in LADDER:
        loss = 0.0
        for held in (fold == each for each in range(folds)):  # fitted only as well as the choice needs
            loss += losses(_logits(basis, kept, classes, l2, held, change=1e-5), kept[held]).sum()
        if loss >= lowest:
            break
        best, lowest = l2, loss
    return float(best * len(rows) * (folds - 1) / folds / count)


def out_of_fold(features: Array, targets: Array, folds: int = 5, seed: int = 0, *, l2: float | None = None) -> Array:
    """Probabilities (n, K) of every image, by a probe that was fitted without it: what it says of doubtful labels.

    The l2 is chosen by `choose_l2` unless given. A class of one single image is unknown to the probe that judges
    it: its probability there is next to 0, whatever it shows.
    """
    features, targets, classes = _checked(features, targets, None)
    check_int("folds", folds, 2, 1000, error=InputError)
    if len(features) < 2:
        raise InputError("expected at least 2 images, so that each can be judged by others, got 1")
    folds = min(folds, len(features))
    strength = _strength(features, targets, classes, l2, seed)
    basis, fold = basis_of(features), stratified(targets, folds, seed)
    shares = np.empty((len(features), classes))
    for each in range(folds):
        held = fold == each
        shares[held] = probabilities(_logits(basis, targets, classes, strength, held), _task(targets))
    return shares


def stratified(targets: Array, folds: int, seed: int = 0) -> Array:
    """The fold of every image (n,), by class numbers (n,) or 0 and 1 (n, K).

    A class of fewer images than folds has at most one in each, so no two of them are ever held out together. Of
    several labels the rarest decides.
    """
    count = len(targets)
    groups = targets if targets.ndim == 1 else _rarest(targets)
    chance = uniform(seed, "folds", 0, np.arange(count), 1)[:, 0]
    folded = np.empty(count, np.int64)
    folded[np.lexsort((chance, groups))] = np.arange(count) % folds  # dealt like cards, class after class
    return folded


def _rarest(marks: Array) -> Array:
    """The rarest label of every image, K where it has none."""
    counts = marks.sum(axis=0)
    rarity = np.where(marks > 0, counts, np.inf)
    return np.asarray(np.where(marks.any(axis=1), rarity.argmin(axis=1), marks.shape[1]))


def ridge(features: Array, targets: Array, classes: int | None = None, *, l2: float = 1.0) -> Probe:
    """Ridge regression to 1 for an image's class and -1 for the others, in closed form: a probe for few images.

    Least squares + l2 * |weight|² on standardised features; the bias goes free. No steps, no chance.
    """
    features, targets, classes = _checked(features, targets, classes)
    marks = targets[:, None] == np.arange(classes) if targets.ndim == 1 else targets > 0
    aims = np.where(marks, 1.0, -1.0)  # (n, K)
    raw = features.astype(np.float64)
    mean, std = raw.mean(axis=0), raw.std(axis=0)
    std[std <= 1e-12 * np.maximum(np.abs(mean), 1e-12)] = 1.0
    placed = (raw - mean) / std
    bias = aims.mean(axis=0)
    strength = check_number("l2", l2, 1e-9, 1e9)
    if len(placed) < placed.shape[1]:  # fewer images than features: the smaller of two equal systems
        weight = placed.T @ np.linalg.solve(placed @ placed.T + strength * np.eye(len(placed)), aims - bias)
    else:
        square = placed.T @ placed + strength * np.eye(placed.shape[1])
        weight = np.linalg.solve(square, placed.T @ (aims - bias))
    return Probe(weight.T, bias, mean, std, _task(targets), strength)


def knn(
    features: Array,
    targets: Array,
    queries: Array,
    k: int = 20,
    temperature: float | None = 0.07,
    *,
    classes: int | None = None,
) -> Array:
    """Votes of the k nearest features for each query, by cosine, as shares (q, K).

    Each vote weighs exp(cosine / temperature), as in DINO; without a temperature all weigh the same. For several
    labels a share is that of the neighbours that have the label.
    """
    features, targets, classes = _checked(features, targets, classes)
    queries = _table("queries", queries)
    if queries.shape[1] != features.shape[1]:
        raise InputError(f"queries of {queries.shape[1]} numbers beside features of {features.shape[1]}")
    k = min(check_int("k", k, error=InputError), len(features))
    known = F.normalize(tensor_of(features).float(), dim=1)
    marks = torch.from_numpy(np.eye(classes, dtype=np.float32)[targets] if targets.ndim == 1 else targets).float()
    votes = []
    for part in tensor_of(queries).float().split(max(1, (1 << 24) // len(features))):
        near, rows = (F.normalize(part, dim=1) @ known.T).topk(k, dim=1)  # (q, k)
        weights = torch.ones_like(near) if temperature is None else (near - near[:, :1]).div(temperature).exp()
        shares = weights / weights.sum(dim=1, keepdim=True)
        votes.append((shares[:, None] @ marks[rows])[:, 0])  # (q, K)
    return torch.cat(votes).numpy()


def _task(targets: Array) -> str:
    return "single-label" if targets.ndim == 1 else "multi-label"


def _strength(features: Array, targets: Array, classes: int, l2: float | None, seed: int) -> float:
    """The l2 to fit with: the one given, else the one that does best on images held out."""
    return choose_l2(features, targets, classes, seed=seed) if l2 is None else check_number("l2", l2, 1e-9, 1e9)


def _logits(basis: Basis, targets: Array, classes: int, l2: float, held: Array, change: float = 0.0) -> Array:
    """Logits of the images held out, by a fit to the others."""
    weight, bias = fit(basis, targets, classes, l2, np.flatnonzero(~held), change)
    turned = torch.from_numpy(weight) @ basis.axes  # (K, D)
    rows = basis.features[torch.from_numpy(np.flatnonzero(held))]
    return (rows.double() @ turned.T + torch.from_numpy(bias)).numpy()


def _features_of_views(runtime: Runtime, views: Views, batch: int, done: ProgressCallback | None) -> Array:
    if views.preprocess != runtime.preprocess:
        raise InputError("these views were made for another preprocessing than the network's: make them anew")
    embeddings = []
    for start in range(0, len(views), check_int("batch", batch, error=InputError)):
        rows = np.arange(start, min(start + batch, len(views)))
        embeddings.append(runtime.run(normalise(views.get(rows), runtime.preprocess).numpy())[1])
        if done is not None:
            done(len(rows))
    return np.concatenate(embeddings)


def _numbered(images: Images) -> list[str]:
    """A name each, as predict gives them: the path, or the number."""
    return [str(each) if isinstance(each, str | os.PathLike) else f"image {place}" for place, each in enumerate(images)]


def _table(name: str, values: Any) -> Array:
    """Finite numbers (n, D), float32 or float64."""
    table = np.asarray(values)
    table = table if table.dtype in (np.float32, np.float64) else table.astype(np.float32)
    if table.ndim != 2 or not table.size:
        raise InputError(f"{name}: expected an array (images, width), got shape {table.shape}")
    if not np.isfinite(table).all():
        bad = np.flatnonzero(~np.isfinite(table).all(axis=1))
        raise InputError(f"{name}: {len(bad)} rows are no numbers, first {bad[0]}: leave unreadable images out")
    return table


def _checked(features: Any, targets: Any, classes: int | None) -> tuple[Array, Array, int]:
    """Features (n, D), targets (n,) int64 or (n, K) uint8, and K."""
    table, targets = _table("features", features), np.asarray(targets)
    if targets.ndim not in (1, 2) or len(targets) != len(table):
        raise InputError(f"targets: expected one row for each of {len(table)} features, got shape {targets.shape}")
    if classes is None:
        classes = int(targets.max()) + 1 if targets.ndim == 1 else targets.shape[1]
    check_int("classes", classes, error=InputError)
    if targets.ndim == 2 and targets.shape[1] != classes:
        raise InputError(f"targets: expected {classes} columns, one a label, got {targets.shape[1]}")
    most = classes - 1 if targets.ndim == 1 else 1
    if not np.isin(targets, np.arange(most + 1)).all():
        raise InputError(f"targets: expected whole numbers from 0 to {most}, got {targets.min()} to {targets.max()}")
    return table, targets.astype(np.int64 if targets.ndim == 1 else np.uint8), classes
