"""Runtimes by name: a checkpoint, or a file of any kind -> something that answers. "eager" is the checkpoint itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vitrail.checkpoint import Checkpoint
from vitrail.errors import InputError, nearest
from vitrail.files import path_text
from vitrail.inference import Runtime, is_exported, open_exported
from vitrail.packed import Packed, is_packed, open_packed
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.weights import load

RUNTIMES: Final = ("eager", "packed", "packed-bf16", "onnx", "openvino")


def open_runtime(
    path: str | os.PathLike[str],
    runtime: str = "",
    *,
    override: Mapping[str, Any] | None = None,
    leave_out: Sequence[str] = (),
) -> Runtime:
    """What a path holds, ready to answer: an exported file, a packed network, or a checkpoint of any family.

    For a checkpoint, `runtime` says by what: "eager" (usual), "packed" or "packed-bf16". Files made for a runtime have
    theirs already.
    """
    place = path_text(path)
    made = is_exported(place) or is_packed(place)
    if made and (runtime or override or leave_out):
        given = ", ".join(filter(None, [runtime and f"runtime={runtime!r}", *(override or {}), *leave_out]))
        raise InputError(f"{place} was made for its runtime and says everything itself: open it without {given}")
    if is_exported(place):
        return open_exported(place)
    if is_packed(place):
        return open_packed(place)
    check_checkpoint_runtime(runtime, place)
    checkpoint = load(path, override=override, leave_out=leave_out)
    return checkpoint if runtime in ("", "eager") else packed(checkpoint, runtime)


def packed(checkpoint: Checkpoint, runtime: str = "packed") -> Packed:
    """A checkpoint packed in fp32 ("packed") or bf16 ("packed-bf16")."""
    return Packed(checkpoint, QuantPlan("bf16" if runtime == "packed-bf16" else "fp32"))


def check_checkpoint_runtime(runtime: str, place: str) -> None:
    """Refuse a name that is none, and runtimes that need a file of their own."""
    if runtime and runtime not in RUNTIMES:
        raise InputError(f"no runtime {runtime!r}: {nearest(runtime, RUNTIMES)}")
    if runtime in ("onnx", "openvino"):
        suffix = ".onnx" if runtime == "onnx" else ".xml"
        raise InputError(f"{place} is a checkpoint: `vitrail export {place} NAME{suffix}` makes a file for {runtime}")
