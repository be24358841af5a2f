"""The table of findings: what it marks, and what a training leaves out by it."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections import Counter
from pathlib import Path

import numpy as np

from auditing.memory import array_dataset
from evaluation.photos import photo
from vitrail.auditing.audit_results import Suspect
from vitrail.auditing.auditor import Audit, audit
from vitrail.auditing.findings_table import AuditFinding, findings, verdicts
from vitrail.data.exclusions import exclude
from vitrail.data.readers import read_data


def test_verdicts_are_the_gravest_first(found: Audit) -> None:
    said = verdicts(found)
    assert [each.grave for each in said] == [True, True, False, False, False, False, False]
    assert "Training images that are held out too, the same or nearly: 2." in said[0].words
    assert said[1].words == "One image under different labels: 1 group. One label must be wrong."
    assert said[2].words == "Unreadable: 2 files."
    assert {each.words: each.names for each in said[3:7]} == {
        "Placeholder images, such as “image not found” or a single colour: 1.": ("train/dog/page.png",),
        "Copies of others, pixel for pixel: 4 images.": said[4].names,
        "Nearly the same, within one split: 1 group.": ("train/dog/near_a.png", "train/dog/near_b.png"),
        "Of odd size or shape: 1 image.": ("train/dog/huge.png",),
    }
    assert said[0].names == ("train/cat/exact_leak.bmp", "train/dog/near_leak.jpg")
    assert set(said[1].names) == {"train/cat/two_labels.png", "train/dog/two_labels.png"}
    assert set(said[2].names) == {"train/cat/torn.jpg", "train/cat/empty.png"}
    assert len(said[4].names) == 4
    clean = audit(array_dataset(np.stack([np.asarray(photo(seed)) for seed in range(20)]), *[("a", "", "")] * 20))
    assert verdicts(clean) == []


def test_the_table_marks_what_a_training_should_leave_out(written: dict[str, Path]) -> None:
    rows = list(csv.DictReader(io.StringIO(written["audit.csv"].read_text("utf-8"))))
    assert list(rows[0]) == ["path", "finding", "detail", "given", "suggested", "score", "exclude"]
    assert {row["path"] for row in rows if row["exclude"] == "1"} == {
        "train/cat/empty.png",
        "train/cat/torn.jpg",
        "train/cat/exact_leak.bmp",
        "train/dog/near_leak.jpg",
        "train/cat/twin_b.tif",
        "train/cat/twin_c.png",
    }
    by_name = {(row["path"], row["finding"]): row for row in rows}
    assert by_name["train/dog/near_leak.jpg", "leak"]["detail"] == "nearly the same as test/dog/near_leak.png (test)"
    assert by_name["train/cat/twin_a.png", "exact duplicate"]["exclude"] == "0"
    conflict = by_name["train/cat/two_labels.png", "conflicting labels"]
    assert (conflict["given"], conflict["suggested"], conflict["exclude"]) == ("cat", "dog", "0")
    assert by_name["train/dog/two_labels.png", "exact duplicate"]["exclude"] == "0"  # which is right, a person says
    assert Counter(row["finding"] for row in rows) == {
        "unreadable": 2,
        "leak": 4,
        "exact duplicate": 5,
        "near duplicate": 2,
        "conflicting labels": 2,
        "placeholder": 1,
        "odd size": 1,
    }


def test_a_training_obeys_the_table(written: dict[str, Path], root: Path) -> None:
    kept, count = exclude(read_data(str(root)), written["audit.csv"])
    assert count == 6
    again = audit(kept)
    assert (again.counts()["leaks"], again.counts()["unreadable"]) == (0, 0)
    assert again.counts()["exact_copies"] == 1  # the one with two labels


def test_copies_within_what_is_held_out_are_told_of_and_stay() -> None:
    images = np.stack([np.asarray(photo(1))] * 3 + [np.asarray(photo(2))] * 2)
    parts = [("a", "test", "")] * 3 + [("a", "val", ""), ("a", "test", "")]
    found = audit(array_dataset(images, *parts))
    assert [(each.path, each.finding, each.exclude) for each in findings(found)] == [
        *(("3", "leak", 0), ("4", "leak", 0)),
        *((name, "exact duplicate", 0) for name in "012"),
    ]
    assert [each.words for each in verdicts(found)[:1]] == ["The same or nearly the same in val and in test: 1 group."]


def test_only_direct_twins_of_what_is_held_out_are_left_out() -> None:
    """Three images in small steps: the last is tested with, the first is like it only by way of the second."""
    start, end = (np.asarray(photo(seed)).astype(float) for seed in (6, 7))
    images = np.stack([(start + share * (end - start)).astype(np.uint8) for share in (0.0, 0.1, 0.2)])
    found = audit(array_dataset(images, ("a", "train", ""), ("a", "train", ""), ("a", "test", "")))
    assert [(each.path, each.finding, each.exclude) for each in findings(found)[:3]] == [
        ("2", "leak", 0),
        ("0", "near duplicate", 0),
        ("1", "leak", 1),
    ]


def test_doubts_are_listed_and_never_marked(found: Audit) -> None:
    doubt = Suspect("train/cat/0.png", "train", ("cat",), ("dog",), 0.98765, 0.0123)
    [row] = [each for each in findings(dataclasses.replace(found, suspects=(doubt,))) if each.finding == "label"]
    assert row == AuditFinding(
        "train/cat/0.png", "label", "probability of the label given: 0.012", "cat", "dog", "0.9877", 0
    )
