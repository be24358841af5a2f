"""Which network, at which size, with which preprocessing: from what the user asked for and what the images are."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitrail.auditing.sizes import HasSize, suggest
from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_pair
from vitrail.data.cache import Views
from vitrail.data.counter_rng import key
from vitrail.data.known_statistics import recall_statistics
from vitrail.data.samples import Dataset
from vitrail.data.statistics import BandStatistics, band_statistics
from vitrail.errors import InputError, nearest
from vitrail.images import Preprocess, describe_bands
from vitrail.images.preprocess import Resize
from vitrail.inference import open_checkpoint
from vitrail.network.config import ConvStem, Positions, ViTConfig
from vitrail.network.presets import PRESETS
from vitrail.network.surgery import rebuild
from vitrail.network.vit import ViT
from vitrail.training.options import Options
from vitrail.training.preparation import PreparedData
from vitrail.training.published import Preset
from vitrail.training.recipe import Recipe
from vitrail.weights import with_channels, with_classes, with_size

ENDS: tuple[str, ...] = ("pool", "final_norm")  # what a recipe may change of a network that is there already
SMALL: int = 40  # pixels: images up to here keep their size, but for the next multiple of 8
SCRATCH: int = 64  # the size at which larger ones are learned from scratch, where nobody says another


class ModelChoice(NamedTuple):
    """A network ready to train, and where its weights are from: empty, if from nowhere."""

    model: ViT
    preprocess: Preprocess
    origin: str
    start: Checkpoint | None  # what it was made from
    note: str = ""  # how images are brought to size, where their shapes decided it


class ChosenResize(NamedTuple):
    """How images are brought to size, None as the checkpoint does; and what to say of it."""

    resize: Resize | None
    note: str = ""


@dataclass(frozen=True)
class ModelRequest:
    """Which network is asked for: a fresh one, or a checkpoint to start from."""

    config: ViTConfig | None  # of a fresh one; None: one that suits the images
    start: Checkpoint | None
    origin: str  # of the checkpoint
    size: int | tuple[int, int] | None  # of the images; None: what suits them, or the checkpoint's
    resize: Resize | None = None  # how they are brought to that size; None: what suits them, or the checkpoint's
    ends: Mapping[str, Any] = field(default_factory=dict)  # settings after the blocks, which a checkpoint gets too

    @classmethod
    def of(cls, preset: Preset, options: Options) -> ModelRequest:
        """What the options ask for, else the recipe's own network and size; a checkpoint is loaded."""
        if options.model is not None and options.start is not None:
            raise InputError("give a model to start from scratch, or a checkpoint to start from: not both")
        size = preset.size if options.size is None and preset.size else options.size
        ends = {name: preset.changes[name] for name in ENDS if name in preset.changes}
        if options.start is not None:
            return cls(None, *_loaded(options.start), size, options.resize, ends)
        if options.model is None and preset.model:
            return cls(replace(PRESETS[preset.model], **preset.changes), None, "", size, options.resize)
        return cls(_config_of(options.model), None, "", size, options.resize)

    def expected_preprocess(self, dataset: Dataset, sizes: Sequence[HasSize]) -> Preprocess:
        """How the network will see the images, but for the mean and deviation that are measured of their pixels."""
        if self.start is None:
            return fresh_preprocess(dataset, sizes, self)
        bands = bands_of(dataset)
        changes = _resize_changes(self.chosen_resize(sizes).resize)
        if self.size is not None:
            changes["size"] = check_pair("size", self.size)
        if bands["channels"] > 3:
            changes |= {"channels": bands["channels"], "mean": 0.5, "std": 0.5, "order": "RGB"}
        if "range" in bands:
            changes["range"] = bands["range"]
        return Preprocess.from_dict(self.start.preprocess.to_dict() | changes)

    def chosen_resize(self, sizes: Sequence[HasSize]) -> ChosenResize:
        """How images are brought to size: as asked for; else as suits their shapes, where a crop would cut them."""
        if self.resize is not None:
            return ChosenResize(self.resize)
        if self.start is not None and self.start.preprocess.resize != "crop":
            return ChosenResize(None)  # a checkpoint that sees whole images goes on as it is
        hint = suggest(sizes)
        if hint.resize == "crop":
            return ChosenResize(None if self.start is not None else "crop")
        return ChosenResize(hint.resize, f"images are brought to size by --resize {hint.resize}: {hint.reason}")


