"""Exported: a file that `vitrail export` wrote, as a runtime: pixels in, logits and embedding out, without torch.

Before a runtime sees the file, all of it is checked: that it is ours, whole, and holds nothing that reaches elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from vitrail.checks import check_int
from vitrail.errors import CheckpointError, InputError
from vitrail.exporters import file_names, target_of
from vitrail.exporters.export_info import ExportInfo, read_contents
from vitrail.exporters.target import OUTPUTS, Compute, Session, Target
from vitrail.images.model_info import ModelInfo
from vitrail.inference.runtime import RuntimeBase, Takes
from vitrail.types import Array

_WHOLE_BYTE: Final = 0.02  # how far pixels may be from a whole byte and still count as one


class Exported(RuntimeBase):
    """An exported network with all that its use needs; `predict`, `embed` and `evaluate` take it as they take any."""

    def __init__(self, path: Path, contents: ExportInfo, compute: Compute) -> None:
        self.path, self.contents = path, contents
        self.about: ModelInfo = contents.about
        self._compute = compute

    def __repr__(self) -> str:
        height, width = self.contents.size
        size = "any size" if self.contents.dynamic_size or self.contents.resize_inside else f"{height}x{width}"
        return f"Exported({self.path.name!r}, {self.contents.precision}, {self.contents.pixels} of {size})"

    @property
    def provenance(self) -> ExportInfo | None:
        """The run that trained it and its images: the part of a provenance that travels inside."""
        return self.contents if self.contents.run else None

    @property
    def weight_bytes(self) -> int:
        """Of all its files; in them weights are nearly all."""
        return sum(each.stat().st_size for each in _target(self.path).files(self.path))

    @property
    def takes_uint8(self) -> bool:
        return self.contents.pixels == "bytes"

    @property
    def takes(self) -> Takes:
        """Full images where the graph resizes by itself."""
        if self.contents.resize_inside:
            return "images"
        return "uint8" if self.takes_uint8 else "pixels"

    def run(self, pixels: Array) -> tuple[Array, Array]:
        """Pixels (B, C, H, W) -> logits (B, K) and embedding (B, D)."""
        if not isinstance(pixels, np.ndarray) or pixels.dtype.kind != "f":
            got = getattr(pixels, "dtype", type(pixels).__name__)
            raise InputError(f"expected pixels as a float array, got {got}: images go through .preprocess")
        if pixels.ndim != 4 or pixels.shape[1] != self.contents.channels or not len(pixels):
            raise InputError(f"expected pixels (B, {self.contents.channels}, H, W), got {pixels.shape}")
        if self.takes_uint8:
            return self.run_uint8(self._as_bytes(pixels))
        self._check_size(pixels.shape[2], pixels.shape[3])
        return self._run(np.ascontiguousarray(pixels, np.float32))

    def run_uint8(self, values: Array) -> tuple[Array, Array]:
        """8-bit values (B, H, W, C), as Preprocess leaves them before it normalises -> logits and embedding.

        Where the file resizes inside, whole images of one size instead.
        """
        if not isinstance(values, np.ndarray) or values.dtype != np.uint8:
            got = getattr(values, "dtype", type(values).__name__)
            raise InputError(f"expected 8-bit values, an array of uint8, got {got}")
        if values.ndim != 4 or values.shape[3] != self.contents.channels or not values.size:
            raise InputError(f"expected values (B, H, W, {self.contents.channels}), got {values.shape}")
        if not self.takes_uint8:
            return self.run(self.preprocess.normalise(values))
        if not self.contents.resize_inside:
            self._check_size(values.shape[1], values.shape[2])
        return self._run(np.ascontiguousarray(values))

    def compute(self, img: Array, outputs: Sequence[str] = OUTPUTS) -> Sequence[Array]:
        """The graph as it is: its input, and the outputs asked for; `run` checks the input and says what is wrong."""
        return self._compute(img, outputs)

    def _run(self, img: Array) -> tuple[Array, Array]:
        logits, embedding = self._compute(img, OUTPUTS)
        return np.asarray(logits, np.float32), np.asarray(embedding, np.float32)

    def _check_size(self, height: int, width: int) -> None:
        (h, w), (p, q) = self.contents.size, self.contents.cell
        if not self.contents.dynamic_size:
            if (height, width) != (h, w):
                raise InputError(
                    f"{self.path.name} takes images of {h}x{w} only, got {height}x{width}: resize them, or export "
                    "with dynamic_size=True"
                )
        elif height < p or width < q or height % p or width % q:
            raise InputError(
                f"{self.path.name} takes sides that are multiples of {p}x{q} pixels, got {height}x{width}: resize them"
            )

    def _as_bytes(self, pixels: Array) -> Array:
        """Pixels back to the 8-bit values they were made from, for a graph that normalises by itself."""
        preprocess = self.preprocess
        if self.contents.resize_inside and (preprocess.resize != "squash" or preprocess.crop != 1.0):
            raise InputError(
                f"{self.path.name} resizes and crops by itself, so it takes whole images, uint8 (B, H, W, C): use "
                "run_uint8, or export without resize_inside"
            )
        mean, std = (np.reshape(each, (-1, 1, 1)) for each in (preprocess.mean, preprocess.std))
        values = (pixels * std + mean) * preprocess.range
        whole_values = np.rint(values)
        if not np.abs(values - whole_values).max() < _WHOLE_BYTE or whole_values.min() < 0 or whole_values.max() > 255:
            raise InputError(
                f"{self.path.name} takes 8-bit values, and these pixels are none that were normalised: give images "
                "to its .preprocess, or export with pixels='float'"
            )
        values = whole_values.astype(np.uint8).transpose(0, 2, 3, 1)
        return np.asarray(values[..., ::-1] if preprocess.order == "BGR" else values)


def open_exported(path: str | os.PathLike[str], threads: int = 0, few_images: bool = False) -> Exported:
    """Open a file of `export`, checked in full first; `threads` 0 leaves their number to the runtime.

    For a `few` images alone, a runtime need not prepare for many: NAME.onnx is opened sooner, and answers later.
    """
    check_int("threads", threads, least=0, most=4096, error=InputError)
    target = _target(path)
    file = Path(os.fsdecode(path))
    if not target.opens:
        raise InputError(
            f"{file} is for {target.runtime}, outside of Vitrail: predict with the checkpoint it was made from, or "
            f"export that as {file_names(opened=True)}"
        )
    return start_exported(file, target, Session(threads, few_images))


def start_exported(path: Path, target: Target, how: Session = Session()) -> Exported:  # noqa: B008
    """A file in its own runtime, which is imported beside the checks: they mostly wait for the disk and the hash."""
    with ThreadPoolExecutor(1, "vitrail-import") as beside:
        importing = beside.submit(target.import_runtime)
        contents = read_exported(path, target)
        return Exported(path, contents, target.start(importing.result(), path, contents, how))


def read_exported(path: Path, target: Target | None = None) -> ExportInfo:
    """What an exported file says of itself, once all of it has been checked; no runtime is needed."""
    target = target or _target(path)
    entries = target.read(path)
    if not entries.description:
        raise CheckpointError(f"{path} holds no description of ours: export the checkpoint again with vitrail.export")
    contents = read_contents(entries.description, entries.notes, str(path))
    if contents.target != target.name:
        raise CheckpointError(f"{path} says it was made for {contents.target}, and is {target.name}: export it again")
    return contents


def _target(path: str | os.PathLike[str]) -> Target:
    target = target_of(path) if isinstance(path, str | os.PathLike) else None
    if target is None:
        raise InputError(f"expected an exported file, {file_names(opened=True)}, got {path!r:.80}")
    return target
