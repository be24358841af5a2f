"""recall_statistics: measured once for the same bytes seen the same way, and measured again for any others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitrail.data import known_statistics as known
from vitrail.data.known_statistics import recall_statistics
from vitrail.data.statistics import BandStatistics
from vitrail.images import Preprocess
from vitrail.types import Array

SEEN = Preprocess(size=16)
DIGESTS = np.arange(96, dtype=np.uint8).reshape(3, 32)


class Measure:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> BandStatistics:
        self.count += 1
        return BandStatistics((0.1 + self.count, 1 / 3, 0.7), (0.2, 0.3, 1e-17 + 0.1))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "statistics.json"


def look(measure: Measure, digests: Array = DIGESTS, seen: Preprocess = SEEN) -> BandStatistics:
    return recall_statistics(digests, seen, measure)


def test_the_same_images_are_measured_once(path: Path) -> None:
    measure = Measure()
    first = look(measure)
    assert look(measure) == first  # to the last bit
    assert measure.count == 1


def test_others_or_seen_otherwise_are_measured_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Measure()
    look(measure)
    look(measure, DIGESTS[::-1])
    look(measure, DIGESTS[:2])
    look(measure, seen=replace(SEEN, size=(16, 17)))
    assert measure.count == 4
    monkeypatch.setattr("vitrail.data.known_images.pillow_version", "99.1")
    look(measure)
    assert measure.count == 5


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b'{"check": "", "known": []}', None])
def test_a_damaged_file_is_not_used(path: Path, damage: bytes | None) -> None:
    measure = Measure()
    look(measure)
    path.write_bytes(path.read_bytes().replace(b"1.1,", b"1.2,") if damage is None else damage)
    assert look(measure).mean[0] == 2.1
    assert look(measure).mean[0] == 2.1
    assert measure.count == 2


def test_only_so_many_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MOST", 2)
    measure = Measure()
    for number in (0, 1, 2):
        look(measure, DIGESTS + np.uint8(number))
    look(measure, DIGESTS + np.uint8(2))
    look(measure, DIGESTS + np.uint8(1))
    assert measure.count == 3
    look(measure, DIGESTS)
    assert measure.count == 4


def test_nothing_is_kept_where_no_cache_is_wanted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", "")
    measure = Measure()
    assert look(measure) != look(measure)
    assert not path.exists()
