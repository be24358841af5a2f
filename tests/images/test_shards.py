"""ShardSet and its index: every letter counts, every place lies within its tar file, any thread may read."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.errors import InputError
from vitrail.images import shards as module
from vitrail.images.file_bytes import FileBytes
from vitrail.images.shards import INDEX, Shard, ShardIndex, ShardSet, has_index, read_index

PARTS = [bytes([number]) * (number + 1) for number in range(9)]


@pytest.fixture
def packed(tmp_path: Path) -> ShardSet:
    """Nine images in three files."""
    shards = []
    for number in range(3):
        raw = b"".join(PARTS[3 * number : 3 * number + 3])
        (tmp_path / f"{number}.tar").write_bytes(raw)
        shards.append(Shard(f"{number}.tar", len(raw), hashlib.sha256(raw).hexdigest()))
    sizes = np.array([len(each) for each in PARTS], np.int64)
    ends = sizes.reshape(3, 3).cumsum(axis=1).ravel()
    index = ShardIndex(
        "single-label",
        ("cat", "dog"),
        tuple(shards),
        [f"a/{number}\udcff.jpg" for number in range(9)],
        [("cat", "dog")[number % 2 : number % 2 + 1] for number in range(9)],
        ["train"] * 9,
        [""] * 9,
        np.repeat(np.arange(3, dtype=np.int32), 3),
        ends - sizes,
        sizes,
        np.stack([np.frombuffer(hashlib.sha256(each).digest(), np.uint8) for each in PARTS]),
    )
    (tmp_path / INDEX).write_text(index.to_json())
    return ShardSet(tmp_path, index)


def test_the_index_comes_back_as_it_was_written(packed: ShardSet) -> None:
    found = read_index(packed.folder)
    assert found.index.to_json() == packed.index.to_json()
    assert found.index.names == packed.index.names
    plain = json.loads((packed.folder / INDEX).read_text())
    assert (plain["kind"], plain["labels"][:2], plain["groups"]) == ("vitrail shards", [[0], [1]], [])
    assert has_index(packed.folder)
    assert not has_index(packed.folder.parent)


def test_every_image_is_read_by_any_thread_and_in_any_order(packed: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OPEN", 1)  # files are closed while others read from them
    rows = list(range(9)) * 40
    random.Random(0).shuffle(rows)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(packed.read, rows)) == [PARTS[row] for row in rows]
    image = packed.read(4)
    assert image.name == str(packed.folder / packed.index.names[4])
    again: FileBytes = pickle.loads(pickle.dumps(image))
    assert (again, again.name) == (image, image.name)
    assert pickle.loads(pickle.dumps(packed)).read(4) == image


def test_any_letter_of_the_index_that_differs_is_found(packed: ShardSet) -> None:
    raw, dice = (packed.folder / INDEX).read_bytes(), random.Random(0)
    for _ in range(200):
        place = dice.randrange(len(raw) - 1)
        other = raw[:place] + bytes([raw[place] ^ dice.choice((1, 2, 4, 16))]) + raw[place + 1 :]
        (packed.folder / INDEX).write_bytes(other)
        with pytest.raises(InputError, match=rf"{INDEX} (is damaged|cannot be read) "):
            read_index(packed.folder)
    for cut in (0, 10, len(raw) - 3):
        (packed.folder / INDEX).write_bytes(raw[:cut])
        with pytest.raises(InputError, match=f"{INDEX} is damaged .its end is missing.: copy it again"):
            read_index(packed.folder)


@pytest.mark.fault("I12")
@pytest.mark.parametrize(
    "changes, told",
    [
        ({"offsets": np.arange(9) - 1}, "a place beyond the end of its shard"),
        ({"sizes": np.full(9, 2**62)}, "a place beyond the end of its shard"),
        ({"shard": np.full(9, 3, np.int32)}, "a shard that is not listed"),
        ({"shard": np.full(9, -1, np.int32)}, "a shard that is not listed"),
        ({"splits": ["train"] * 8}, "columns of different lengths"),
        ({"names": ["a.jpg"] * 9}, "a name that stands twice"),
        ({"names": [f"../{number}" for number in range(9)]}, "a name that is absolute or leads out"),
        ({"names": [f"/{number}" for number in range(9)]}, "a name that is absolute or leads out"),
        ({"shards": (Shard("../0.tar", 10**6, ""),) * 3}, "a name that is absolute or leads out"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(packed: ShardSet, changes: dict[str, Any], told: str) -> None:
    text = replace(packed.index, **changes).to_json()
    with pytest.raises(InputError, match=rf"^i is no index of shards \(ValueError: {told}"):
        ShardIndex.from_json(text, "i")


def test_an_image_over_the_limit_is_refused(packed: ShardSet) -> None:
    large = replace(packed.index, shards=(Shard("0.tar", 2**40, ""),) * 3, sizes=np.full(9, 2**29))
    with pytest.raises(InputError, match=r"has 536,870,912 bytes, over the limit"):
        ShardIndex.from_json(large.to_json(), "i")


def test_another_format_is_refused(packed: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORMAT", 2)
    text = packed.index.to_json()
    monkeypatch.undo()
    with pytest.raises(InputError, match="^i has format 2, expected 1: update vitrail$"):
        ShardIndex.from_json(text, "i")
