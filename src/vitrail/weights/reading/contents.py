"""WeightContents: what a file or folder of weights holds, before any tensor is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitrail.checkpoint.safetensors_io import StoredTensor


@dataclass(frozen=True)
class WeightContents:
    """Tensors by name, with shapes and kinds of number, and what lies beside them."""

    source: str  # as the user named it
    kind: str  # safetensors, pickle or npz
    tensors: Mapping[str, StoredTensor]  # under their own names, wrappers and prefixes taken off
    wrapper: str = ""  # what was taken off, outermost first: "teacher", "model", "module."
    others: tuple[str, ...] = ()  # what else the file holds: "optimizer", "epoch", "student"
    left: tuple[str, ...] = ()  # names of tensors that the user wants to do without
    metadata: Mapping[str, str] = field(default_factory=dict)  # of a safetensors header
    sidecars: Mapping[str, Any] = field(default_factory=dict)  # JSON files of a folder, by name
