"""Audit -> the command that trains on what it leaves, ready to be typed, or what stands in its way."""

from __future__ import annotations

import os
import shlex

from vitrail.auditing.audit_results import Audit
from vitrail.data.exclusions import exclude
from vitrail.data.samples import Dataset
from vitrail.errors import InputError


def next_command(audit: Audit, table: str | os.PathLike[str] | None = None) -> str:
    """How to train on these images, shown as the audit suggests; without those that a table excludes."""
    words = ["vitrail", "train", audit.source]
    if table is not None:
        words += ["--exclude", os.fspath(table)]
    (height, width), resize = audit.sizes.suggestion.size, audit.sizes.suggestion.resize
    if resize != "crop":  # where a centre crop cuts off next to nothing, it is what happens anyway
        words += ["--resize", resize]
        words += ["--size", f"{height}x{width}"] if height != width else []
    return shlex.join(words)


def obstacle(audit: Audit, table: str | os.PathLike[str], images: Dataset) -> str:
    """What has to be put right before a training; empty where there is nothing."""
    if audit.crossing:
        return "Before a training, put all images of a group into one split."
    if not audit.balance.counts:
        return "Before a training, give the images labels."
    try:
        exclude(images, table)
    except InputError as error:
        return f"Before a training, change what the table excludes: {error}."
    return ""
