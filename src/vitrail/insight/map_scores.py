"""Maps of one image -> Explanation, the only one or the most faithful, with its scores and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitrail.insight.attribution import Ask, Attribution, Method
from vitrail.insight.explanation import Explanation
from vitrail.insight.faithfulness import Curves, FaithfulnessScores, scores_of
from vitrail.insight.sanity import UNCHANGED, rank_correlation
from vitrail.insight.targets import Aim
from vitrail.types import Array

STRONG = 0.1  # the share of a map that catches the eye


class Candidate(NamedTuple):
    """A map with the one that shuffled weights give, and the patches (h, w) whose tokens may distort it."""

    method: Method
    attribution: Attribution
    shuffled: Array | None = None
    outliers: Array | None = None

    @property
    def likeness(self) -> float | None:
        """How alike the two maps order the patches; None where the weights were not shuffled."""
        return None if self.shuffled is None else rank_correlation(self.attribution.map, self.shuffled)

    @property
    def depends_on_weights(self) -> bool:
        likeness = self.likeness
        return likeness is None or abs(likeness) < UNCHANGED


def score_maps(
    ask: Ask, pixels: Tensor, candidates: Sequence[Candidate], aim: Aim, value: float, check: bool = True, seed: int = 0
) -> Explanation:
    """The explanation of one image (C, H, W): of several maps the most faithful that depends on the weights."""
    has_choice = len(candidates) > 1
    scores: list[FaithfulnessScores] = []
    curves: list[Curves] = []
    if check or has_choice:
        scores, curves = scores_of(ask, pixels, [each.attribution.map for each in candidates], aim, seed)
    worth = [(each.depends_on_weights, score.gain) for each, score in zip(candidates, scores, strict=False)]
    best = worth.index(max(worth)) if has_choice else 0
    chosen = candidates[best]
    score = scores[best] if scores else None
    return Explanation(
        map=chosen.attribution.map,
        method=chosen.method.words,
        target=aim.words,
        value=value,
        probability=aim.probability,
        scores=score,
        curves=curves[best] if curves else None,
        shuffled=chosen.likeness,
        warnings=tuple(_doubts(chosen, score)),
        pixel_map=chosen.attribution.pixel_map,
        outliers=chosen.outliers,
        tried={each.method.words: scores[row] for row, each in enumerate(candidates)} if has_choice else {},
    )


def _doubts(candidate: Candidate, scores: FaithfulnessScores | None) -> list[str]:
    """Why a map is not to be relied on."""
    doubts = [candidate.attribution.warning] if candidate.attribution.warning else []
    if np.ptp(candidate.attribution.map) == 0:
        doubts.append("the map is flat: this method finds nothing here that speaks for the target")
    elif not candidate.depends_on_weights:
        doubts.append(
            f"the map hardly depends on the weights: shuffled weights give almost the same (rank correlation "
            f"{candidate.likeness:.2f})"
        )
    if scores is not None and scores.gain <= 0:
        doubts.append("covering what the map marks changes the answer no more than covering at random")
    values = candidate.attribution.map
    strong = (values >= np.quantile(values, 1 - STRONG)) & (values > values.min())
    count = 0 if candidate.outliers is None else int((candidate.outliers & strong).sum())
    if count:
        doubts.append(
            f"{count} of the patches marked most (crossed out) {'have tokens' if count > 1 else 'has a token'} far "
            "larger than the others: attention goes there for what the network keeps in them, not for what they show"
        )
    return doubts
