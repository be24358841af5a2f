"""prune: a checkpoint and images -> a smaller checkpoint, with what it cost and what it gained."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoint import Checkpoint
from vitrail.checkpoint.devices import AUTO, device_of, wait_for
from vitrail.checks import check_int, check_number
from vitrail.data.samples import Dataset
from vitrail.errors import ImageError, InputError
from vitrail.evaluation import Score, evaluate
from vitrail.evaluation.evaluator import ALL, Data, chosen, fitted, opened, own_data
from vitrail.evaluation.intervals import RESAMPLES
from vitrail.evaluation.metrics import mean_average_precision
from vitrail.inference import open_checkpoint
from vitrail.inference.recognisers import as_checkpoint
from vitrail.inference.timing import interleaved
from vitrail.insight.activations import frozen
from vitrail.insight.cost import estimate
from vitrail.insight.head_importance import Batches, Importance, importance
from vitrail.insight.pruning import prune_channels, prune_heads
from vitrail.network.surgery import eval_mode
from vitrail.network.vit import ViT
from vitrail.reporting.html_page import counted, percent
from vitrail.reporting.metric_names import metric_name
from vitrail.reporting.object_card import Card
from vitrail.types import Array, Device

IMAGES = 512  # that importance is measured on, at most
SMALL = 64  # pixels a side, below which images are trained on as from scratch, at a gentler rate
TIMED = 8  # rounds in which the old and the new network take turns


def heads_in_words(heads: Mapping[int, Sequence[int]]) -> str:
    """{3: (1, 2), 9: (0,)} -> "3 (heads 1 and 2 of block 3; head 0 of block 9)": how many, then which."""
    cut = [f"{_numbered(numbers)} of block {block}" for block, numbers in heads.items() if numbers]
    return f"{sum(map(len, heads.values()))} ({'; '.join(cut)})" if cut else "none"


def _numbered(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"heads {', '.join(first)} and {last}" if first else f"head {last}"


@dataclass(frozen=True)
class NetworkMeasures:
    """A network as it is: what it knows, holds and costs."""

    accuracy: Score
    parameters: int
    multiply_adds: int  # of one image

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        flops = 2 * self.multiply_adds
        return {"accuracy": self.accuracy._asdict(), "parameters": self.parameters, "flops": flops}


@dataclass(frozen=True, eq=False)
class Pruned:
    """The smaller checkpoint, and the two side by side."""

    checkpoint: Checkpoint
    before: NetworkMeasures
    cut: NetworkMeasures  # before any tuning
    after: NetworkMeasures
    heads: dict[int, tuple[int, ...]]  # cut from each block, by their original numbers
    channels: int  # cut from every MLP
    importance: Importance
    speed: float  # of the smaller one, as a multiple of the old one's
    split: str  # of the images that accuracy was measured on
    ranked_by: str  # and of those that the parts were ranked on

    def card(self) -> Card:
        """What it says of itself in a REPL and a notebook."""
        score = metric_name("top1" if self.checkpoint.task == "single-label" else "mean_ap")
        sizes = [f"{2 * state.multiply_adds / 1e9:.4g}" for state in (self.before, self.after)]
        return Card(
            f"Pruned: {self.after.parameters / 1e6:.4g} M parameters of {self.before.parameters / 1e6:.4g} M",
            (
                (score, f"{percent(self.after.accuracy.value)}, before {percent(self.before.accuracy.value)}"),
                ("GFLOPs", f"{sizes[1]}, before {sizes[0]}"),
                ("speed", f"{self.speed:.2f} times that of before, measured in turn"),
                ("heads cut", heads_in_words(self.heads)),
                ("channels cut", f"{self.channels} of every MLP" if self.channels else ""),
                ("judged by", f"{self.split} images, ranked on {self.ranked_by}"),
                ("the network", ".checkpoint, or vitrail.save(pruned.checkpoint, FILE)"),
            ),
        )

    def __repr__(self) -> str:
        return self.card().as_text()

    def _repr_html_(self) -> str:
        return self.card().as_html()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "before": self.before.to_dict(),
            "cut": self.cut.to_dict(),
            "after": self.after.to_dict(),
            "heads": {str(block): list(heads) for block, heads in self.heads.items()},
            "channels": self.channels,
            "importance": [[None if np.isnan(each) else float(each) for each in row] for row in self.importance.heads],
            "speed": self.speed,
            "split": self.split,
            "ranked_by": self.ranked_by,
        }


def prune(
    checkpoint: Checkpoint | str | os.PathLike[str],
    data: Data | None = None,
    *,
    keep: float | None = None,
    max_drop: float | None = None,
    channels: bool = False,
    way: str = "gradient",
    tune: float = 0.0,
    split: str = "",
    batch: int = 32,
    seed: int = 0,
    log: Callable[[str], None] = lambda text: None,
    progress: bool | None = None,
    device: Device | None = None,
) -> Pruned:
    """Cut the heads that matter least: all but the share to `keep`, or as many as lose at most `max_drop` points.

    Heads are ranked on training or validation images, never on those that accuracy is reported for. `channels` cuts
    MLP channels by the same share. `tune` trains the smaller network for that many epochs on the training images.

    - checkpoint: a Checkpoint, the path of one, or a run's folder.
    - data: images to rank heads on and to be judged by; None: those of the run, where its path is given.
    - keep: the share of the heads to keep.
    - max_drop: cut as many as lose at most so many points, instead.
    - channels: cut MLP channels too.
    - way: how heads are ranked: "gradient", or "ablation", which is slow.
    - tune: epochs that the smaller network is trained for.
    - split: which images judge it: "test", "val", "train" or "all"; "": test if there is one, else val.
    - batch: images in a batch.
    - seed: which images rank, and how tuning goes.
    - log: a function that hears what happens.
    - progress: a bar on stderr; None: at a terminal and in a notebook, False: never.
    - device: where to compute, such as "auto", "cpu", "cuda:1" or "mps"; None: where it lies, of a path "auto".
    """
    path = checkpoint if isinstance(checkpoint, str | os.PathLike) else None
    checkpoint = as_checkpoint(checkpoint, device, AUTO)
    model = checkpoint.model
    if (keep is None) == (max_drop is None):
        raise InputError("say how much to cut: keep=0.7 (a share of the heads) or max_drop=0.5 (points), one of them")
    if keep is not None:
        check_number("keep", keep, 0.0, 1.0)
    if max_drop is not None:
        check_number("max_drop", max_drop, 0.0, 100.0)
    check_number("tune", tune, 0.0, 1000.0)
    check_int("batch", batch, error=InputError)
    check_int("seed", seed, 0, 2**62, error=InputError)
    dataset = opened(own_data(path, data, checkpoint), (checkpoint,), split)
    judged_by, judges = chosen(dataset, split)
    ranked_by, rankers = _rankers(dataset, judged_by)
    batches = batches_of(checkpoint, rankers, batch, seed)
    log(f"ranking heads on {counted(sum(len(each) for each, _ in batches), 'image')} ({ranked_by})")
    scores = importance(model, batches, way, channels)
    order = ranked(model, scores.heads, scale=way == "gradient")
    config, width = model.config, scores.channels.shape[1]  # no width where channels were not ranked
    total = sum(len(config.heads_of(block)) for block in range(config.depth))

    def smaller(count: int) -> ViT:
        """Without the first heads in the order, and without the same share of the MLP channels if ranked."""
        fewer = prune_heads(model, _by_block(order[:count]))
        lost = min(width - 1, round(width * count / total))
        if lost <= 0:
            return fewer
        return prune_channels(
            fewer, {block: row.argsort()[:lost].tolist() for block, row in enumerate(scores.channels)}
        )

    before = _measure(checkpoint, judges, batch, progress)
    if keep is not None:
        count = min(len(order), round((1 - keep) * total))
    else:
        limit = _right(checkpoint.model, batches) - (max_drop or 0.0) / 100 - 1e-9  # 0.4 - 0.1 is more than 0.3
        count = _most(len(order), lambda count: _right(smaller(count), batches) >= limit)
        log(f"{count} of the heads can go within {max_drop:g} points on the images that they were ranked on")
    slim = checkpoint
    if count:
        slim = replace(checkpoint, model=smaller(count), temperature=None, thresholds=None, reject=None, ood=None)
        if (checkpoint.temperature, checkpoint.thresholds, checkpoint.reject) != (None, None, None) and not tune:
            log("calibration and thresholds were fitted to the whole network, so the smaller one is without them")
        if checkpoint.ood is not None and not tune:
            log("the smaller one no longer tells which images are unlike the training ones: tuning it learns that anew")
    cut = after = _measure(slim, judges, batch, progress)
    if tune:
        log(f"tuning for {tune:g} {'epoch' if tune == 1 else 'epochs'}: {100 * cut.accuracy.value:.2f} % before")
        slim = _tuned(slim, dataset, judged_by, tune, seed, progress)
        after = _measure(slim, judges, batch, progress)
    if count or tune:
        slim = _described(slim, checkpoint, after, judged_by, tune)
    return Pruned(
        slim,
        before,
        cut,
        after,
        _by_block(order[:count]),
        config.mlp_width - slim.model.config.mlp_width,
        scores,
        faster(checkpoint.model, slim.model, batches[0][0]),
        judged_by,
        ranked_by,
    )


def ranked(model: ViT, heads: Array, scale: bool = True) -> list[tuple[int, int]]:
    """Heads as (block, head) that may go, the least important first; the best of every block is not among them.

    With `scale` each block's scores are divided by their length, since gradients grow from block to block (Michel et
    al. 2019).
    """
    scaled = heads if not scale else heads / np.maximum(np.sqrt(np.nansum(heads**2, axis=1, keepdims=True)), 1e-30)
    best = {block: int(np.nanargmax(heads[block])) for block in range(len(heads))}
    left = [
        (float(scaled[block, head]), block, head)
        for block in range(model.config.depth)
        for head in model.config.heads_of(block)
        if head != best[block]
    ]
    return [(block, head) for _, block, head in sorted(left)]


def faster(old: ViT, new: ViT, pixels: Tensor) -> float:
    """How many times faster the new network is: medians over rounds in which both take turns."""
    there = pixels.to(device_of(old))

    def run(model: ViT) -> None:
        model(there)
        wait_for(there.device)

    with eval_mode(old), eval_mode(new), torch.inference_mode():
        seconds = interleaved({"old": lambda: run(old), "new": lambda: run(new)}, TIMED, least=0.0)
    return seconds["old"] / seconds["new"]


def _rankers(dataset: Dataset, judged_by: str) -> tuple[str, Dataset]:
    """Images to rank by: other ones than those judged by, where there are."""
    for split in ("val", "train"):
        if judged_by not in (split, ALL) and split in dataset.splits:
            return split, dataset.part(split)
    raise InputError(
        f"{dataset.source} has no training or validation images beside those that accuracy is measured on: parts are "
        "not ranked on the images that judge them; give data with splits, or the run that the checkpoint is of"
    )


def batches_of(checkpoint: Checkpoint, data: Dataset, batch: int = 32, seed: int = 0) -> Batches:
    """Pixels and targets of some images, drawn at random."""
    part = fitted(data, checkpoint)
    rows = np.sort(np.random.default_rng(seed).permutation(len(part))[:IMAGES])
    targets = torch.from_numpy(part.targets(checkpoint.classes)[rows])
    kind = next(checkpoint.model.parameters()).dtype
    batches = []
    for first in range(0, len(rows), batch):
        pixels, kept = [], []
        for row in range(first, min(first + batch, len(rows))):
            with suppress(ImageError):  # as `evaluate` does, which tells of them
                pixels.append(checkpoint.preprocess(part.images[rows[row]]))
                kept.append(row)
        if pixels:
            batches.append((torch.from_numpy(np.stack(pixels)).to(kind), targets[kept]))
    if not batches:
        raise InputError(f"{part.source}: none of {counted(len(rows), 'image')} can be read")
    return batches


def _by_block(heads: list[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """Heads as (block, head) -> the heads of each block, both in their order."""
    return {block: tuple(head for _, head in own) for block, own in groupby(sorted(heads), itemgetter(0))}


def _most(highest: int, holds: Callable[[int], bool]) -> int:
    """The largest count that holds, by halving; each count that is taken was tried."""
    low, high = 0, highest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _right(model: ViT, batches: Batches) -> float:
    """The share of right answers; of several labels, mean average precision."""
    with frozen(model), torch.inference_mode():
        logits = torch.cat([model(pixels.to(device_of(model))) for pixels, _ in batches]).float().cpu().numpy()
    targets = torch.cat([each for _, each in batches]).numpy()
    if targets.ndim == 1:
        return float((logits.argmax(axis=1) == targets).mean())
    return mean_average_precision(logits, targets > 0.5)


def _measure(checkpoint: Checkpoint, judges: Dataset, batch: int, progress: bool | None) -> NetworkMeasures:
    one = checkpoint.task == "single-label"  # its accuracy has an interval without a bootstrap
    resamples = 0 if one else RESAMPLES
    evaluation = evaluate(checkpoint, judges, split="all", batch=batch, resamples=resamples, progress=progress)
    cost = estimate(checkpoint.model.config, checkpoint.preprocess.size)
    return NetworkMeasures(evaluation.scores["top1" if one else "mean_ap"], cost.parameters, cost.multiply_adds)


def _tuned(
    checkpoint: Checkpoint, data: Dataset, judged_by: str, epochs: float, seed: int, progress: bool | None = None
) -> Checkpoint:
    """Trained on, in a folder that goes away, by images that do not judge it; calibrated anew by others of them."""
    splits = ("train",) if judged_by == "val" else ("train", "val")
    data = data.select([row for row, each in enumerate(data.samples) if each.split in splits])
    if not any(each.split == "train" for each in data.samples):
        raise InputError(f"{data.source} has no training images to tune on: leave tune out")
    from vitrail.training import RECIPES, train

    recipe = RECIPES["finetune"].recipe
    if max(checkpoint.preprocess.size) < SMALL:  # crops would leave little of them
        recipe = replace(RECIPES["scratch"].recipe, lr=RECIPES["scratch"].recipe.lr * 0.3)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = train(
            data,
            start=checkpoint,
            recipe=recipe,
            epochs=epochs,
            seed=seed,
            device=str(device_of(checkpoint.model)),
            out=folder,
            test=0.0,
            check=False,
            report=False,
            progress=progress,
        )
        return open_checkpoint(run.best, device=device_of(checkpoint.model))


def _described(slim: Checkpoint, original: Checkpoint, after: NetworkMeasures, split: str, tune: float) -> Checkpoint:
    """With the origin of the whole network, and no number of it that is no longer true."""
    name = "top1" if slim.task == "single-label" else "mean_ap"
    notes = "; ".join(filter(None, (original.provenance.notes, "pruned and tuned" if tune else "pruned")))
    about = replace(original.provenance, notes=notes, metrics={f"{split}_{name}": after.accuracy.value}, mapping=())
    return replace(slim, provenance=about)
