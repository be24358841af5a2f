"""Audit: its counts, as JSON has them."""

from __future__ import annotations

import json
from pathlib import Path

from vitrail.auditing.auditor import Audit


def test_json_has_the_counts_first(written: dict[str, Path], found: Audit) -> None:
    plain = json.loads(written["audit.json"].read_text("utf-8"))
    assert next(iter(plain)) == "counts"
    assert plain["counts"] == found.counts()
    assert plain["classes"] == {"cat": {"train": 19, "test": 6}, "dog": {"train": 11, "test": 6}}
    assert plain["unreadable"][0] == {
        "path": "train/cat/empty.png",
        "reason": "empty, 0 bytes: copy or download it again",
    }
    first = plain["duplicates"][0]
    assert (first["kind"], first["leaks"], first["conflicts"]) == ("exact", True, False)
    assert first["members"][1]["name"] == "train/cat/exact_leak.bmp"
    assert plain["sizes"]["suggestion"]["resize"] == found.sizes.suggestion.resize
    assert plain["notes"] == list(found.notes)
