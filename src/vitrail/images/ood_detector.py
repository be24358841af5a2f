"""OodDetector: embeddings (n, D) -> how familiar each is: a Gaussian of training embeddings, calibrated by conformal
prediction.

The distance of an image is Mahalanobis's, from the mean of the training images: along the principal directions by the
variance of each, in all others by what variance is left for them. Its familiarity is the share of calibration images
that lie as far out, itself counted: among images like those, at most one in twenty is as low as 5 %, whatever the
distances look like.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from vitrail.checks import check_number, check_type, short_repr
from vitrail.errors import CheckpointError, InputError
from vitrail.types import Array

FALSE_ALARMS: Final = 0.05  # promised, at most, among images like the training ones
MOST_FALSE_ALARMS: Final = 0.1  # promised where few images calibrate; a remark that is wrong more often helps nobody
SHRINKAGE: Final = 1e-3  # of the variances towards their mean: few images leave some directions too narrow
MOST_DIRECTIONS: Final = 256
MOST_VALUES: Final = 640_000  # in all directions: under two megabytes of text in a file
_SMALLEST: Final = 1e-12
_KINDS: Final = {"mean": "<f4", "directions": "<f2", "variances": "<f4", "distances": "<f4"}  # as they are stored


@dataclass(frozen=True, eq=False, repr=False)
class OodDetector:
    """Tells images unlike anything a network was trained on (out of distribution), by its embeddings."""

    mean: Array  # (D,) of the training embeddings
    directions: Array  # (k, D) their principal directions, in half precision
    variances: Array  # (k,) along each of them
    rest: float  # variance in every other direction
    distances: Array  # (n,) of the calibration images, sorted
    false_alarms: float = FALSE_ALARMS  # the share promised

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            values = np.ascontiguousarray(check_type(name, getattr(self, name), np.ndarray), np.dtype(kind))
            if not np.isfinite(values).all():
                raise CheckpointError(f"the out-of-distribution detector's {name} hold NaN or infinite values")
            object.__setattr__(self, name, values)
        width, directions = self.mean.size, self.variances.size
        shapes = {"mean": (width,), "directions": (directions, width), "variances": (directions,)}
        for name, shape in (shapes | {"distances": (self.distances.size,)}).items():
            if getattr(self, name).shape != shape or not width:
                got = getattr(self, name).shape
                raise CheckpointError(f"the out-of-distribution detector's {name}: expected {shape}, got {got}")
        if (self.variances <= 0).any() or (np.diff(self.distances) < 0).any():
            raise CheckpointError("the out-of-distribution detector needs variances above 0, and sorted distances")
        rest = check_number("rest", self.rest, 0.0, 1e30, error=CheckpointError)
        if directions < width and not rest > 0:
            raise CheckpointError("the out-of-distribution detector's rest: expected a variance above 0")
        object.__setattr__(self, "rest", rest)
        false_alarms = check_number("false_alarms", self.false_alarms, 1e-6, 1.0, error=CheckpointError)
        object.__setattr__(self, "false_alarms", false_alarms)
        if self.distances.size < fewest(false_alarms):
            raise CheckpointError(
                f"at most {100 * false_alarms:g} % false alarms cannot be promised by {self.distances.size} images: "
                f"expected at least {fewest(false_alarms)}"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OodDetector) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.mean.tobytes(), self.distances.tobytes(), self.false_alarms))

    def __repr__(self) -> str:
        return (
            f"OodDetector({self.directions.shape[0]} of {self.width} directions, calibrated on "
            f"{self.distances.size} images, false alarms {100 * self.false_alarms:g} %)"
        )

    @property
    def words(self) -> str:
        """What it promises: "at most 5 % of images like the training ones, set on 209 images"."""
        promise = f"at most {100 * self.false_alarms:g} % of images like the training ones"
        return f"{promise}, set on {self.distances.size} images"

    @property
    def width(self) -> int:
        """Of the embeddings it knows."""
        return int(self.mean.size)

    @classmethod
    def fit(cls, training: Array, calibration: Array, false_alarms: float = FALSE_ALARMS) -> OodDetector:
        """From the embeddings of training images (m, D), and of others like them that nothing was fitted to (n, D)."""
        training = _checked(training, np.shape(training)[-1])
        if len(training) < 2:
            raise InputError("expected the embeddings of at least 2 training images")
        centre = training.mean(axis=0).astype(np.float32)
        centred = training - centre
        variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))  # ascending; a column a direction
        variances = np.maximum(variances[::-1], 0.0)
        variances = np.maximum((1 - SHRINKAGE) * variances + SHRINKAGE * variances.mean(), _SMALLEST)
        kept = most_directions(training.shape[1])
        rest = float(variances[kept:].mean()) if kept < len(variances) else 0.0
        uncalibrated = cls(
            centre,
            directions[:, ::-1].T[:kept].astype(np.float16),
            variances[:kept],
            rest,
            np.zeros(fewest(false_alarms)),
            false_alarms,
        )
        return uncalibrated.calibrated(calibration)

    def calibrated(self, embedding: Array, false_alarms: float | None = None) -> OodDetector:
        """The same Gaussian, its promise made anew on the embeddings of images that nothing was fitted to (n, D)."""
        share = self.false_alarms if false_alarms is None else false_alarms
        return replace(self, distances=np.sort(self.mahalanobis(embedding)), false_alarms=share)

    def mahalanobis(self, embedding: Array) -> Array:
        """Squared Mahalanobis distances (n,) of embeddings (n, D), float32; of what is no number, the largest."""
        centred = _checked(embedding, self.width) - self.mean
        directions = self.directions.astype(np.float64)
        along = centred @ directions.T  # (n, k)
        squared = (along**2 / self.variances).sum(axis=1)
        if self.rest:
            squared = squared + ((centred - along @ directions) ** 2).sum(axis=1) / self.rest
        largest = float(np.finfo(np.float32).max)
        return np.asarray(np.nan_to_num(squared, nan=largest, posinf=largest).clip(max=largest), np.float32)

    def familiarity(self, embedding: Array) -> Array:
        """Conformal p-values (n,) of embeddings (n, D): the share of calibration images that lie as far out."""
        nearer = np.searchsorted(self.distances, self.mahalanobis(embedding), side="left")
        return np.asarray((1 + self.distances.size - nearer) / (self.distances.size + 1))

    def is_unlike(self, familiarity: Array) -> Array:
        """Which images (n,) are unlike the training images, by their familiarity."""
        return np.asarray(familiarity <= self.false_alarms + _SMALLEST)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, arrays as text in base 64; `from_dict` gives the same back."""
        arrays = {name: getattr(self, name) for name in _KINDS}
        return {
            "shape": list(self.directions.shape),
            **{name: base64.b64encode(values.tobytes()).decode("ascii") for name, values in arrays.items()},
            "rest": self.rest,
            "false_alarms": self.false_alarms,
        }

    @classmethod
    def from_dict(cls, plain: Any) -> OodDetector:
        """What `to_dict` wrote, checked."""
        plain = check_type("ood", plain, Mapping, error=CheckpointError)
        missing = [name for name in ("shape", *(each.name for each in fields(cls))) if name not in plain]
        if missing:
            raise CheckpointError(f"the out-of-distribution detector lacks {', '.join(missing)}")
        values = {name: _decoded(name, plain[name], kind) for name, kind in _KINDS.items()}
        try:
            values["directions"] = values["directions"].reshape([int(side) for side in plain["shape"]])
        except (TypeError, ValueError, OverflowError):
            shape = short_repr(plain["shape"])
            raise CheckpointError(f"the out-of-distribution detector's directions do not fit shape {shape}") from None
        return cls(**values, rest=plain["rest"], false_alarms=plain["false_alarms"])


def fewest(false_alarms: float = FALSE_ALARMS) -> int:
    """Calibration images without which a share of false alarms cannot be promised: 19 for 5 %."""
    return max(1, math.ceil(1 / false_alarms - 1 - 1e-9))


def promised_by(images: int) -> float | None:
    """The share of false alarms that so many calibration images can promise, in whole percent: 5 % by 19 and more, 10 %
    by 9; None by fewer."""
    share = max(FALSE_ALARMS, math.ceil(100 / (images + 1) - 1e-9) / 100)
    return share if share <= MOST_FALSE_ALARMS else None


def most_directions(width: int) -> int:
    """How many directions of embeddings of this width are kept: all of a small one."""
    return max(1, min(width, MOST_DIRECTIONS, MOST_VALUES // width))


def _decoded(name: str, text: Any, kind: str) -> Array:
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), np.dtype(kind))
    except (TypeError, ValueError):
        raise CheckpointError(f"the out-of-distribution detector's {name} are damaged") from None


def _checked(embedding: Array, width: int) -> Array:
    values = np.asarray(embedding, np.float64)
    if values.ndim != 2 or values.shape[1] != width:
        raise InputError(f"expected embeddings (n, {width}), got shape {values.shape}")
    return values
