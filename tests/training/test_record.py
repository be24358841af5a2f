"""Records: rows appended and cut back; a process that is not the first writes none."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitrail.errors import CheckpointError
from vitrail.training.record import NoRecord, Record


def test_rows_after_a_size_are_cut_off_and_come_again(tmp_path: Path) -> None:
    record = Record(tmp_path / "log.jsonl")
    record.add(step=1)
    size = record.size
    record.add(step=2)
    record.cut(size)
    record.add(step=3)
    assert record.rows() == [{"step": 1}, {"step": 3}]
    with pytest.raises(CheckpointError, match="expected 1,000: it was changed"):
        record.cut(1000)


def test_no_record_leaves_no_file(tmp_path: Path) -> None:
    record = NoRecord(tmp_path / "log.jsonl")
    record.add(step=1)
    record.cut(7)
    record.sync()
    assert (record.size, record.rows(), list(tmp_path.iterdir())) == (0, [], [])
