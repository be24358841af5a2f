"""Checkpoint: a model, how its images are prepared, its classes and where it came from, in one file."""

from __future__ import annotations

from vitrail.checkpoint.checkpoint import Checkpoint, answers
from vitrail.checkpoint.checkpoint_file import KEY, content_hash, load, save, write_proven
from vitrail.checkpoint.provenance import Mapped, Provenance, Setting
from vitrail.checkpoint.safetensors_io import Safetensors, read_safetensors

__all__ = [
    "KEY",
    "Checkpoint",
    "Mapped",
    "Provenance",
    "Safetensors",
    "Setting",
    "answers",
    "content_hash",
    "load",
    "read_safetensors",
    "save",
    "write_proven",
]
