"""ExportInfo: the same after JSON, and nothing that a stranger wrote into it is taken for ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vitrail.errors import CheckpointError
from vitrail.exporters import export_info as contents_module
from vitrail.exporters.export_info import Check, ExportInfo, read_contents
from vitrail.images import Preprocess
from vitrail.images.model_info import ModelInfo


def made(**changes: Any) -> ExportInfo:
    settings = {
        "about": ModelInfo(Preprocess(size=(32, 48), order="BGR"), ("a", "b"), temperature=1.5),
        "target": "onnx",
        "size": (32, 48),
        "cell": (8, 16),
        "embedding": 24,
        "config": {"width": 24, "grid": [4, 3]},
        "checks": (Check(1, 32, 48, 1e-6), Check(3, 32, 48, 0.0)),
        "measurements": {"top1": 0.9},
    }
    return ExportInfo(**settings | changes)  # type: ignore[arg-type]


def test_json_gives_the_same_back() -> None:
    for given in (
        made(),
        made(precision="int8+bf16", pixels="bytes", dynamic_size=True),
        made(resize_inside=True),
        made(run="ants", source="photos/ümlaut"),
    ):
        assert read_contents(given.to_json(), given.noted_json(), "x") == given
    bare = read_contents(made().to_json(), "", "x")
    assert bare == made(checks=(), measurements={})


def test_a_file_of_an_earlier_release_says_no_run() -> None:
    given = made(run="ants", source="photos")
    plain = json.loads(given.to_json())
    assert (plain.pop("run"), plain.pop("source")) == ("ants", "photos")
    found = read_contents(json.dumps(plain), given.noted_json(), "x")
    assert found == made()
    assert (found.run, found.source) == ("", "")


@pytest.mark.parametrize(
    "precision, in_int8, in_bf16",
    [("float32", False, False), ("bf16", False, True), ("int8", True, False), ("int8+bf16", True, True)],
)
def test_what_a_precision_means(precision: str, in_int8: bool, in_bf16: bool) -> None:
    found = made(precision=precision)
    assert (found.in_int8, found.in_bf16) == (in_int8, in_bf16)


@pytest.mark.fault("W16")
@pytest.mark.parametrize(
    "changes, words",
    [
        ({"format": True}, "expected an export of format 2, got True: export the checkpoint again"),
        ({"format": 3}, "got 3: use a newer Vitrail"),
        ({"format": 1}, "got 1: export the checkpoint again"),
        ({"format": 1.5}, "got 1.5"),
        ({"size": [32, -8]}, "description inside is damaged"),
        ({"cell": [True, 8]}, "description inside is damaged"),
        ({"embedding": "24"}, "description inside is damaged"),
        ({"dynamic_size": 1}, "description inside is damaged"),
        ({"precision": "int4"}, "'int4' is unknown"),
        ({"config": []}, "description inside is damaged"),
        ({"run": 3}, "description inside is damaged: run: expected str, got 3"),
        ({"source": None}, "description inside is damaged: source: expected str, got None"),
    ],
)
def test_a_description_that_is_not_ours_is_refused(changes: dict[str, Any], words: str) -> None:
    plain = json.loads(made().to_json()) | changes
    with pytest.raises(CheckpointError, match=f"x: .*{words}"):
        read_contents(json.dumps(plain), made().noted_json(), "x")


@pytest.mark.fault("W16")
@pytest.mark.parametrize(
    "noted",
    [
        '{"checks": [[1, 32, 48, "0"]]}',
        '{"checks": [[1, 32, 48]]}',
        '{"checks": [[1, "32", 48, 0.0]]}',
        '{"checks": [[1.5, 32, 48, 0.0]]}',
        '{"checks": {"a": 1}}',
        '{"measurements": []}',
        "[]",
        "{",
    ],
)
def test_notes_that_are_not_ours_are_refused(noted: str) -> None:
    with pytest.raises(CheckpointError, match="x: the description inside is damaged"):
        read_contents(made().to_json(), noted, "x")


@pytest.mark.fault("W16")
def test_a_description_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both texts together count, before either is looked into."""
    description, noted = made().to_json(), made().noted_json()
    monkeypatch.setattr(contents_module, "_LONGEST", len(description) + len(noted))
    assert read_contents(description, noted, "x") == made()
    monkeypatch.setattr(contents_module, "_LONGEST", len(description) + len(noted) - 1)
    with pytest.raises(
        CheckpointError, match=f"refused, a description of {len(description) + len(noted):,} characters"
    ):
        read_contents(description, noted, "x")
