"""How good a network is: scores with intervals, calibration, and two networks side by side."""

from vitrail.evaluation.calibration import ece, fit_reject, fit_temperature, fit_thresholds
from vitrail.evaluation.comparison import Comparison, compare
from vitrail.evaluation.evaluator import evaluate
from vitrail.evaluation.results import Evaluation, Score
from vitrail.evaluation.scoring import evaluation_of
from vitrail.evaluation.seen_images import data_for, data_for_both

__all__ = [
    "Comparison",
    "Evaluation",
    "Score",
    "compare",
    "data_for",
    "data_for_both",
    "ece",
    "evaluate",
    "evaluation_of",
    "fit_reject",
    "fit_temperature",
    "fit_thresholds",
]
