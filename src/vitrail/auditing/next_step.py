"""Audit -> the command that trains on what it leaves, ready to be typed, or what stands in its way."""

from __future__ import annotations

import os
import shlex

from vitrail.auditing.audit_results import Audit
from vitrail.data.exclusions import exclude
from vitrail.data.samples import Dataset
from vitrail.errors import InputError


def next_command(audit: Audit, table: str | os.PathLike[str]) -> str:
    """How to train on these images without those that the table excludes, shown as the audit suggests."""
    words = ["vitrail", "train", audit.source, "--exclude", os.fspath(table)]
    resize = audit.sizes.suggestion.resize
    if resize != "crop":  # where a centre crop cuts off next to nothing, it is what happens anyway
        words += ["--resize", resize]
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
