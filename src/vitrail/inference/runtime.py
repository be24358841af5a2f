"""Runtime: what turns pixels into logits and embeddings, whatever stands behind it."""

from __future__ import annotations

import copy
from typing import Final, Literal, Protocol, Self, TypeAlias, runtime_checkable

from vitrail.errors import InputError
from vitrail.images import Preprocess, Resample
from vitrail.images.model_info import ModelInfo
from vitrail.images.ood_detector import OodDetector
from vitrail.types import Array

Takes: TypeAlias = Literal["pixels", "uint8", "images"]
"""What a runtime is best given: normalised float pixels (B, C, H, W); 8-bit values (B, H, W, C), which it normalises
as its preprocess says; or full images of any size, uint8 (1, H, W, C), which it resizes as well."""


class Origin(Protocol):
    """Where weights came from, as far as whoever judges them asks; the provenance of a checkpoint says more."""

    @property
    def run(self) -> str:
        """The run that trained them; empty where not known."""

    @property
    def source(self) -> str:
        """The images of that run."""


@runtime_checkable
class Runtime(Protocol):
    """Anything that turns images into logits and embeddings: a checkpoint, an exported file, a packed network.

    All that callers use of one stands here.
    """

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

    @property
    def ood(self) -> OodDetector | None:
        """What tells images unlike the training ones by their embedding; None where nobody knows."""

    @property
    def provenance(self) -> Origin | None:
        """Where the weights came from; None where the file does not say."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What whoever opened it should know: what a file left open, or could not be done as it should."""

    @property
    def takes(self) -> Takes: ...

    @property
    def resample(self) -> Resample | None:
        """A way of its own to resize images, for scaled decoding; None: as every other runtime."""

    def run(self, pixels: Array) -> tuple[Array, Array]:
        """Pixels (B, C, H, W) -> logits (B, K) and embedding (B, D)."""

    def run_uint8(self, values: Array) -> tuple[Array, Array]:
        """8-bit values (B, H, W, C), as `Preprocess.to_uint8` gives them, or full images -> the same."""

    def with_preprocess(self, preprocess: Preprocess) -> Self:
        """The same runtime, reading images in another way."""


MEMBERS: Final = tuple(name for name in vars(Runtime) if not name.startswith("_"))


class RuntimeBase:
    """A runtime that says of itself what its `about` says, and is given pixels; `run` is missing."""

    about: ModelInfo
    notes: tuple[str, ...] = ()

    @property
    def preprocess(self) -> Preprocess:
        return self.about.preprocess

    @property
    def classes(self) -> tuple[str, ...]:
        return self.about.classes

    @property
    def task(self) -> str:
        return self.about.task

    @property
    def temperature(self) -> float | None:
        return self.about.temperature

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        return self.about.thresholds

    @property
    def reject(self) -> float | None:
        return self.about.reject

    @property
    def ood(self) -> OodDetector | None:
        about: ModelInfo | None = getattr(self, "about", None)  # some say each of the above by themselves
        return None if about is None else about.ood

    @property
    def provenance(self) -> Origin | None:
        return None

    @property
    def takes(self) -> Takes:
        return "pixels"

    @property
    def resample(self) -> Resample | None:
        return None

    def run(self, pixels: Array) -> tuple[Array, Array]:
        raise NotImplementedError

    def run_uint8(self, values: Array) -> tuple[Array, Array]:
        return self.run(self.preprocess.normalise(values))

    def with_preprocess(self, preprocess: Preprocess) -> Self:
        other = copy.copy(self)
        other.about = self.about.with_preprocess(preprocess)
        return other


def check_runtime(runtime: object) -> None:
    if isinstance(runtime, Runtime):
        return
    kind = type(runtime).__name__
    if callable(getattr(runtime, "run", None)):  # nearly one: say what is missing
        missing = ", ".join(name for name in MEMBERS if not hasattr(runtime, name))
        raise InputError(f"{kind} is no runtime, it lacks {missing}: let it inherit vitrail.inference.RuntimeBase")
    raise InputError(f"expected a checkpoint or another runtime, got {kind}: see vitrail.load")
