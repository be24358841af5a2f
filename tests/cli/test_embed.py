"""The verb embed."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import vitrail
from cli.command_line import Line
from vitrail.inference.row_files import read_rows


def test_embed_to_files(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    vectors, table = tmp_path / "v.npy", tmp_path / "v.csv"
    said = vit("embed", file, folder, "--out", vectors)
    assert (said.code, said.out) == (3, f"3 vectors of 16 values written to {vectors}\n")  # one is broken
    names = [str(folder / name) for name in ("1.png", "2.png", "10.png")]
    expected = vitrail.embed(vitrail.load(file), names)
    assert np.array_equal(np.load(vectors), expected)
    assert (tmp_path / "v.txt").read_text().splitlines() == names
    for taken in (vectors, tmp_path / "v.txt"):
        told = vit.mistake("embed", file, tmp_path / "nothing there", "--out", vectors)
        assert told == f"{taken} is there already: give another name, or --force to write over it"
        vectors.unlink(missing_ok=True)
    assert (
        vit("embed", file, names[0], "--out", vectors, "--force").out == f"1 vector of 16 values written to {vectors}\n"
    )
    assert (tmp_path / "v.txt").read_text() == f"{names[0]}\n"
    assert vit("embed", file, *names, "--out", table).code == 0
    with open(table, encoding="utf-8", newline="") as opened:
        rows = list(csv.reader(opened))
    assert rows[0] == ["path", *map(str, range(16))]
    assert [row[0] for row in rows[1:]] == names
    assert np.array_equal(np.array([row[1:] for row in rows[1:]], np.float32), expected)
    found = vit("embed", file, *names, "--json").json
    assert found["paths"] == names
    assert np.array_equal(np.array(found["embeddings"], np.float32), expected)
    assert found["skipped"] == []


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_embed_to_rows(vit: Line, file: Path, folder: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    said = vit("embed", file, folder, "--out", out)
    assert (said.code, said.out) == (3, f"3 vectors of 16 values written to {out}\n")
    expected = vitrail.embed(file, [folder / each for each in ("1.png", "2.png", "10.png")])
    rows = list(read_rows(out))
    assert [Path(row["path"]).name for row in rows] == ["1.png", "2.png", "3 broken.png", "10.png"]
    unread = rows.pop(2)
    assert unread["embedding"] is None
    assert unread["error"].startswith(str(folder / "3 broken.png"))
    assert np.array_equal(np.stack([row["embedding"] for row in rows]), expected)
    assert {row["embedding"].dtype for row in rows} == {np.dtype(np.float32)}
    nothing = tmp_path / f"no-{name}"
    assert "no images to embed" in vit("embed", file, folder / "3 broken.png", "--out", nothing).err
    assert not nothing.exists()


def test_mistakes_of_embed(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    assert "give --out FILE.npy, .csv, .jsonl or .parquet, or --json" in vit.mistake("embed", file, folder)
    words = "expected FILE.npy, FILE.csv, FILE.jsonl or FILE.parquet"
    assert words in vit.mistake("embed", file, folder, "--out", "x.json")
    assert "no file or folder" in vit.mistake("embed", file, tmp_path / "none", "--json")
    broken = vit("embed", file, folder / "3 broken.png", "--json")
    assert (broken.code, broken.out) == (2, "")
    (folder / "1.png").rename(folder / "line\nbreak.png")
    out = tmp_path / "v.npy"
    assert "a file name holds a line break" in vit.mistake("embed", file, folder / "line\nbreak.png", "--out", out)
    assert vit("embed", file, folder / "line\nbreak.png", "--out", tmp_path / "v.csv").code == 0