def build_model(request: ModelRequest, prepared: PreparedData, recipe: Recipe, seed: int) -> ModelChoice:
    """A fresh network for these images, or a trained one with a head for their classes."""
    torch.default_generator.manual_seed(key(seed, "weights"))
    dataset = prepared.dataset
    if request.start is not None:
        return _from_checkpoint(prepared, request.start, request, recipe)
    preprocess = fresh_preprocess(dataset, prepared.entries, request)
    config = request.config or small_network(preprocess.size, preprocess.channels, len(dataset.classes))
    config = replace(config, image_size=preprocess.size, channels=preprocess.channels, classes=len(dataset.classes))
    mean, std = _statistics(prepared, preprocess)
    measured = Preprocess.from_dict(preprocess.to_dict() | {"mean": mean, "std": std})
    note = request.chosen_resize(prepared.entries).note
    return ModelChoice(ViT(_regularised(config, recipe)), measured, "", None, note)


def _statistics(prepared: PreparedData, preprocess: Preprocess) -> BandStatistics:
    """Mean and deviation of the images to train on: as measured, now or by an earlier run on the very same."""
    rows = [row for row, each in enumerate(prepared.dataset.samples) if each.split == "train"]
    digests = prepared.entries.facts.digests[rows]

    def measure() -> BandStatistics:
        part = prepared.dataset.part("train")
        return band_statistics(Views(part, preprocess, threads=2, store=prepared.store, digests=digests))

    if isinstance(prepared.dataset.images, np.ndarray):
        return measure()  # it takes no time
    return recall_statistics(digests, preprocess, measure)


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


def fresh_preprocess(dataset: Dataset, entries: Sequence[HasSize], request: ModelRequest) -> Preprocess:
    """Size, bands and resize policy that are asked for or suit the images; mean and deviation are measured later."""
    resize = request.chosen_resize(entries).resize or "crop"
    bands = bands_of(dataset)
    size = request.config.image_size if request.size is None and request.config is not None else request.size
    crop = 1.0
    if size is None:
        shorts = {min(each.height, each.width) for each in entries}
        short = int(np.median([min(each.height, each.width) for each in entries]))
        size = SCRATCH
        if short <= SMALL:
            size = max(8, math.ceil(short / 8) * 8)  # whole cells after every halving
            crop = size / short if len(shorts) == 1 and resize == "crop" else 1.0  # a dark edge, no blur
    values: dict[str, Any] = {"size": check_pair("size", size), "resize": resize, "crop": crop} | bands
    return Preprocess(**values)


def bands_of(dataset: Dataset, looked_at: int = 64) -> dict[str, Any]:
    """Channels and range of the images, from the headers of some of them."""
    if isinstance(dataset.images, np.ndarray):
        sources: Sequence[Any] = [dataset.images[0]]
    else:
        step = max(1, len(dataset) // looked_at)
        sources = list(dataset.images[::step])
    bands = [describe_bands(source) for source in sources]
    kinds, counts = {each.kind for each in bands}, {each.channels for each in bands}
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


def _loaded(start: str | os.PathLike[str] | Checkpoint) -> tuple[Checkpoint, str]:
    """A checkpoint, and what it is called."""
    if isinstance(start, Checkpoint):
        return start, "in memory"
    text = os.fspath(start)
    return open_checkpoint(start), str(Path(text)) if os.sep in text else text


def _from_checkpoint(prepared: PreparedData, start: Checkpoint, request: ModelRequest, recipe: Recipe) -> ModelChoice:
    """A trained network with a head for these classes; what it knows of them by name stays."""
    dataset, chosen = prepared.dataset, request.chosen_resize(prepared.entries)
    if request.size is not None:
        start = with_size(start, request.size)
    bands = bands_of(dataset)
    if bands["channels"] > 3 and bands["channels"] != start.preprocess.channels:
        start = with_channels(start, bands["channels"])
    if "range" in bands:
        start = replace(start, preprocess=replace(start.preprocess, range=bands["range"]))
    if chosen.resize is not None:
        changed = start.preprocess.to_dict() | _resize_changes(chosen.resize)
        start = replace(start, preprocess=Preprocess.from_dict(changed))
    start = with_classes(start, dataset.classes)
    config = replace(_regularised(start.model.config, recipe), **request.ends)
    if config != start.model.config:  # the recipe's dropout and drop path, and what it changes after the blocks
        start = replace(start, model=rebuild(start.model, config))
    return ModelChoice(start.model, start.preprocess, request.origin, start, chosen.note)


def _resize_changes(resize: Resize | None) -> dict[str, Any]:
    """What changes in a checkpoint's preprocessing; whoever asks for pad or squash wants all of the image seen."""
    if resize is None:
        return {}
    return {"resize": resize} | ({} if resize == "crop" else {"crop": 1.0})


def _regularised(config: ViTConfig, recipe: Recipe) -> ViTConfig:
    given = {name: getattr(recipe, name) for name in ("dropout", "drop_path") if getattr(recipe, name) is not None}
    return replace(config, **given)
