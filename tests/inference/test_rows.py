"""Rows of answers: an image a row, in the order of the images, whatever could not be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inference.colours import Colours
from vitrail.errors import ImageError, InputError
from vitrail.images import Source
from vitrail.inference import Named
from vitrail.inference.answers import Prediction, prediction_row
from vitrail.inference.rows import (
    EMBEDDED,
    PREDICTED,
    embedding_rows,
    prediction_maker,
    rows_in_order,
    unread_row,
)


@pytest.mark.parametrize("batch", [1, 2, 3, 64])
@pytest.mark.parametrize("bad", [(), (0,), (6,), (0, 1, 2, 3, 4, 5, 6), (1, 2, 4), (3, 4, 5, 6)])
def test_every_image_has_its_row_in_its_place(batch: int, bad: tuple[int, ...]) -> None:
    def image(number: int) -> Source | ImageError:
        return ImageError(f"{number}: bad") if number in bad else np.full((4, 4, 3), 9 * number, np.uint8)

    skipped: list[str] = []
    images = [Named(f"n{number}", image(number)) for number in range(7)]
    rows = list(
        rows_in_order(
            Colours(),
            images,
            EMBEDDED,
            embedding_rows,
            batch=batch,
            threads=2,
            skip=lambda name, error: skipped.append(name),
        )
    )
    assert [row["path"] for row in rows] == [f"n{number}" for number in range(7)]
    assert [row["error"] for row in rows] == [f"{n}: bad" if n in bad else None for n in range(7)]
    assert [row["embedding"] is None for row in rows] == [n in bad for n in range(7)]
    assert skipped == [f"n{number}" for number in bad]


def test_the_columns_are_those_of_the_rows() -> None:
    grey = np.full((4, 4, 3), 99, np.uint8)
    runtime = Colours()
    [row] = rows_in_order(runtime, [grey], PREDICTED, prediction_maker(runtime), batch=1, threads=1)
    assert tuple(row) == PREDICTED
    [row] = rows_in_order(runtime, [grey], EMBEDDED, embedding_rows, batch=1, threads=1)
    assert tuple(row) == EMBEDDED
    assert unread_row(EMBEDDED, "a", "why") == {"path": "a", "embedding": None, "error": "why"}
    nothing = dict.fromkeys(("confident", "needed", "unlike", "familiarity"))
    assert (
        unread_row(PREDICTED, "a", "why") == {"path": "a", "labels": [], "probabilities": [], "error": "why"} | nothing
    )


def test_what_is_less_likely_than_the_threshold_is_left_out_but_the_likeliest() -> None:
    answer = Prediction("a", ("x", "y"), (0.75, 0.25))
    assert prediction_row(answer)["labels"] == ["x", "y"]
    assert prediction_row(answer, 0.25)["labels"] == ["x", "y"]
    assert prediction_row(answer, 0.26)["probabilities"] == [0.75]
    assert prediction_row(answer, 0.9)["labels"] == ["x"]
    assert prediction_row(answer, 0.9, decline=True)["labels"] == []


def test_a_network_without_a_head_predicts_nothing(tmp_path: Path) -> None:
    class Headless(Colours):
        classes = ()

    with pytest.raises(InputError, match="has no head"):
        prediction_maker(Headless())
