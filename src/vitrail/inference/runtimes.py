"""What verbs are given -> the runtime they use: a runtime as it is, the path of an exported file opened."""

from __future__ import annotations

import os
from typing import TypeVar

from vitrail.errors import InputError
from vitrail.inference.exported import Exported, is_exported, open_exported
from vitrail.inference.runtime import check_runtime

Given = TypeVar("Given")


def runtime_of(given: Given | str | os.PathLike[str]) -> Given | Exported:
    """A runtime; NAME.onnx, NAME.xml and NAME.pt2 are opened, other paths are for vitrail.load."""
    if not isinstance(given, str | os.PathLike):
        check_runtime(given)
        return given
    if not is_exported(given):
        raise InputError(
            "expected a checkpoint, another runtime, or an exported file (NAME.onnx, .xml or .pt2), got the path "
            f"{os.fspath(given)!r:.80}: use vitrail.load, or vitrail.shipping.open_runtime for a packed one"
        )
    return open_exported(given)
