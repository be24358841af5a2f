"""Files of rows: what was written comes back, and a file that is not as it should be gets no name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.errors import InputError, MissingExtraError
from vitrail.inference import row_files
from vitrail.inference.row_files import SUFFIXES, read_rows, writing_rows
from vitrail.inference.rows import EMBEDDED, PREDICTED, Row, unread_row

dice = np.random.default_rng(11)


def predicted(count: int) -> list[Row]:
    rows: list[Row] = []
    for number in range(count):
        values = sorted(dice.random(number % 4), reverse=True)
        rows.append(
            {
                "path": f"é {number}\n☃.png",
                "labels": [f"class {each}" for each in range(len(values))],
                "probabilities": [float(value) for value in values],
                "confident": bool(number % 2),
                "needed": None if number % 3 else 1 / 3,
                "unlike": (None, True, False)[number % 3],
                "familiarity": None if number % 5 else 0.1 + number,
                "error": None,
            }
        )
    return [*rows, unread_row(PREDICTED, "broken", 'why, and a "sign"')]


def embedded(count: int) -> list[Row]:
    rows: list[Row] = [
        {"path": f"{number}", "embedding": dice.normal(size=5).astype(np.float32), "error": None}
        for number in range(count)
    ]
    return [*rows[: count // 2], unread_row(EMBEDDED, "broken", "why"), *rows[count // 2 :]]


def plain(rows: list[Row]) -> list[Row]:
    return [
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}
        for row in rows
    ]


def write(path: Path, rows: list[Row], columns: tuple[str, ...]) -> None:
    with writing_rows(path, columns) as put:
        for row in rows:
            put(row)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("count", [0, 1, 5, 9])
def test_what_was_written_comes_back(tmp_path: Path, suffix: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "PIECE", 4)  # several groups
    for columns, rows in ((PREDICTED, predicted(count)), (EMBEDDED, embedded(count))):
        path = tmp_path / f"{columns[1]}{suffix}"
        write(path, rows, columns)
        assert plain(list(read_rows(path))) == plain(rows)
        assert [row["path"] for row in read_rows(path, ("path",))] == [row["path"] for row in rows]
        assert {len(row) for row in read_rows(path, ("path", "error"))} == {2}
    assert len(list(tmp_path.iterdir())) == 2


def test_no_rows_are_a_file_too(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        write(tmp_path / f"none{suffix}", [], PREDICTED)
        assert list(read_rows(tmp_path / f"none{suffix}")) == []


def test_others_read_the_files(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = embedded(3)
    write(tmp_path / "a.parquet", rows, EMBEDDED)
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.schema.names == list(EMBEDDED)
    assert str(table.schema.field("embedding").type).startswith("list<")
    assert table["path"].to_pylist() == [row["path"] for row in rows]
    write(tmp_path / "a.jsonl", rows, EMBEDDED)
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == [row["path"] for row in rows]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("columns, rows", [(PREDICTED, predicted(6)), (EMBEDDED, embedded(6))])
def test_a_file_that_reads_back_otherwise_is_refused(
    tmp_path: Path, suffix: str, columns: tuple[str, ...], rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = row_files.read_rows

    def wrong(path: Path, columns: Any = None) -> Any:
        *others, last = right(path)
        yield from others
        yield {**last, change: value}

    write(tmp_path / f"old{suffix}", rows, columns)
    before = (tmp_path / f"old{suffix}").read_bytes()
    for change, value in (("path", "other"), ("error", None), ("embedding", np.zeros(5, np.float32))):
        if change not in columns or rows[-1][change] is value:
            continue
        monkeypatch.setattr(row_files, "read_rows", wrong)
        for name in (f"new{suffix}", f"old{suffix}"):
            with pytest.raises(InputError, match="was not written as it should be: 7 rows"):
                write(tmp_path / name, rows, columns)
        monkeypatch.setattr(row_files, "read_rows", right)
    assert [path.name for path in tmp_path.iterdir()] == [f"old{suffix}"]
    assert (tmp_path / f"old{suffix}").read_bytes() == before


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_is_cut_is_refused(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prove = row_files._prove

    def cut(written: Path, *rest: Any) -> None:
        written.write_bytes(written.read_bytes()[:-20])
        prove(written, *rest)

    monkeypatch.setattr(row_files, "_prove", cut)
    with pytest.raises(InputError, match="was not written as it should be"):
        write(tmp_path / f"a{suffix}", predicted(3), PREDICTED)
    assert list(tmp_path.iterdir()) == []


def test_an_error_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        with pytest.raises(KeyError, match="labels"):
            write(tmp_path / f"a{suffix}", [*predicted(2), {"path": "no other column"}], PREDICTED)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="cannot write"):
        write(tmp_path / "nowhere" / "a.jsonl", [], PREDICTED)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    row = unread_row(EMBEDDED, "\udcff.png", "why")
    write(tmp_path / "a.jsonl", [row], EMBEDDED)
    assert list(read_rows(tmp_path / "a.jsonl")) == [row]
    with pytest.raises(InputError, match="is not text, and fits no Parquet file: use .jsonl"):
        write(tmp_path / "a.parquet", [row], EMBEDDED)


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vitrail\[parquet\]'"):
        write(tmp_path / "a.parquet", [], PREDICTED)
    write(tmp_path / "a.jsonl", [], PREDICTED)
