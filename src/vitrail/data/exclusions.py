"""A list of images to leave out, as the audit writes it -> the dataset without them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np

from vitrail.checks import join_limited
from vitrail.data.samples import Dataset, ImageFiles
from vitrail.data.tables import read_rows
from vitrail.errors import InputError
from vitrail.images import describe
from vitrail.reporting.html_page import counted

KEPT: Final = ("", "0", "no", "n", "false")  # answers to "exclude?" that leave an image in


def exclude(dataset: Dataset, csv_path: str | os.PathLike[str]) -> tuple[Dataset, int]:
    """The dataset without the images in the column `path` (names or paths), and how many those are.

    Where there is a column `exclude`, an image stays if that is empty, 0, no or false.
    """
    table = Path(csv_path)
    rows = {sample.name: row for row, sample in enumerate(dataset.samples)}
    if isinstance(dataset.images, ImageFiles):
        folder = os.path.abspath(dataset.images.folder)
        rows = {os.path.normpath(os.path.join(folder, name)): row for name, row in rows.items()} | rows
    elif not isinstance(dataset.images, np.ndarray):
        rows = {os.path.abspath(str(path)): row for row, path in enumerate(dataset.images)} | rows
    unwanted: set[int] = set()
    unknown: list[str] = []
    for line, (name, answer) in read_rows(table, {"path": None, "exclude": "yes"}):
        if answer.strip().lower() in KEPT:
            continue
        row = rows.get(name, rows.get(os.path.abspath(name)))
        if row is None:
            unknown.append(f"line {line}: {describe(name)}")
        else:
            unwanted.add(row)
    if unknown:
        raise InputError(
            f"{describe(table)} excludes {counted(len(unknown), 'image')} not in {dataset.source}: "
            f"{join_limited(unknown)}"
        )
    if not unwanted:
        return dataset, 0
    kept = dataset.select([row for row in range(len(dataset)) if row not in unwanted])
    left = Counter(label for sample in kept.samples for label in sample.labels)
    before = Counter(label for sample in dataset.samples for label in sample.labels)
    if not len(kept) or (lost := [each for each in before if not left[each]]):
        what = "any image" if not len(kept) else f"any image of {join_limited([repr(each) for each in lost], ', ')}"
        raise InputError(f"{describe(table)} leaves {dataset.source} without {what}: exclude fewer")
    return kept, len(unwanted)
