"""Manifest: the same after JSON, and every kind of change between two told with names."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data import Dataset, Entry, Manifest, Sample, differences, read_data, record, scan, split
from vitrail.errors import InputError

ENTRIES = (
    Entry("cat/1.jpg", ("cat",), "train", "p1", 10, 20, 300, "ab" * 32),
    Entry("cat/new\nline \N{SNOWMAN}.jpg", ("cat",), "val", "", 10, 21, 301, "cd" * 32),
    Entry(os.fsdecode(b"dog/\xff.jpg"), ("dog",), "", "p2", 11, 20, 302, "ef" * 32),
)
ONE = Manifest("photos", "single-label", ("cat", "dog"), ENTRIES)
SEVERAL = Manifest(
    "x.csv",
    "multi-label",
    ("cat", "dog"),
    (ENTRIES[0]._replace(labels=("cat", "dog")), ENTRIES[1]._replace(labels=()), ENTRIES[2]),
)


def changed(row: int, **fields: object) -> Manifest:
    entries = list(ENTRIES)
    entries[row] = entries[row]._replace(**fields)  # type: ignore[arg-type]
    return replace(ONE, entries=tuple(entries))


@pytest.mark.parametrize("manifest", [ONE, SEVERAL, replace(ONE, entries=(ENTRIES[0]._replace(group=""),))])
def test_json_gives_the_same_back(manifest: Manifest) -> None:
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    assert text.isascii()
    assert "\n" not in text


def test_the_json_is_plain_and_compact() -> None:
    plain = json.loads(ONE.to_json())
    assert plain["classes"] == ["cat", "dog"]
    assert plain["labels"] == [0, 0, 1]
    assert plain["splits"] == [1, 2, 0]
    assert plain["bytes"] == [300, 301, 302]
    assert json.loads(SEVERAL.to_json())["labels"] == [[0, 1], [], [1]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        ONE.to_json()[:-20],
        ONE.to_json().replace('"labels":[0,0,1]', '"labels":[0,0,2]'),
        ONE.to_json().replace('"widths":[20,21,20]', '"widths":[20,21]'),
        ONE.to_json().replace('"splits":[1,2,0]', '"splits":[1,2,9]'),
    ],
)
def test_a_damaged_manifest_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="the manifest is damaged"):
        Manifest.from_json(text)


@pytest.mark.parametrize("other", [0, 3, "x"])
def test_a_manifest_of_another_format_is_refused(other: int | str) -> None:
    text = ONE.to_json().replace('"format":2', f'"format":{json.dumps(other)}')
    with pytest.raises(InputError, match=f"^the manifest has format {other!r}, expected 2: update vitrail$"):
        Manifest.from_json(text)


@pytest.mark.parametrize("manifest, word", [(ONE, "one"), (SEVERAL, "several")])
def test_the_words_of_earlier_manifests_are_understood(manifest: Manifest, word: str) -> None:
    text = manifest.to_json().replace('"format":2', '"format":1').replace(f'"{manifest.task}"', f'"{word}"')
    assert Manifest.from_json(text) == manifest
    assert differences(Manifest.from_json(text), manifest) == []
    with pytest.raises(InputError, match="the manifest is damaged .*task 'both', expected"):
        Manifest.from_json(text.replace(f'"{word}"', '"both"'))


@pytest.mark.parametrize("task", ["one", "several", "", None])
def test_a_task_that_is_none_is_refused(task: str | None) -> None:
    """The words of format 1 in a file of format 2: never guessed from the shape of the labels."""
    text = ONE.to_json().replace('"task":"single-label"', f'"task":{json.dumps(task)}')
    with pytest.raises(InputError, match="the manifest is damaged .*expected single-label or multi-label"):
        Manifest.from_json(text)


def test_the_same_data_have_no_differences() -> None:
    assert differences(ONE, ONE) == []
    assert differences(ONE, replace(ONE, entries=ENTRIES[::-1], source="elsewhere")) == []
    turned = (SEVERAL.entries[0]._replace(labels=("dog", "cat")), *SEVERAL.entries[1:])
    assert differences(SEVERAL, replace(SEVERAL, entries=turned)) == []  # labels have no order


@pytest.mark.fault("T17")
@pytest.mark.parametrize(
    "new, told",
    [
        (replace(ONE, entries=ENTRIES[1:]), "1 image removed: cat/1.jpg"),
        (replace(ONE, entries=(*ENTRIES, ENTRIES[0]._replace(name="z"))), "1 image added: z"),
        (changed(1, digest="00" * 32), "1 image changed content: 'cat/new\\nline \N{SNOWMAN}.jpg'"),
        (changed(0, labels=("dog",)), "1 image changed label: cat/1.jpg (cat -> dog)"),
        (changed(0, labels=()), "1 image changed label: cat/1.jpg (cat -> none)"),
        (changed(0, split="test"), "1 image changed split: cat/1.jpg (train -> test)"),
        (changed(2, group=""), "1 image changed group: 'dog/\\udcff.jpg' (p2 -> none)"),
        (replace(ONE, classes=("dog", "cat")), "classes changed: another order"),
        (replace(ONE, classes=("cat", "dog", "eel")), "classes changed: with 'eel'"),
        (replace(ONE, task="multi-label"), "task changed: single-label -> multi-label"),
    ],
)
def test_every_change_is_told(new: Manifest, told: str) -> None:
    assert differences(ONE, new) == [told]


def test_long_lists_are_cut() -> None:
    many = replace(ONE, entries=tuple(ENTRIES[0]._replace(name=str(number)) for number in range(2000)))
    [told] = differences(replace(ONE, entries=()), many)
    assert told == "2,000 images added: 0, 1, 2, 3, 4, 5, 6, 7 and 1992 more"


def test_what_was_scanned_with_the_splits_of_now() -> None:
    samples = (Sample("b", ("y",), "val", "g"), Sample("a", ("x",), "train"))
    data = Dataset("photos", samples, np.zeros((2, 1, 1)), ("x", "y"))
    scanned = [Entry(name, ("old",), "", "", 1, 2, 3, "00" * 32) for name in ("a", "b", "c")]
    found = record(data, scanned)
    assert found.entries == (
        Entry("b", ("y",), "val", "g", 1, 2, 3, "00" * 32),
        Entry("a", ("x",), "train", "", 1, 2, 3, "00" * 32),
    )
    assert (found.source, found.task, found.classes) == ("photos", "single-label", ("x", "y"))
    with pytest.raises(InputError, match="1 images of photos were not scanned: a"):
        record(data, scanned[1:])


@pytest.mark.fault("T17")
def test_a_folder_that_changes_between_stop_and_resume(tmp_path: Path) -> None:
    def look() -> Manifest:
        scanned = scan(read_data(tmp_path))
        return record(split(scanned.dataset).dataset, scanned.entries)

    for number in range(20):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path)
    before = Manifest.from_json(look().to_json())
    assert differences(before, look()) == []
    os.utime(tmp_path / "a/0.png", (0, 0))  # a new time is no change
    assert differences(before, look()) == []
    Image.new("RGB", (4, 4), (0, 9, 0)).save(tmp_path / "a/2.png")
    (tmp_path / "b/1.png").unlink()
    (tmp_path / "a/4.png").rename(tmp_path / "a/new.png")
    told = differences(before, look())
    assert told[:3] == [
        "2 images removed: a/4.png, b/1.png",
        "1 image added: a/new.png",
        "1 image changed content: a/2.png",
    ]
    assert all("changed split" in each for each in told[3:])
