"""Folders of images -> Reading: a folder a class, such folders below train, val and test, or labels in file names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vitrail.checks import join_limited
from vitrail.data.classes import Reading, as_label, differing
from vitrail.data.folder_walk import Walk, entries, folders_in, walk
from vitrail.data.samples import SPLIT_NAMES, Sample, as_split
from vitrail.errors import InputError
from vitrail.images import describe

OUTSIDE: Final = "images outside class folders"
EMPTY: Final = "folders without images"
LOGS: Final = "folders of logs"
TOOLS: Final = "folders of tools"
# What trainings and tools write beside their images: never meant as a class or a split where there are splits.
WRITTEN_FOLDERS: Final = dict.fromkeys(
    ("logs", "log", "runs", "wandb", "mlruns", "lightning_logs", "tensorboard", "tb_logs", "checkpoints"), LOGS
) | dict.fromkeys(("venv", "env", "node_modules"), TOOLS)


class _Top(NamedTuple):
    """The folders directly in a data set: which stand for splits, and which for nothing."""

    splits: dict[str, str]  # folder -> split
    passed: dict[str, str]  # folder -> why it is left out


def read_folders(root: Path) -> Reading:
    """folder/<class>/**/image, or folder/<split>/<class>/**/image."""
    splits, passed = _top_folders(root)
    tops = splits or {"": ""}  # folder -> split; the root itself where it holds the classes
    hint = _hint(root)
    classes = {top: _class_names(root / top, () if top else passed) for top in tops}
    for top, names in classes.items():
        if not names:
            expected = f"{top}/<class>/image" if top else "<class>/image, or train/<class>/image"
            raise InputError(f"{describe(root / top)} holds no class folders: expected {expected}{hint}")
    first = next((top for top in tops if tops[top] == "train"), next(iter(tops)))
    for top, names in classes.items():
        difference = differing(classes[first].values(), names.values(), f"unknown to {first}")
        if difference:
            raise InputError(
                f"{describe(root)}: the classes of {top} are not those of {first}: {difference} "
                f"(a class of which {top} has no images needs an empty folder, to say that it is meant)"
            )
    labels = {(*Path(top).parts, folder): (name,) for top, names in classes.items() for folder, name in names.items()}
    depth = 2 if splits else 1  # of a class below the root
    files = _walk(root, passed)
    if closed := [each for each in files.closed if tuple(each.split("/")) in labels]:
        raise InputError(
            f"the class {describe(closed[0])} in {describe(root)} cannot be read: see to its permissions, or move the "
            "folder elsewhere"
        )
    samples = []
    for name in files.names:
        folders = tuple(name.split("/", depth)[:depth])
        if folders in labels:
            samples.append(Sample(name, labels[folders], splits.get(folders[0], "")))
        else:
            files.left_out.add(OUTSIDE, name)
    return Reading(samples, root, files.left_out, named=classes[first].values(), hint="" if splits else hint)


def read_names(root: Path, pattern: str) -> Reading:
    """Labels from the names of files: the pattern matches the whole path below the folder, and names parts of it.

    Its group `label` is the class; groups `split` and `group` may follow. Without a group `split`, folders
    train, val and test at the top say it.
    """
    match = _compiled(pattern)
    top = _Top({}, {}) if "split" in match.groupindex else _splits_of_names(root)
    splits = top.splits
    files = _walk(root, top.passed)
    labels: dict[str, tuple[str, ...]] = {}
    samples, wrong = [], []
    for name in files.names:
        parts = match.fullmatch(name)
        if parts is None or not parts["label"]:
            wrong.append(name)
            continue
        groups = parts.groupdict()
        label = parts["label"]
        if label not in labels:
            labels[label] = (as_label(label, describe(name)),)
        folder = name.partition("/")[0]
        split = as_split(groups["split"] or "", describe(name)) if "split" in groups else splits.get(folder, "")
        samples.append(Sample(name, labels[label], split, groups.get("group") or ""))
    if wrong:
        raise InputError(
            f"{len(wrong):,} of {len(files.names):,} images in {describe(root)} do not match {pattern!r}: "
            f"{join_limited([describe(each) for each in wrong], ', ')}: it must match the whole path below the folder, "
            r"as in '.*_(?P<label>[^_]+)\.jpg'"
        )
    return Reading(samples, root, files.left_out)


def read_images(root: Path) -> Reading:
    """Every image below a folder, without labels."""
    files = walk(root)
    return Reading([Sample(name, ()) for name in files.names], root, files.left_out)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError, RecursionError) as error:
        raise InputError(f"pattern {pattern!r}: no regular expression: {error}") from None
    if "label" not in compiled.groupindex:
        raise InputError(rf"pattern {pattern!r}: expected a group named label, as in '.*_(?P<label>[^_]+)\.jpg'")
    return compiled


def _walk(root: Path, passed: Mapping[str, str]) -> Walk:
    """The images below a folder, without those folders in it that stand for nothing; which these are is told."""
    files = walk(root, passed)
    for folder, why in passed.items():
        files.left_out.add(why, folder)
    return files


def _top_folders(root: Path) -> _Top:
    """Which folders stand for splits; none where they are classes."""
    folders = folders_in(root)
    named = [each for each in folders if each.lower() in SPLIT_NAMES]
    others = [each for each in folders if each not in named]
    written = {each: WRITTEN_FOLDERS[each.lower()] for each in others if each.lower() in WRITTEN_FOLDERS}
    # A train may be a vehicle: it is a class among others if no folders stand in it.
    if not named or (others and not any(folders_in(root / each) for each in named)):
        return _Top({}, {each: why for each, why in written.items() if not walk(root / each).names})
    passed = {each: EMPTY for each in others if not walk(root / each).names} | written
    if unclear := [each for each in others if each not in passed]:
        raise InputError(
            f"{describe(root)} holds {' and '.join(map(repr, named))} with folders in them, beside "
            f"{join_limited([repr(each) for each in unclear], ', ')}: "
            "expected either split folders alone (train, val, test), or class folders alone"
        )
    return _Top(_splits(named), passed)


def _splits_of_names(root: Path) -> _Top:
    """The splits where labels stand in the names of files: all folders with images must be named after splits."""
    folders = folders_in(root)
    named = [each for each in folders if each.lower() in SPLIT_NAMES]
    passed = {each: EMPTY for each in folders if named and each not in named and not walk(root / each).names}
    return _Top(_splits(named), passed) if len(named) + len(passed) == len(folders) else _Top({}, {})


def _splits(named: Sequence[str]) -> dict[str, str]:
    """Folder -> split, of folders that are named after splits."""
    splits = {each: SPLIT_NAMES[each.lower()] for each in named}
    for split, count in Counter(splits.values()).items():
        if count > 1:
            twice = " and ".join(repr(each) for each in splits if splits[each] == split)
            raise InputError(f"{twice} both stand for {split}: expected one folder a split")
    return splits


def _class_names(root: Path, passed: Collection[str]) -> dict[str, str]:
    """Folder -> class, in one spelling."""
    names = {each: as_label(each, describe(root / each)) for each in folders_in(root) if each not in passed}
    for name, count in Counter(names.values()).items():
        if count > 1:
            raise InputError(
                f"{describe(root)} has two folders called {name!r}, spelled differently in Unicode: join them"
            )
    return names


def _hint(root: Path) -> str:
    """What else the user may have meant."""
    tables = sorted(each.name for each in entries(root) if each.name.lower().endswith((".csv", ".tsv")))
    if tables:
        return f"; if the labels stand in {describe(tables[0])}, name that file instead of the folder"
    return "; if the labels stand in the names of the files, say how by a pattern"
