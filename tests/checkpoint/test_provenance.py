"""Where a checkpoint came from: plain values there and back, and other kinds of values refused by their name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vitrail.checkpoint.provenance import Mapped, Provenance, Setting
from vitrail.errors import CheckpointError

FULL = Provenance(
    source="photos/",
    metrics={"top1": 0.1 + 0.2},
    family="timm",
    settings=(Setting("norm_eps", "1e-06", "the family's own"),),
    mapping=(Mapped("tokens.cls", ("cls_token",), (1, 8), "same"), Mapped("", ("odd",), (), "left out")),
)


def test_plain_values_carry_it_unchanged() -> None:
    plain = json.loads(json.dumps(FULL.to_dict()))
    assert plain["metrics"] == {"top1": 0.30000000000000004}
    assert plain["settings"] == [{"name": "norm_eps", "value": "1e-06", "why": "the family's own"}]
    assert plain["mapping"][0] == {"ours": "tokens.cls", "theirs": ["cls_token"], "shape": [1, 8], "how": "same"}
    back = Provenance.from_dict(plain)
    assert back == FULL
    assert back.mapping[0].shape == (1, 8)  # a tuple again, not JSON's list
    assert isinstance(back.settings[0], Setting)


def test_what_a_later_version_adds_is_left_out_and_what_is_missing_is_empty() -> None:
    assert Provenance.from_dict({"licence": "MIT", "weather": "fine"}) == Provenance(licence="MIT")
    assert Provenance.from_dict({}) == Provenance()


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"source": 3}, "source: expected text, got 3"),
        ({"metrics": ["top1"]}, "metrics: expected numbers under names"),
        ({"settings": "norm_eps"}, "settings: expected a list, got 'norm_eps'"),
        ({"settings": [Setting("a", 1.0, "b")]}, r"settings: expected Setting\(name, value, why\) of text"),
        ({"mapping": [("a", ("b",), (1,), "same")]}, r"mapping: expected Mapped\(ours, theirs, shape, how\)"),
        ({"mapping": [Mapped("a", ("b",), (-1,), "same")]}, "mapping: expected Mapped"),
        ({"mapping": [Mapped("a", ("b",), (True,), "same")]}, "mapping: expected Mapped"),
        ({"mapping": [Mapped("a", "b", (1,), "same")]}, "mapping: expected Mapped"),
    ],
)
def test_other_kinds_of_values_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Provenance(**wrong)


@pytest.mark.parametrize("row", [{"name": "a", "value": "b"}, ["a", "b", "c"], None])
def test_a_row_of_a_file_has_all_its_fields(row: Any) -> None:
    with pytest.raises(CheckpointError, match="settings: expected name, value, why, got"):
        Provenance.from_dict({"settings": [row]})
