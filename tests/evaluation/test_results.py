"""An evaluation as plain values for JSON, with None for what is no number."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vitrail.evaluation import Evaluation, evaluation_of


def test_plain_json(pets: Evaluation) -> None:
    """Everything for machines, with None for what is no number."""
    plain = json.loads(json.dumps(pets.to_dict(), allow_nan=False))
    assert plain == pets.to_dict(), "nothing that JSON would change"
    assert (plain["n"], plain["split"], plain["source"], plain["calibrated"]) == (6, "val", "zoo", False)
    assert plain["top1"] == pytest.approx(4 / 6)
    assert plain["top5"] is None, "three classes"
    for name, score in pets.scores.items():
        assert plain[name] == score.value
        assert plain["intervals"][name] == [score.low, score.high]
    assert {"macro_f1", "ece", "loss"} <= set(plain["intervals"])
    assert plain["confusion"] == [[2, 1, 0], [1, 2, 0], [0, 0, 0]]
    assert [each["name"] for each in plain["worst"]] == ["d", "c"]
    assert plain["most_confused"][0] == {"truth": "cat", "predicted": "dog", "count": 1, "share": pytest.approx(1 / 3)}
    assert plain["per_class"][2]["name"] == "owl"
    assert plain["absent"] == ["owl"]
    assert plain["bins"][0] == {
        "low": 0.0,
        "high": pytest.approx(1 / 15),
        "count": 0,
        "confidence": None,
        "accuracy": None,
    }
    assert plain["skipped"] == []


def test_plain_json_of_several_labels() -> None:
    logits, targets = np.array([[1.0, -1.0], [-1.0, -2.0]]), np.array([[1, 0], [1, 0]])
    found = evaluation_of(logits, targets, task="multi-label", skipped=[("x.png", "cut off")], resamples=0)
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (plain["top1"], plain["top5"], plain["confusion"]) == (None, None, None)
    assert plain["intervals"]["mean_ap"] == [None, None]
    assert plain["worst"][0]["probability"] is None
    assert plain["skipped"] == [{"name": "x.png", "reason": "cut off"}]
