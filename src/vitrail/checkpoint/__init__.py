"""Checkpoint: a model, how its images are prepared, its classes and where it came from, in one file."""

from __future__ import annotations

from vitrail.checkpoint.checkpoint_file import (
    KEY,
    Checkpoint,
    Mapped,
    Provenance,
    Setting,
    answers,
    content_hash,
    load,
    save,
    write_proven,
)

__all__ = [
    "KEY",
    "Checkpoint",
    "Mapped",
    "Provenance",
    "Setting",
    "answers",
    "content_hash",
    "load",
    "save",
    "write_proven",
]
