"""Explanation: a map of one image with its proof, and the images drawn from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from vitrail.errors import InputError
from vitrail.files import reason
from vitrail.insight.faithfulness import Curves, FaithfulnessScores
from vitrail.insight.verdicts import MapVerdict, judge_numbers
from vitrail.reporting.image_sheets import coloured, heat_over, normalised
from vitrail.reporting.object_card import Card
from vitrail.types import Array


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where on an image the answer comes from, and what the map is worth."""

    map: Array  # (h, w), a value a patch: the higher, the more it speaks for the target
    method: str
    target: str
    value: float  # what the network gives the target
    probability: bool  # whether that is a probability
    scores: FaithfulnessScores | None = None  # deletion and insertion, beside chance; None where not asked for
    curves: Curves | None = None
    shuffled: float | None = None  # rank correlation with the map of shuffled weights; None where not asked for
    warnings: tuple[str, ...] = ()  # why the map is not to be relied on
    outliers: Array | None = None  # (h, w), True where a token is far larger than the others; None where not looked at
    pixel_map: Array | None = None  # (H, W), of methods that see pixels
    tried: Mapping[str, FaithfulnessScores] = field(default_factory=dict)  # of method "best": every candidate's
    image: Image.Image | None = None  # the image itself, and
    box: tuple[float, float, float, float] | None = None  # what the network saw of it: left, top, right, bottom
    remark: str = ""  # how the answer is marked: not confident enough, or unlike anything the network was trained on

    @property
    def reliable(self) -> bool:
        return not self.warnings

    @property
    def verdicts(self) -> list[MapVerdict]:
        """What each number is worth, faithfulness first; none where nothing was measured."""
        return judge_numbers(self.scores, None if self.probability else self.curves, self.shuffled)

    def overlay(self) -> Image.Image:
        """The heat map over the image, in the image's own size; what the network did not see is dimmed.

        Patches with outlying tokens are crossed out and drawn as those around them, since they would outshine all else.
        """
        if self.image is None or self.box is None:
            raise InputError("this explanation is of pixels, not of an image: draw .map, or use vitrail.explain")
        return heat_over(self.image, self.map, self.box, self.outliers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the heat map over the image."""
        image = self.overlay()
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            image.save(path)
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise InputError(f"cannot write {path}: {why}") from error

    def card(self) -> Card:
        """What it says of itself in a REPL, and in a notebook beside the map."""
        rows, columns = self.map.shape
        value = f"{100 * self.value:.1f} %" if self.probability else f"{self.value:.3g}"
        judged = self.verdicts
        crossed = 0 if self.outliers is None else int(self.outliers.sum())
        return Card(
            f"Explanation: {self.target} ({value}), by {self.method}",
            (
                ("remark", self.remark),
                ("map", f"{rows} x {columns} patches, from {self.map.min():.3g} to {self.map.max():.3g}"),
                *((each.name, each.line.split(": ", 1)[1]) for each in judged[:1]),
                ("checks", ", ".join(f"{each.name} {each.word}" for each in judged[1:])),
                ("reliable", "no known reason against it" if self.reliable else f"no: {'; '.join(self.warnings)}"),
                ("outliers", f"{crossed:,} of the patches, crossed out" if crossed else ""),
                ("tried", ", ".join(f"{name} {each.gain:+.2f}" for name, each in self.tried.items())),
                ("look at it", "" if self.image is None else '.overlay(), or .save("map.png")'),
            ),
        )

    def __repr__(self) -> str:
        return self.card().as_text()

    def _repr_html_(self) -> str:
        rows, columns = self.map.shape
        alone = self.image is None or self.box is None
        image = coloured(normalised(self.map)).resize((16 * columns, 16 * rows)) if alone else self.overlay()
        says = f"Heat map by {self.method} for {self.target}"
        return self.card()._replace(image=image, image_says=says).as_html()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "method": self.method,
            "target": self.target,
            "value": self.value,
            "probability": self.probability,
            "remark": self.remark or None,
            "map": [[float(value) for value in row] for row in self.map],
            "scores": None if self.scores is None else self.scores._asdict() | {"gain": self.scores.gain},
            "shuffled": self.shuffled,
            "verdict": next((each.word for each in self.verdicts), None),
            "verdicts": [each.to_dict() for each in self.verdicts],
            "warnings": list(self.warnings),
            "tried": {name: each._asdict() | {"gain": each.gain} for name, each in self.tried.items()},
        }
