"""export: a checkpoint to the file of another runtime, with all its use needs inside, verified in that runtime.

`TARGETS` is the one list of them; a new one is a file with its object, and a line here. No torch is imported.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from vitrail.errors import InputError
from vitrail.exporters.onnx import ONNX
from vitrail.exporters.openvino import OPENVINO
from vitrail.exporters.target import Target
from vitrail.exporters.torch_program import TORCH

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (
        ONNX,
        OPENVINO,
        TORCH,
    )
}


def target_of(path: str | os.PathLike[str]) -> Target | None:
    """The target whose files are called like this one."""
    suffix = Path(os.fsdecode(path)).suffix.lower()
    return next((target for target in TARGETS.values() if target.suffix == suffix), None)


def is_exported(path: object) -> bool:
    """Whether this is the name of a file that `export` writes."""
    return isinstance(path, str | os.PathLike) and target_of(path) is not None


def file_names(precision: str = "fp32", *, opened: bool = False) -> str:
    """NAME.onnx, NAME.xml or NAME.pt2: those that compute in a precision; or of them those that open_model takes."""
    chosen = [each for each in TARGETS.values() if precision in each.precisions and (each.opens or not opened)]
    names = [f"NAME{each.suffix}" for each in chosen]
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "none"


def check_precision(target: Target, precision: str) -> None:
    if precision not in target.precisions:
        raise InputError(
            f"{precision} goes into {file_names(precision)}, or a packed NAME.safetensors, not into NAME{target.suffix}"
        )
