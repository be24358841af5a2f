"""save: a checkpoint, or the path of any known family's file -> our one file."""

from __future__ import annotations

import os

from vitrail import checkpoint as files
from vitrail.checkpoint import Checkpoint
from vitrail.weights.loading import load


def save(checkpoint: Checkpoint | str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Write a checkpoint to NAME.safetensors, all or nothing: an older file of that name stays until it is proven.

    - checkpoint: a Checkpoint, or the path of one, of any family.
    - path: where to write it.
    """
    files.save(load(checkpoint) if isinstance(checkpoint, str | os.PathLike) else checkpoint, path)
