"""evaluate: a runtime and images with labels -> Evaluation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from vitrail.checks import join_limited, short_repr
from vitrail.data.classes import differing
from vitrail.data.samples import SPLITS, Dataset
from vitrail.errors import ImageError, InputError, nearest
from vitrail.evaluation.caveats import caveat_for
from vitrail.evaluation.intervals import RESAMPLES
from vitrail.evaluation.results import Evaluation
from vitrail.evaluation.scoring import evaluation_of, unlike_of
from vitrail.evaluation.torch_data import LabelledAnswers, Pace, is_torch_data, judge_pairs, name_of, run_images
from vitrail.inference import Runtime
from vitrail.inference.image_reader import Named, Skip
from vitrail.inference.recognisers import as_runtime
from vitrail.reporting.html_page import counted
from vitrail.types import Device, ProgressCallback

Data = Dataset | str | os.PathLike[str]

ALL: Final = "all"
LOOSE: Final = "unsplit"  # images without a split, beside others that have one


def evaluate(
    runtime: Runtime | str | os.PathLike[str],
    data: Data | Iterable[Any] | None = None,
    *,
    split: str = "",
    batch: int = 64,
    threads: int = 2,
    skip: Skip | None = None,
    done: ProgressCallback | None = None,
    resamples: int = RESAMPLES,
    progress: bool | None = None,
    device: Device | None = None,
) -> Evaluation:
    """How well a checkpoint, an exported file or any runtime does on images whose labels are known.

    The split is test if there is one, else val, else the images without a split; "all" takes every image. Classes
    are found by name. An image that cannot be read is left out, listed in `.skipped` and told to `skip`.

    A torch Dataset or DataLoader gives pairs of image and label: PIL images and 8-bit arrays go through the preprocess,
    float tensors (C, H, W) are taken as pixels that `checkpoint.transform` has prepared. Labels are names, or numbers
    in the order of its `classes`, and of the checkpoint's where it has none.

    - runtime: a Checkpoint, an exported file or any runtime, or the path of one, or a run's folder.
    - data: a folder, table or dataset; None: the images of the run, where its path is given.
    - split: "test", "val", "train" or "all".
    - batch: images in a batch.
    - threads: threads that read images.
    - skip: a function that hears of images that cannot be read: name, error.
    - done: a function that hears how many more images are done.
    - resamples: draws of the bootstrap behind the intervals; 0: none.
    - progress: a bar on stderr; None: at a terminal and in a notebook, False: never.
    - device: where to compute, such as "auto", "cpu", "cuda:1" or "mps"; None: where it lies, of a path "auto".
    """
    path = runtime if isinstance(runtime, str | os.PathLike) else None
    runtime = as_runtime(runtime, device)
    if not runtime.classes:
        raise InputError("this has no head with classes, so there is nothing to evaluate: train a head, or probe it")
    data = own_data(path, data, runtime)
    skipped: list[tuple[str, str]] = []

    def leave_out(image: str, error: ImageError) -> None:
        skipped.append((image, str(error)))
        if skip is not None:
            skip(image, error)

    judge = _judge_pairs if not isinstance(data, Dataset) and is_torch_data(data) else _judge_dataset
    source, name, judged = judge(runtime, data, split, Pace(batch, threads, leave_out, done, progress))
    if not judged.names:
        raise InputError(
            f"{source}: none of {counted(len(skipped), 'image')} can be read: the first says {skipped[0][1]}"
        )
    evaluation = evaluation_of(
        judged.logits,
        judged.targets,
        judged.names,
        runtime.classes,
        runtime.task,
        runtime.temperature,
        runtime.thresholds,
        runtime.reject,
        source,
        name,
        skipped=skipped,
        caveat=judged.caveat,
        resamples=resamples,
    )
    if runtime.ood is None:
        return evaluation
    return replace(evaluation, unlike=unlike_of(runtime.ood, judged.embedding))


def _judge_dataset(runtime: Runtime, data: Any, split: str, pace: Pace) -> tuple[str, str, LabelledAnswers]:
    """Source, split, and what the network says of its images."""
    dataset = opened(data, (runtime,), split)
    name, part = chosen(dataset, split)
    part = fitted(part, runtime)
    targets = part.targets(runtime.classes)
    names = [each.name for each in part.samples]
    rows, logits, embedding = run_images(runtime, map(Named, names, part.images), pace, len(part))
    caveat = caveat_for(part.select(rows), runtime.provenance)
    return part.source, name, LabelledAnswers([names[row] for row in rows], logits, embedding, targets[rows], caveat)


def _judge_pairs(runtime: Runtime, data: Any, split: str, pace: Pace) -> tuple[str, str, LabelledAnswers]:
    """The same of images that are drawn one after another; there are no splits to choose from."""
    if split not in ("", ALL):
        raise InputError(f"{name_of(data)} has no splits to choose {split!r} from: give the dataset of that split")
    return name_of(data), ALL, judge_pairs(runtime, data, pace)


def own_data(path: str | os.PathLike[str] | None, data: Any, runtime: Runtime) -> Any:
    """The data as given; of a run that is named by its path its own, with what it has seen marked as such."""
    from vitrail.evaluation.seen_images import data_for, run_of

    if data is None and path is None:
        raise InputError("expected images to judge it by: only the path of a run's checkpoint tells of its own")
    if path is not None and (data is None or isinstance(data, str | os.PathLike)) and (data is None or run_of(path)):
        return data_for(path, data or "", runtime.classes)
    return data


def opened(data: object, runtimes: Sequence[Runtime], split: str) -> Dataset:
    """The images, read with the classes of the first runtime if they are named by a path."""
    if isinstance(data, Dataset):
        return data
    if not isinstance(data, str | os.PathLike):
        hint = ": images that come one by one are for evaluate" if is_torch_data(data) else ""
        raise InputError(f"expected a Dataset, or a path to a folder or table of images, got {short_repr(data)}{hint}")
    from vitrail.data.readers import read_data
    from vitrail.evaluation.seen_images import source_name

    dataset = read_data(data, classes=runtimes[0].classes)
    for about in (each.provenance for each in runtimes):
        if about is None or not about.run or split or dataset.splits:
            continue
        if source_name(about.source) == source_name(data):
            raise InputError(
                f"{about.run} was trained on images of {data}, and its folder knows which: give the run's folder "
                "in place of its checkpoint, or split='all' if you mean those images too"
            )
    return dataset


def chosen(data: Dataset, split: str) -> tuple[str, Dataset]:
    """The images to look at, and the name of that choice."""
    if not len(data):
        raise InputError(f"{data.source} has no images")
    if split not in ("", ALL, *SPLITS):
        raise InputError(f"split {short_repr(split)} is unknown: {nearest(str(split), (*SPLITS, ALL))}")
    if split == ALL or not (split or data.splits):
        return ALL, data
    for each in (split,) if split else ("test", "val"):
        if split or each in data.splits:
            return each, data.part(each)
    loose = [row for row, sample in enumerate(data.samples) if not sample.split]
    if not loose:
        raise InputError(
            f"{data.source} has only images to train on, which flatter the network: name other data, "
            "or choose split train (--split train) if you mean them"
        )
    return LOOSE, data.select(loose)


def fitted(data: Dataset, runtime: Runtime) -> Dataset:
    """The same images with the runtime's task, if their labels allow it and are all known to the runtime."""
    used = {label for sample in data.samples for label in sample.labels}
    if used.difference(runtime.classes):
        raise InputError(
            f"{data.source} has classes that the checkpoint does not know ({differing(runtime.classes, used)}): "
            "they go by name, so rename them, or train on this data"
        )
    if runtime.task == "single-label":
        for sample in data.samples:
            if len(sample.labels) != 1:
                raise InputError(
                    f"{sample.name} has {len(sample.labels)} labels ({join_limited(sample.labels, ', ') or 'none'}), "
                    "but the checkpoint answers with exactly one"
                )
    return replace(data, task=runtime.task)
