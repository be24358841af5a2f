"""What an evaluation found, in plain fields: scores with their intervals, classes, bins, confusions, errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vitrail.reporting.html_page import counted, percent
from vitrail.reporting.metric_names import METRICS, metric_interval, metric_name, metric_value
from vitrail.reporting.object_card import Card, Row
from vitrail.types import Array


class Score(NamedTuple):
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


class ClassScores(NamedTuple):
    """One class against all others; what would be 0 / 0 is 0."""

    name: str
    count: int  # type: ignore[assignment]  # images that show it; hides tuple.count, which nobody misses
    precision: float
    recall: float
    f1: float
    average_precision: float
    threshold: float | None  # for several labels: it is said from this probability on


class Bin(NamedTuple):
    """Answers of about the same confidence, above `low` and up to `high`; NaN where there are none."""

    low: float
    high: float
    count: int  # type: ignore[assignment]
    confidence: float
    accuracy: float


class Confused(NamedTuple):
    """One class taken for another."""

    truth: str
    predicted: str
    count: int  # type: ignore[assignment]
    share: float  # of the truth's images


class Misclassified(NamedTuple):
    """An image with a wrong answer."""

    row: int
    name: str
    truth: tuple[str, ...]
    predicted: tuple[str, ...]
    probability: float  # given to what is predicted; for several labels to the surest of them, NaN where there is none
    loss: float


class Unlike(NamedTuple):
    """Images taken for unlike anything the network was trained on: of images like the training ones, false alarms."""

    share: Score
    promised: float  # at most, of images like the training ones
    images: Array | None = None  # (n,) which they are


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class Evaluation:
    """How well a network does on images whose labels are known."""

    source: str
    split: str
    task: str
    classes: tuple[str, ...]
    names: tuple[str, ...]
    targets: Array  # (n,) class numbers, or (n, K) 0 and 1 for several labels
    logits: Array  # (n, K) float64, before any temperature
    probabilities: Array  # (n, K) float64, calibrated if the checkpoint is
    scores: Mapping[str, Score]
    per_class: tuple[ClassScores, ...]
    confusion: Array | None  # (K, K) counts, rows are the truth; None for several labels
    bins: tuple[Bin, ...]
    most_confused: tuple[Confused, ...]
    worst: tuple[Misclassified, ...]  # wrong answers, highest losses first
    temperature: float | None
    reject: float | None
    answered: float  # share of images that the reject threshold lets through
    answered_top1: float | None  # accuracy among the answered; None for several labels, or where none is answered
    skipped: tuple[tuple[str, str], ...]  # unreadable images: name, reason
    unlike: Unlike | None = None  # where the network can tell
    caveat: str = ""  # what limits the scores: the network was trained on these images, or chosen by them

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def unlike_words(self) -> str:
        """The share taken for unlike the training ones, with its interval and the promise; empty where none is told."""
        if self.unlike is None:
            return ""
        share, promised, _ = self.unlike
        measured = f"{metric_value('unlike', share.value)} ({metric_interval('unlike', *share[1:])})"
        caveat = {"val": ", set on validation images", "train": ", and these it was trained on"}.get(self.split, "")
        return f"{measured}; promised: at most {100 * promised:g} % of images like the training ones{caveat}"

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes that the network knows and no image shows: nothing was learned about them."""
        return tuple(each.name for each in self.per_class if not each.count)

    def card(self) -> Card:
        """What it says of itself in a REPL and a notebook."""
        weakest = sorted((each for each in self.per_class if each.count), key=lambda each: each.f1)[:3]
        told = "several labels an image" if self.confusion is None else f"calibration {_fitted(self.temperature)}"
        return Card(
            f"Evaluation: {counted(len(self), 'image')} of {self.source} ({self.split})",
            (
                *self._score_rows(),
                ("caveat", self.caveat),
                ("weakest", ", ".join(f"{each.name} (F1 {percent(each.f1)})" for each in weakest)),
                ("classes", f"{len(self.classes):,}; {told}"),
                ("unlike", self._unlike_words()),
                ("unreadable", f"{counted(len(self.skipped), 'image')} left out" if self.skipped else ""),
            ),
        )

    def _unlike_words(self) -> str:
        """The share taken for unlike anything that the network was trained on."""
        if self.unlike is None:
            return ""
        share, promised = percent(self.unlike.share.value), percent(self.unlike.promised)
        return f"{share} taken for unlike the training images; of images like them at most {promised}"

    def _score_rows(self) -> list[Row]:
        """The scores that people know, with their intervals."""
        return [
            (metric_name(key), metric_value(key, score.value) + _interval_words(key, score))
            for key, score in self.scores.items()
            if key in METRICS and key != "loss" and not key.endswith(("precision", "recall"))
        ]

    def __repr__(self) -> str:
        return self.card().as_text()

    def _repr_html_(self) -> str:
        return self.card().as_html()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the scores by name, their intervals, and all the rest but logits and probabilities."""
        values = {name: score.value for name, score in self.scores.items()}
        plain = {
            "source": self.source,
            "split": self.split,
            "caveat": self.caveat or None,
            "task": self.task,
            "n": len(self),
            "top1": None,
            "top5": None,
            **values,
            "intervals": {name: [score.low, score.high] for name, score in self.scores.items()},
            "calibrated": self.temperature is not None,
            "temperature": self.temperature,
            "reject": self.reject,
            "answered": self.answered,
            "answered_top1": self.answered_top1,
            "unlike": None if self.unlike is None else self.unlike.share.value,
            "unlike_interval": None if self.unlike is None else self.unlike.share[1:],
            "unlike_promised": None if self.unlike is None else self.unlike.promised,
            "classes": self.classes,
            "absent": self.absent,
            "per_class": [each._asdict() for each in self.per_class],
            "confusion": None if self.confusion is None else self.confusion.tolist(),
            "most_confused": [each._asdict() for each in self.most_confused],
            "bins": [each._asdict() for each in self.bins],
            "worst": [each._asdict() for each in self.worst],
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
        }
        return {name: plainly(value) for name, value in plain.items()}


def _interval_words(key: str, score: Score) -> str:
    interval = metric_interval(key, score.low, score.high)
    return "" if interval == "–" else f" (95 % interval {interval})"


def _fitted(temperature: float | None) -> str:
    return "not fitted" if temperature is None else "fitted"


def plainly(value: Any) -> Any:
    """A value that JSON can carry: lists for tuples, None for numbers that are none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: plainly(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plainly(each) for each in value]
    return value
