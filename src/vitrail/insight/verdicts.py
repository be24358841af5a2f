"""The numbers of an explanation -> a verdict on each: a word, and what it means beside chance.

Faithfulness is the gain: how much further deletion and insertion lie apart than in random orders, as a share of what
could be gained (1 for a probability, else the way from the empty image's value to the whole one's). Above 0 it is
weak, from 0.1 on fair, from 0.3 on strong. Deletion and insertion count as chance within 0.02 of random. Of the
likeness to the map of shuffled weights, half is too much and 0.9 the same map.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from vitrail.insight.faithfulness import Curves, FaithfulnessScores
from vitrail.insight.sanity import UNCHANGED
from vitrail.reporting.html_page import Tone

FAIR: Final = 0.1
STRONG: Final = 0.3
SAME: Final = 0.02  # as random orders
ALIKE: Final = 0.5  # rank correlation with the map of shuffled weights


class MapVerdict(NamedTuple):
    """What a number is worth."""

    name: str
    value: float
    word: str
    meaning: str
    tone: Tone

    @property
    def value_words(self) -> str:
        """+0.06, or 0.24 where a number has no side to be on."""
        return f"{self.value:{'+' if self.name == 'faithfulness' else ''}.2f}"

    @property
    def line(self) -> str:
        """faithfulness: weak, +0.06; about as good as random."""
        return f"{self.name}: {self.word}, {self.value_words}; {self.meaning}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"name": self.name, "value": self.value, "word": self.word, "meaning": self.meaning}


def judge_numbers(scores: FaithfulnessScores | None, curves: Curves | None, shuffled: float | None) -> list[MapVerdict]:
    """A verdict on each number that was measured, faithfulness first."""
    judged = []
    if scores is not None:
        span = 1.0 if curves is None else abs(curves.deletion[0] - curves.deletion[-1])
        judged = [
            faithfulness(scores, span),
            _beside_chance("deletion", scores.deletion, scores.random_deletion, lower_is_better=True, span=span),
            _beside_chance("insertion", scores.insertion, scores.random_insertion, lower_is_better=False, span=span),
        ]
    return judged if shuffled is None else [*judged, _dependence(shuffled)]


def faithfulness(scores: FaithfulnessScores, span: float = 1.0) -> MapVerdict:
    """Whether the answer goes by what the map marks."""
    gain = scores.gain
    share = gain / span if span > 0 else 0.0
    centre = scores.centre_insertion - scores.centre_deletion - (scores.random_insertion - scores.random_deletion)
    beside = "" if gain > centre else "the middle of the image does as well"
    if gain <= 0:
        return MapVerdict("faithfulness", gain, "none", "no better than random", "bad")
    if share < FAIR:
        return MapVerdict(
            "faithfulness", gain, "weak", ", and ".join(filter(None, ("about as good as random", beside))), "warn"
        )
    word, meaning = ("fair", "better than random") if share < STRONG else ("strong", "far better than random")
    if beside:
        return MapVerdict("faithfulness", gain, word, f"{meaning}, but {beside}", "warn")
    return MapVerdict("faithfulness", gain, word, meaning, "good")


def _beside_chance(name: str, value: float, chance: float, lower_is_better: bool, span: float) -> MapVerdict:
    ahead = chance - value if lower_is_better else value - chance
    goes = "the answer falls" if lower_is_better else "the answer comes back"
    if abs(ahead) <= SAME * span:
        return MapVerdict(name, value, "no better", f"{goes} as at random ({chance:.2f})", "warn")
    if ahead > 0:
        return MapVerdict(name, value, "good", f"{goes} sooner than at random ({chance:.2f})", "good")
    return MapVerdict(name, value, "poor", f"{goes} later than at random ({chance:.2f})", "bad")


def _dependence(likeness: float) -> MapVerdict:
    name = "likeness to a map without learning"
    if abs(likeness) >= UNCHANGED:
        return MapVerdict(name, likeness, "poor", "shuffled weights give the same map: it shows nothing learned", "bad")
    if abs(likeness) >= ALIKE:
        return MapVerdict(name, likeness, "fair", "shuffled weights give a map that is partly the same", "warn")
    return MapVerdict(
        name, likeness, "good", "shuffled weights give another map: it depends on what was learned", "good"
    )
