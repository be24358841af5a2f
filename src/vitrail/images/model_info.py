"""ModelInfo: all that turns logits into answers, without the network; what every runtime and exported file carries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from vitrail.checks import check_type
from vitrail.errors import CheckpointError, nearest
from vitrail.images import Preprocess
from vitrail.images.ood_detector import OodDetector

TASKS: Final = ("single-label", "multi-label")  # labels an image may have
EARLIER_TASKS: Final = {"one": "single-label", "several": "multi-label"}  # as files of an earlier release say them


@dataclass(frozen=True)
class ModelInfo:
    """Preprocessing, class names, and how logits become answers."""

    preprocess: Preprocess
    classes: tuple[str, ...] = ()
    task: str = "single-label"  # or "multi-label": labels independent of each other
    temperature: float | None = None  # fitted on held-out data; None: probabilities are not calibrated
    thresholds: tuple[float, ...] | None = None  # per class, for several labels
    reject: float | None = None  # the minimum confidence: answers less sure are marked, or declined
    ood: OodDetector | None = None  # tells images unlike the training ones; None: nobody knows

    def __post_init__(self) -> None:
        check_type("preprocess", self.preprocess, Preprocess, error=CheckpointError)
        check_type("ood", self.ood, OodDetector, type(None), error=CheckpointError)
        for name in ("classes", "thresholds"):
            value = getattr(self, name)
            missing = value is None and name == "thresholds"
            if isinstance(value, str) or not (missing or isinstance(value, Iterable)):
                raise CheckpointError(f"{name}: expected a list, got {value!r:.80}")
        object.__setattr__(self, "classes", tuple(self.classes))
        if self.thresholds is not None:
            object.__setattr__(self, "thresholds", tuple(self.thresholds))
        if self.task not in TASKS:
            raise CheckpointError(f"task {self.task!r} is unknown: {nearest(str(self.task), TASKS)}")
        self._validate_classes()
        self._validate_numbers()

    def _validate_classes(self) -> None:
        if any(not isinstance(name, str) or not name for name in self.classes):
            raise CheckpointError("class names must be text, and none may be empty")
        twice = [name for name, times in Counter(self.classes).items() if times > 1]
        if twice:
            raise CheckpointError(f"class names must differ, got twice: {', '.join(twice[:5])}")

    def _validate_numbers(self) -> None:
        if self.temperature is not None and not (_finite(self.temperature) and self.temperature > 0):
            raise CheckpointError(f"temperature: expected a positive number, got {self.temperature!r}")
        if self.thresholds is not None and len(self.thresholds) != len(self.classes):
            raise CheckpointError(f"thresholds: expected {len(self.classes)}, got {len(self.thresholds)}")
        for name, value in (("reject", self.reject), *(("thresholds", each) for each in self.thresholds or ())):
            if value is not None and not (_finite(value) and 0 <= value <= 1):
                raise CheckpointError(f"{name}: expected a number from 0 to 1, got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same back. A detector that is not there is left out."""
        plain = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "ood"}
        plain["preprocess"], plain["classes"] = self.preprocess.to_dict(), list(self.classes)
        plain["thresholds"] = None if self.thresholds is None else list(self.thresholds)
        return plain if self.ood is None else plain | {"ood": self.ood.to_dict()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> ModelInfo:
        """What `to_dict` wrote; a part that is missing is an error, for nothing may be guessed.

        Only the out-of-distribution detector may be missing: files of earlier releases have none.
        """
        names = [each.name for each in fields(cls) if each.name != "ood"]
        missing = [name for name in names if name not in plain]
        if missing:
            raise CheckpointError(f"the description lacks {', '.join(missing)}")
        values = {name: plain[name] for name in names}
        check_type("preprocess", values["preprocess"], Mapping, error=CheckpointError)
        values["preprocess"] = Preprocess.from_dict(values["preprocess"])
        return cls(**values, ood=OodDetector.from_dict(plain["ood"]) if "ood" in plain else None)

    def with_preprocess(self, preprocess: Preprocess) -> ModelInfo:
        """The same for images read in another way: what is familiar is then not known any more."""
        same = replace(preprocess, scaled_decoding=self.preprocess.scaled_decoding) == self.preprocess
        return replace(self, preprocess=preprocess, ood=self.ood if same else None)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
