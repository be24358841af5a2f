"""What a reader found -> a Dataset: classes by name, and every disagreement about them an error with a diff."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vitrail.checks import join_limited
from vitrail.data.left_out import LeftOut, kind_of
from vitrail.data.samples import SPLIT_NAMES, Dataset, Files, ImageFiles, Sample, labels_of
from vitrail.errors import InputError
from vitrail.images import describe
from vitrail.images.file_names import SUFFIXES, in_order
from vitrail.types import Array

LONGEST_LABEL: Final = 500


class Reading(NamedTuple):
    """What a source holds, before its classes are agreed on."""

    samples: Sequence[Sample]
    images: Path | ImageFiles | Array  # the folder that the samples' names are paths in, or all beside the samples
    left_out: LeftOut | None = None  # files that are no samples
    task: str = "single-label"
    named: Collection[str] = ()  # classes that the source names, whether or not it has images of them
    hint: str = ""  # what else the user may have meant, for messages


def build_dataset(source: str, reading: Reading, classes: Sequence[str] | None = None) -> Dataset:
    """The Dataset, its classes in natural order; or in the order of `classes`, which must then be the same names."""
    name = describe(source)
    if not reading.samples:
        found_none = f"no images in {name}: expected files ending in {', '.join(SUFFIXES)}"
        raise InputError(found_none + _left_out(reading) + reading.hint)
    labels = labels_of(reading.samples) | set(reading.named)
    samples = reading.samples
    if classes is None:
        order = tuple(in_order(labels))
        _check_learnable(name, reading, order)
        if reading.task == "single-label" and len(order) < 2:
            only = f"{name} has one class only, {order[0]!r}: expected two or more"
            raise InputError(only + _left_out(reading) + reading.hint)
    else:
        order, spelling = _spellings(classes, labels)
        if difference := differing(order, [spelling.get(each, each) for each in labels]):
            raise InputError(f"the classes of {name} are not those that were expected: {difference}")
        if any(spelling[each] != each for each in labels):
            samples = [each._replace(labels=tuple(spelling[label] for label in each.labels)) for each in samples]
    images = reading.images
    files = Files(images, [each.name for each in samples]) if isinstance(images, Path) else images
    left_out = reading.left_out or LeftOut()
    counts = dict(left_out.counts)
    return Dataset(source, tuple(samples), files, order, reading.task, counts, left_out.first)


def as_label(text: str, where: str) -> str:
    """A class name in one spelling (é may be written in two ways), or an error that says where it stands."""
    name = unicodedata.normalize("NFC", text)
    if not name.strip():
        raise InputError(f"{where}: expected the name of a class, got {text!r}")
    if len(name) > LONGEST_LABEL:
        raise InputError(f"{where}: a class name of {len(name):,} characters, expected at most {LONGEST_LABEL}")
    kinds = {unicodedata.category(each) for each in name}
    if "Cs" in kinds:
        raise InputError(f"{where}: the class name {name!r} is not UTF-8: rename it, or save the file as UTF-8")
    if "Cc" in kinds:
        raise InputError(f"{where}: the class name {name!r} holds control characters: rename it")
    return name


def differing(expected: Collection[str], found: Collection[str], unknown: str = "unknown") -> str:
    """The names missing and the names unknown, with the nearest expected ones; empty where there are none."""
    missing = in_order(set(expected) - set(found))
    extra = in_order(set(found) - set(expected))
    parts = []
    if missing:
        parts.append(f"missing: {join_limited([repr(each) for each in missing], ', ')}")
    if extra:
        shown = [repr(each) + _suggestion(each, expected) for each in extra[:8]] + extra[8:]
        parts.append(f"{unknown}: {join_limited(shown, ', ')}")
    return "; ".join(parts)


def _suggestion(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _check_learnable(name: str, reading: Reading, order: tuple[str, ...]) -> None:
    """Where there is something to train on, every class must have images there."""
    learned = labels_of(reading.samples, ("train", ""))
    if not any(each.split in ("train", "") for each in reading.samples):
        return
    seen = labels_of(reading.samples)
    if empty := [each for each in order if each not in seen]:
        names = join_limited([repr(each) for each in empty], ", ")
        folders = [str(path) for each in empty for path in _folders(reading.images, each)]
        remedy = f"delete {join_limited(folders, ' and ')}" if folders else "leave out the name of the class"
        raise InputError(f"{name} has no images of {names}: add images, or {remedy}{_left_out(reading)}")
    for split in ("val", "test"):
        if difference := differing(learned, labels_of(reading.samples, (split,)) | learned, "unknown to train"):
            raise InputError(f"{name}: {split} has classes that train does not: {difference}")


def _folders(images: Path | ImageFiles | Array, label: str) -> list[Path]:
    """Where images of a class would be, in folders by class or by split and class."""
    if not isinstance(images, Path):
        return []
    return [path for path in (images / label, *(images / split / label for split in SPLIT_NAMES)) if path.is_dir()]


def _spellings(classes: Sequence[str], found: Collection[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names asked for, and how they spell those found: one name may be written in two ways in Unicode."""
    if isinstance(classes, str) or not all(isinstance(each, str) for each in classes):
        raise InputError(f"classes: expected a list of names, got {classes!r:.80}")
    if len(set(classes)) != len(classes):
        raise InputError("classes: expected every name once")
    known = {unicodedata.normalize("NFC", each): each for each in classes}
    return tuple(classes), {each: known.get(unicodedata.normalize("NFC", each), each) for each in found}


def _left_out(reading: Reading) -> str:
    """What was left out, at the end of a message about what is missing."""
    counts = reading.left_out.counts if reading.left_out is not None else {}
    parts = [f"{count:,} {kind_of(reason, count)}" for reason, count in counts.items()]
    return f" (left out: {join_limited(parts, ', ')})" if parts else ""
