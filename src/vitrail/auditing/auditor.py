"""audit: a data set -> everything in it that would spoil a training or its score, before anything is trained."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vitrail.auditing.audit_results import HELD_OUT, WEAK, Audit, Crossing, Group, Member, Suspect
from vitrail.auditing.balance import weigh
from vitrail.auditing.duplicates import BLANK, Alike, Near, contrast, find_duplicates, find_lookalikes, matches
from vitrail.auditing.fingerprints import Fingerprints, fingerprint
from vitrail.auditing.label_errors import FOLDS, Judgement, judge, judge_several
from vitrail.auditing.placeholders import find_placeholders
from vitrail.auditing.sizes import measure
from vitrail.checks import check_int, check_type, join_limited
from vitrail.data.readers import read_data
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import ImageError, InputError
from vitrail.evaluation.probes import features as embeddings_of
from vitrail.inference import Runtime
from vitrail.inference.recognisers import as_runtime
from vitrail.progress import counting
from vitrail.reporting.html_page import counted
from vitrail.types import Array, Device, ProgressCallback


def audit(
    data: Dataset | str | os.PathLike[str],
    *,
    checkpoint: Runtime | str | os.PathLike[str] | None = None,
    threads: int = 2,
    near: Near | None = None,
    done: ProgressCallback | None = None,
    progress: bool | None = None,
    device: Device | None = None,
) -> Audit:
    """Look at every image before a training: duplicates, leaks, placeholders, sizes, possible label errors.

    - data: a folder, table or other source of `train`, or a Dataset.
    - checkpoint: a Checkpoint, the path of one, an exported file or a runtime: every image goes through it too, which
      finds possible label errors and look-alikes. None: these are not looked for.
    - threads: threads that read images.
    - near: how alike two images are that count as nearly the same; None: as usual.
    - done: a function that hears how many more images are done: all of them once, or twice with a checkpoint.
    - progress: a bar on stderr; None: at a terminal and in a notebook, False: never.
    - device: where the checkpoint computes, such as "auto" or "cuda:1"; None: where it lies, of a path "auto".
    """
    dataset = data if isinstance(data, Dataset) else read_data(data)
    check_int("threads", threads, 1, 256, error=InputError)
    near = near or Near()
    check_type("near", near, Near, error=InputError)
    runtime = None if checkpoint is None else as_runtime(checkpoint, device)
    with counting(done, progress, len(dataset) * (1 if runtime is None else 2)) as told:
        return _audited(dataset, runtime, near, threads, told)


def _audited(
    dataset: Dataset, runtime: Runtime | None, near: Near, threads: int, done: ProgressCallback | None
) -> Audit:
    """Everything that is found, with whoever listens told of every image."""
    prints = fingerprint(dataset.images, threads=threads, done=done)
    unreadable = tuple((dataset.samples[row].name, reason) for row, reason in prints.failed.items())
    kept = np.array([row for row in range(len(dataset)) if row not in prints.failed], np.int64)
    if not len(kept):
        raise ImageError(
            f"none of the {counted(len(dataset), 'image')} in {dataset.source} can be read: "
            f"{join_limited([f'{name}: {reason}' for name, reason in unreadable], most=3)}"
        )
    dataset, prints = dataset.select(kept), prints.select(kept)
    groups = find_duplicates(prints, near)
    samples = dataset.samples
    blank = np.flatnonzero(contrast(prints.copies) < BLANK)
    duplicates = _in_order([_group(samples, each, prints, near) for each in groups])
    result = Audit(
        source=dataset.source,
        task=dataset.task,
        images=len(dataset),
        unreadable=unreadable,
        left_out=dict(dataset.left_out),
        left_out_names=dict(dataset.left_out_names),
        balance=weigh(dataset),
        sizes=measure([_Sized(each.name, *map(int, size)) for each, size in zip(samples, prints.sizes, strict=True)]),
        kinds=dict(Counter(prints.kinds)),
        grey=int((np.ptp(prints.copies, axis=3).max(axis=(1, 2)) == 0).sum()),
        blank=tuple(_member(samples[row], 0) for row in blank),
        placeholders=find_placeholders(samples, prints.flatness, blank, duplicates),
        duplicates=duplicates,
        crossing=find_crossing(samples),
        lookalikes=(),
        suspects=(),
        agreement=None,
        notes=_notes(dataset, runtime),
    )
    return result if runtime is None else _with_network(result, dataset, runtime, near, threads, done)


def find_crossing(samples: Sequence[Sample]) -> tuple[Crossing, ...]:
    """Groups given with the data whose images are in more than one split, the largest first."""
    members: dict[str, list[Sample]] = {}
    for each in samples:
        if each.group and each.split:
            members.setdefault(each.group, []).append(each)
    torn = [
        Crossing(name, dict(Counter(each.split for each in inside)), tuple(each.name for each in inside))
        for name, inside in members.items()
        if len({each.split for each in inside}) > 1
    ]
    return tuple(sorted(torn, key=lambda each: -sum(each.counts.values())))


class _Sized(NamedTuple):
    name: str
    height: int
    width: int


def _member(sample: Sample, image: int, leaked: bool = False) -> Member:
    return Member(sample.name, sample.labels, sample.split, image, leaked)


def _group(samples: Sequence[Sample], alike: Alike, prints: Fingerprints, near: Near) -> Group:
    """A group by name, its images numbered from 0; held-out members first, so that leaks read from them."""
    held = np.array([row for row in alike.rows if samples[row].split in HELD_OUT], np.int64)
    learned = np.array([row for row in alike.rows if samples[row].split not in HELD_OUT], np.int64)
    leaked = set(learned[matches(prints, learned, held, near)].tolist()) if len(held) and len(learned) else set()
    number = {first: index for index, first in enumerate(dict.fromkeys(alike.images))}
    numbers = dict(zip(alike.rows, (number[first] for first in alike.images), strict=True))
    return Group(
        tuple(_member(samples[row], numbers[row], row in leaked) for row in (*held.tolist(), *learned.tolist()))
    )


def _in_order(groups: list[Group]) -> tuple[Group, ...]:
    """What matters most first: leaks, then different labels, then the same pixels, then many members."""
    return tuple(
        sorted(groups, key=lambda each: (not each.leaks, not each.conflicts, not each.exact, -len(each.members)))
    )


def _with_network(
    audited: Audit, dataset: Dataset, checkpoint: Runtime, near: Near, threads: int, done: ProgressCallback | None
) -> Audit:
    """What only a network sees: look-alikes, and labels that do not fit."""
    features = embeddings_of(checkpoint, dataset, threads=threads, done=done)
    rows = {each.name: row for row, each in enumerate(dataset.samples)}
    groups = [[(rows[each.name], each.labels) for each in group.members] for group in audited.duplicates]
    # One image stands for its duplicates: they are no look-alikes to tell of, and a probe that learned from
    # another copy would believe its label. Copies with other labels are judged all the same.
    others = {row for group in groups for row, _ in group[1:]}
    repeated = {row for group in groups for row, _ in group} - {
        row for group in groups for row in {labels: row for row, labels in reversed(group)}.values()
    }
    alone = np.array([row for row in range(len(dataset)) if row not in others], np.int64)
    judged = np.array([row for row in range(len(dataset)) if row not in repeated], np.int64)
    alike = find_lookalikes(features[alone], near)
    suspects, agreement, notes = _suspects(dataset.select(judged), features[judged])
    if any(2 * len(group) > len(alone) for group in alike) and len(alone) > 2:
        alike = []
        notes = (*notes, "Look-alikes are not listed: to this network, most of the images look alike.")
    return replace(
        audited,
        lookalikes=_in_order([Group(tuple(_member(dataset.samples[alone[r]], r) for r in group)) for group in alike]),
        suspects=suspects,
        agreement=agreement,
        notes=(*audited.notes, *notes),
    )


def _suspects(dataset: Dataset, features: Array) -> tuple[tuple[Suspect, ...], float | None, tuple[str, ...]]:
    """Likely label errors, how far to trust them, and what to say about it."""
    targets = dataset.targets()
    if dataset.task == "single-label":
        judgement = judge(features, targets)
        suspects = [
            Suspect(sample.name, sample.split, sample.labels, (dataset.classes[each.suggested],), *each[3:])
            for each in judgement.doubts
            for sample in (dataset.samples[each.row],)
        ]
        judgements = [judgement]
    else:
        judgements = judge_several(features, targets)
        suspects = _several(dataset, judgements)
    judged = sum(each.judged for each in judgements)
    if not judged:
        why = f"fewer than two classes have {FOLDS} images, too few for a probe to learn from"
        return (), None, (f"Possible label errors were not looked for: {why}.",)
    agreement = sum(each.agreement * each.judged for each in judgements) / judged
    notes = []
    if judged < targets.size:
        notes.append(f"Classes with fewer than {FOLDS} images were not looked at for possible label errors.")
    if agreement < WEAK:
        notes.append(
            f"Probes on this network agree with only {100 * agreement:.0f} % of the labels: it hardly tells these "
            "classes apart, so take its doubts as hints, or audit with a network trained for them."
        )
    return tuple(suspects), agreement, tuple(notes)


def _several(dataset: Dataset, judgements: Sequence[Judgement]) -> list[Suspect]:
    """Doubts about single labels as doubts about images: a label too many, or one that is missing."""
    suspects = []
    for name, judgement in zip(dataset.classes, judgements, strict=True):
        for each in judgement.doubts:
            sample = dataset.samples[each.row]
            without = tuple(label for label in sample.labels if label != name)
            suggested = (*without, name) if each.suggested else without
            suspects.append(Suspect(sample.name, sample.split, sample.labels, suggested, each.score, each.confidence))
    return sorted(suspects, key=lambda each: -each.score)


def _notes(dataset: Dataset, checkpoint: Runtime | None) -> tuple[str, ...]:
    """What was not looked into, and why."""
    notes = []
    if not dataset.splits:
        notes.append("The images are not split yet, so nothing can have leaked: duplicates are found all the same.")
    if checkpoint is None:
        notes.append(
            "Possible label errors and look-alikes were not looked for: that needs a checkpoint, of any network."
        )
    elif set(checkpoint.classes) == set(dataset.classes):
        notes.append(
            "This network knows these classes already. If it was trained on these very images, it may have learned "
            "wrong labels by heart: one that never saw them finds more."
        )
    return tuple(notes)
