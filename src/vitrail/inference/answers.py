"""The probabilities of one image -> Prediction: its likeliest classes, and whether they are sure enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.inference.runtime import Runtime
from vitrail.types import Array

UNLIKE: Final = "unlike anything it was trained on"


class Prediction(NamedTuple):
    """The likeliest classes of one image, best first; none only where unsure answers were to be left out."""

    path: str
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    confident: bool = True  # whether the first probability reaches what is needed
    needed: float | None = None  # the minimum confidence of the checkpoint; None where it has none
    unlike: bool | None = None  # whether it is unlike anything the network was trained on; None where nobody knows
    familiarity: float | None = None  # share of images like the training ones that look as strange, or stranger

    @property
    def remark(self) -> str:
        """What a reader should know besides: "not confident enough (60 %, needs 74 %)"; empty where all is well."""
        return "; ".join(filter(None, (self._doubt(), UNLIKE if self.unlike else "")))

    def __repr__(self) -> str:
        """As the command line prints it: "Prediction(new/2.jpg: two 93.7 %, one 5.6 %)"."""
        from vitrail.reporting.html_page import percent, printable

        likeliest = zip(self.labels, self.probabilities, strict=True)
        answers = ", ".join(f"{label} {percent(probability)}" for label, probability in likeliest)
        text = "; ".join(filter(None, (answers, self.remark)))
        return printable(f"{type(self).__name__}({self.path}: {text})")

    def _doubt(self) -> str:
        if self.confident or self.needed is None:
            return ""
        if not self.labels:
            return f"declined (needs {100 * self.needed:.0f} %)"
        return "not confident enough ({}, needs {})".format(*_apart(self.probabilities[0], self.needed))


def answer(name: str, row: Array, runtime: Runtime, top: int, decline: bool = False) -> Prediction:
    """What is said of an image of these probabilities (K,); `decline` leaves out labels that are not sure enough."""
    order = np.argsort(-row, kind="stable")
    named = order if runtime.thresholds is None else order[row[order] >= np.asarray(runtime.thresholds)[order]]
    if not len(named):
        named = order  # none reaches its own threshold: the likeliest all the same, which will not count as sure
    first = named[0]
    limits = [runtime.reject, None if runtime.thresholds is None else runtime.thresholds[first]]
    needed = max((limit for limit in limits if limit is not None), default=None)
    confident = needed is None or bool(row[first] >= needed)
    best = named[:0] if decline and not confident else named[:top]
    labels = tuple(runtime.classes[number] for number in best)
    return Prediction(name, labels, tuple(float(row[number]) for number in best), confident, needed)


def marked(predictions: Sequence[Prediction], embedding: Array, runtime: Runtime) -> list[Prediction]:
    """The same answers, those of images unlike the training ones marked by their embeddings (n, D)."""
    if runtime.ood is None:
        return list(predictions)
    familiarity = runtime.ood.familiarity(embedding)
    signs = zip(predictions, runtime.ood.is_unlike(familiarity).tolist(), familiarity.tolist(), strict=True)
    return [each._replace(unlike=unlike, familiarity=share) for each, unlike, share in signs]


def prediction_row(prediction: Prediction, threshold: float = 0.0, decline: bool = False) -> dict[str, Any]:
    """What is said of an image: labels at least as likely as the threshold, the likeliest anyway unless declined."""
    pairs = list(zip(prediction.labels, prediction.probabilities, strict=True))
    likely = [pair for pair in pairs if pair[1] >= threshold]
    if not likely and not decline:
        likely = pairs[:1]
    row = {"path": prediction.path, "labels": [name for name, _ in likely], "probabilities": [p for _, p in likely]}
    doubts = {"confident": prediction.confident, "needed": prediction.needed}
    return row | doubts | {"unlike": prediction.unlike, "familiarity": prediction.familiarity}


def _apart(confidence: float, needed: float) -> tuple[str, str]:
    """Both in percent, with as many digits as it takes to tell them apart."""
    for digits in (0, 1, 2, 3):
        texts = f"{100 * confidence:.{digits}f} %", f"{100 * needed:.{digits}f} %"
        if texts[0] != texts[1]:
            break
    return texts
