"""Runtime: what turns pixels into logits and embeddings, whatever stands behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from vitrail.errors import InputError
from vitrail.images import Preprocess

Array = np.ndarray[Any, Any]


class Runtime(Protocol):
    """Anything that turns pixels into logits and embeddings: a checkpoint, an exported file, a packed network."""

    @property
    def preprocess(self) -> Preprocess: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def task(self) -> str: ...

    @property
    def temperature(self) -> float | None: ...

    @property
    def thresholds(self) -> tuple[float, ...] | None: ...

    @property
    def reject(self) -> float | None: ...

    def run(self, pixels: Array) -> tuple[Array, Array]:
        """Pixels (B, C, H, W) -> logits (B, K) and embedding (B, D)."""


class ByteRuntime(Runtime, Protocol):
    """A runtime that normalises by itself, as its preprocess says: it is given a quarter of the bytes."""

    def run_bytes(self, values: Array) -> tuple[Array, Array]:
        """What `Preprocess.bytes` gives, uint8 (B, H, W, C) -> logits (B, K) and embedding (B, D)."""


class LoneRuntime(Runtime, Protocol):
    """A runtime that several threads may ask at once, each of them working by itself."""

    def alone(self) -> Callable[[], None]:
        """To be asked where the runtime has all its threads, and called first by each that asks it: by a thread that
        ends with its work, since it stays alone.
        """


def check_runtime(runtime: object) -> None:
    if not hasattr(runtime, "run") or not hasattr(runtime, "preprocess"):
        raise InputError(f"expected a checkpoint or another runtime, got {type(runtime).__name__}: see vitrail.load")
