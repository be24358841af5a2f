"""Metrics in words, the same everywhere: name in files and JSON -> name for people; values as people read them."""

from __future__ import annotations

import math
from typing import Final

METRICS: Final = {  # in the order in which they are shown
    "top1": "accuracy",
    "top5": "top-5 accuracy",
    "mean_ap": "mean average precision",
    "exact": "all labels right",
    "macro_f1": "F1 (mean of classes)",
    "micro_f1": "F1 (all labels together)",
    "macro_precision": "precision (mean of classes)",
    "macro_recall": "recall (mean of classes)",
    "ece": "calibration error",
    "loss": "loss",
}


def metric_name(key: str) -> str:
    """What people call a metric; its key where no name is known."""
    return METRICS.get(key, key)


def metric_value(key: str, value: float) -> str:
    """A value in words: shares in percent, the loss as a number."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.3f}" if key == "loss" else f"{100 * value:.1f} %"


def metric_interval(key: str, low: float, high: float) -> str:
    """The two ends of an interval: "71.2 to 80.9 %"."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "–"
    return f"{metric_value(key, low).removesuffix(' %')} to {metric_value(key, high)}"
