"""Which network, at which size, with which preprocessing: from what the user asked for and what the images are."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitrail.audit.sizes import suggest
from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_pair
from vitrail.data.cache import Views
from vitrail.data.counter_rng import key
from vitrail.data.manifest import Entry
from vitrail.data.samples import Dataset
from vitrail.data.statistics import band_statistics
from vitrail.errors import InputError, nearest
from vitrail.images import Preprocess, describe_bands
from vitrail.network.config import ConvStem, Positions, ViTConfig
from vitrail.network.presets import PRESETS
from vitrail.network.surgery import rebuild
from vitrail.network.vit import ViT
from vitrail.training.recipe import Recipe
from vitrail.weights import load, with_channels, with_classes, with_size

SMALL: int = 40  # pixels: images up to here keep their size, but for the next multiple of 8
SCRATCH: int = 64  # the size at which larger ones are learned from scratch, where nobody says another


class Chosen(NamedTuple):
    """A network ready to train, and where its weights are from: empty, if from nowhere."""

    model: ViT
    preprocess: Preprocess
    origin: str
    start: Checkpoint | None  # what it was made from


def choose(
    dataset: Dataset,
    entries: Sequence[Entry],
    recipe: Recipe,
    *,
    model: str | ViTConfig | None = None,
    start: str | os.PathLike[str] | Checkpoint | None = None,
    size: int | tuple[int, int] | None = None,
    ends: Mapping[str, Any] | None = None,
    seed: int = 0,
    threads: int = 2,
) -> Chosen:
    """A fresh network for these images, or a trained one with a head for their classes.

    `ends` are settings after the blocks, without weights of their own, that a trained network gets: pool, final norm.
    """
    if model is not None and start is not None:
        raise InputError("give a model to start from scratch, or a checkpoint to start from: not both")
    torch.default_generator.manual_seed(key(seed, "weights"))
    if start is not None:
        return _from_checkpoint(dataset, start, recipe, size, ends or {})
    preprocess = fresh_preprocess(dataset, entries, size, _config_of(model))
    config = _config_of(model) or small_network(preprocess.size, preprocess.channels, len(dataset.classes))
    config = replace(config, image_size=preprocess.size, channels=preprocess.channels, classes=len(dataset.classes))
    views = Views(dataset.part("train"), preprocess, threads=threads)
    mean, std = band_statistics(views)
    fitted = Preprocess.from_dict(preprocess.to_dict() | {"mean": mean, "std": std})
    return Chosen(ViT(_regularised(config, recipe)), fitted, "", None)


def small_network(size: tuple[int, int], channels: int, classes: int) -> ViTConfig:
    """The network for small sets: convolutions that halve the image down to 4x4 to 7x7 cells, then four blocks.

    Few tokens make quick steps, and on a small set it is the number of steps that counts (docs/training.md).
    """
    most = min(math.gcd(2**6, side) for side in size)  # each halving needs an even side
    halvings = max(1, min(int(math.log2(min(size) / 4)), int(math.log2(most))))
    cells = [side // 2**halvings for side in size]
    patch = max(
        each for each in range(1, min(cells) + 1) if each == 1 or all(n % each == 0 and n // each >= 4 for n in cells)
    )
    widths = tuple(min(32 * 2**each, 128) for each in range(halvings))
    return ViTConfig(
        image_size=size,
        patch_size=(patch, patch),
        channels=channels,
        width=128,
        depth=4,
        heads=4,
        mlp_width=512,
        classes=classes,
        stem=ConvStem(widths),
        cls_token=False,
        positions=Positions(prefix=False),
        pool="mean",
    )


def fresh_preprocess(
    dataset: Dataset,
    entries: Sequence[Entry],
    size: int | tuple[int, int] | None,
    config: ViTConfig | None,
) -> Preprocess:
    """Size, bands and resize policy that suit the images; mean and deviation are measured later."""
    hint = suggest(entries)
    bands = bands_of(dataset)
    if size is None and config is not None:
        size = config.image_size
    crop = 1.0
    if size is None:
        shorts = {min(each.height, each.width) for each in entries}
        short = int(np.median([min(each.height, each.width) for each in entries]))
        size = SCRATCH
        if short <= SMALL:
            size = max(8, math.ceil(short / 8) * 8)  # whole cells after every halving
            crop = size / short if len(shorts) == 1 and hint.resize == "crop" else 1.0  # a dark edge, no blur
    values: dict[str, Any] = {"size": check_pair("size", size), "resize": hint.resize, "crop": crop} | bands
    return Preprocess(**values)


def bands_of(dataset: Dataset, looked_at: int = 64) -> dict[str, Any]:
    """Channels and range of the images, from the headers of some of them."""
    if isinstance(dataset.images, np.ndarray):
        sources: Sequence[Any] = [dataset.images[0]]
    else:
        step = max(1, len(dataset) // looked_at)
        sources = list(dataset.images[::step])
    found = [describe_bands(each) for each in sources]
    kinds = {each.kind for each in found}
    counts = {each.channels for each in found}
    if len(kinds) > 1 or len(counts) > 1:
        if kinds == {"uint8"} and max(counts) <= 4:
            return {"channels": 3}
        raise InputError(
            f"{dataset.source}: images of {sorted(counts)} bands and of kinds {sorted(kinds)} are mixed: expected one"
        )
    kind, count = kinds.pop(), counts.pop()
    if kind == "uint8" and count <= 4:
        return {"channels": {2: 1, 4: 3}.get(count, count)}  # what is transparent shows the background
    if kind == "uint8":
        return {"channels": count}
    return {"channels": count, "range": {"uint16": 65535.0}.get(kind, 1.0)}


def _config_of(model: str | ViTConfig | None) -> ViTConfig | None:
    if model is None or isinstance(model, ViTConfig):
        return model
    if model not in PRESETS:
        raise InputError(f"no preset {model!r}: {nearest(model, PRESETS)}")
    return PRESETS[model]


def _from_checkpoint(
    dataset: Dataset,
    start: str | os.PathLike[str] | Checkpoint,
    recipe: Recipe,
    size: int | tuple[int, int] | None,
    ends: Mapping[str, Any],
) -> Chosen:
    """A trained network with a head for these classes; what it knows of them by name stays."""
    loaded = start if isinstance(start, Checkpoint) else load(start)
    if size is not None:
        loaded = with_size(loaded, size)
    bands = bands_of(dataset)
    if bands["channels"] > 3 and bands["channels"] != loaded.preprocess.channels:
        loaded = with_channels(loaded, bands["channels"])
    if "range" in bands:
        loaded = replace(loaded, preprocess=replace(loaded.preprocess, range=bands["range"]))
    origin = "in memory" if isinstance(start, Checkpoint) else str(Path(start)) if os.sep in str(start) else str(start)
    made = with_classes(loaded, dataset.classes)
    made = replace(made, model=_rebuilt(made.model, recipe, ends))
    return Chosen(made.model, made.preprocess, origin, made)


def _regularised(config: ViTConfig, recipe: Recipe) -> ViTConfig:
    given = {name: getattr(recipe, name) for name in ("dropout", "drop_path") if getattr(recipe, name) is not None}
    return replace(config, **given)


def _rebuilt(model: ViT, recipe: Recipe, ends: Mapping[str, Any]) -> ViT:
    """The same network with the recipe's dropout and drop path, and what it changes after the blocks."""
    config = replace(_regularised(model.config, recipe), **ends)
    return model if config == model.config else rebuild(model, config)
