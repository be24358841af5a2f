"""ModelInfo: what turns logits into answers, there and back through JSON, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vitrail.errors import CheckpointError
from vitrail.images import Preprocess
from vitrail.images.model_info import ModelInfo
from vitrail.images.ood_detector import OodDetector

FULL = ModelInfo(Preprocess(size=8), ["a", "b"], "multi-label", 1.5, [0.25, 0.75], 0.125)  # type: ignore[arg-type]


def test_there_and_back_with_every_part_or_none() -> None:
    assert (FULL.classes, FULL.thresholds) == (("a", "b"), (0.25, 0.75))
    assert ModelInfo.from_dict(json.loads(json.dumps(FULL.to_dict()))) == FULL
    for name in FULL.to_dict():
        with pytest.raises(CheckpointError, match=f"the description lacks {name}"):
            ModelInfo.from_dict({key: value for key, value in FULL.to_dict().items() if key != name})


def test_what_tells_unlike_images_goes_along_or_is_left_out() -> None:
    ood = OodDetector.fit(np.eye(4), np.ones((19, 4)))
    info = replace(FULL, ood=ood)
    assert ModelInfo.from_dict(json.loads(json.dumps(info.to_dict()))) == info != FULL
    assert "ood" not in FULL.to_dict()  # as files of earlier releases, which know nothing of it
    with pytest.raises(CheckpointError, match="ood: expected OodDetector or NoneType, got 5"):
        replace(FULL, ood=5)  # type: ignore[arg-type]


def test_images_read_in_another_way_are_not_what_was_familiar() -> None:
    ood = OodDetector.fit(np.eye(4), np.ones((19, 4)))
    info = replace(FULL, ood=ood)
    assert info.with_preprocess(Preprocess(size=8, scaled_decoding=True)).ood == ood
    assert info.with_preprocess(Preprocess(size=16)).ood is None
    assert info.with_preprocess(Preprocess(size=8, mean=0.4)) == replace(FULL, preprocess=Preprocess(size=8, mean=0.4))


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"preprocess": None}, "preprocess: expected Preprocess, got None"),
        ({"classes": "abc"}, "classes: expected a list, got 'abc'"),
        ({"classes": ("a", "a")}, "class names must differ, got twice: a"),
        ({"classes": ("a", "")}, "none may be empty"),
        ({"task": "several"}, "task 'several' is unknown"),
        ({"temperature": 0.0}, "temperature: expected a positive number, got 0.0"),
        ({"temperature": float("nan")}, "temperature: expected a positive number"),
        ({"thresholds": (0.5,)}, "thresholds: expected 2, got 1"),
        ({"thresholds": (0.5, 1.5)}, "thresholds: expected a number from 0 to 1, got 1.5"),
        ({"reject": -0.1}, "reject: expected a number from 0 to 1, got -0.1"),
        ({"reject": True}, "reject: expected a number from 0 to 1, got True"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], message: str) -> None:
    given = {"preprocess": Preprocess(size=8), "classes": ("a", "b"), **wrong}
    with pytest.raises(CheckpointError, match=message):
        ModelInfo(**given)
