"""Where the images of a large job lie: folders, lists, tables, parts of files."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.errors import ImageError, InputError
from vitrail.images import decode
from vitrail.inference import find_images
from vitrail.scale.image_rows import WHOLE, list_images, read_images

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra parquet")


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (5, 4), shade).save(file, "png")
    return file.getvalue()


def shade(image: Any) -> int:
    return int(np.asarray(decode(image, "L"))[0, 0])


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "below").mkdir(parents=True)
    for number in range(12):
        (tmp_path / "photos" / ("below" if number > 8 else "") / f"{number}.png").write_bytes(png(number))
    (tmp_path / "photos" / "notes.txt").write_text("none")
    return Path("photos")


def test_folders_give_the_images_that_predict_finds_in_the_same_order(photos: Path) -> None:
    found = list_images([photos])
    rows = list(found.rows)
    assert [row.path for row in rows] == [str(path) for path in find_images([photos])]
    assert [row.where for row in rows] == [str(Path.cwd() / row.path) for row in rows]
    assert {(row.offset, row.length, row.column) for row in rows} == {(0, WHOLE, "")}
    assert [each.reason for each in found.files.passed_over] == ["file that is no image"]
    assert [shade(each.image) for each in read_images(rows)] == list(range(12))


def test_a_list_names_images_beside_it(photos: Path) -> None:
    (photos / "list.csv").write_text("label;path\na;3.png\nb;below/10.png\na;3.png\n\nb;gone.png\n")
    rows = list(list_images([photos / "list.csv"]).rows)
    assert [row.path for row in rows] == [f"photos/{name}" for name in ("3.png", "below/10.png", "3.png", "gone.png")]
    assert [shade(each.image) for each in list(read_images(rows))[:3]] == [3, 10, 3]
    (photos / "list.csv").write_text("path\n\n  \n")
    with pytest.raises(InputError, match=r"list.csv, line 3: expected the path of an image, got '  '"):
        list(list_images([photos / "list.csv"]).rows)
    (photos / "list.csv").write_text("file\na.png\n")
    with pytest.raises(InputError, match="no column 'path'"):
        list(list_images([photos / "list.csv"]).rows)


def table(path: Path, columns: dict[str, Any], group: int = 3, types: Any = None) -> Path:
    from pyarrow import parquet

    parquet.write_table(arrow.table(columns, schema=types), path, row_group_size=group)
    return path


def test_a_table_of_paths(photos: Path) -> None:
    path = table(photos / "t.parquet", {"label": ["a", "b"], "path": ["4.png", "below/11.png"]})
    rows = list(list_images([path]).rows)
    assert [row.path for row in rows] == ["photos/4.png", "photos/below/11.png"]
    assert [shade(each.image) for each in read_images(rows)] == [4, 11]


@pytest.mark.parametrize("kind", ["bytes", "large", "struct"])
@pytest.mark.parametrize("named", ["id", ""])
def test_a_table_of_images(photos: Path, kind: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import parquet

    cells: list[Any] = [png(number) for number in range(10)]
    cells[5] = None
    if kind == "struct":
        cells = [{"path": "x", "bytes": cell} for cell in cells]
    held = arrow.array(cells, arrow.large_binary()) if kind == "large" else arrow.array(cells)
    names = {named: [f"n{number}" for number in range(10)]} if named else {}
    path = table(photos / "t.parquet", {"image": held, **names})
    rows = list(list_images([path]).rows)
    expected = [f"n{number}" if named else f"photos/t.parquet#{number}" for number in range(10)]
    assert [row.path for row in rows] == expected
    read: list[int] = []
    right = parquet.ParquetFile.read_row_group
    monkeypatch.setattr(
        parquet.ParquetFile, "read_row_group", lambda self, number, **k: read.append(number) or right(self, number, **k)
    )
    images = list(read_images(rows[2:]))
    assert [each.name for each in images] == expected[2:]
    assert [shade(each.image) for each in images if not isinstance(each.image, ImageError)] == [2, 3, 4, 6, 7, 8, 9]
    assert "row 5 holds no image" in str(images[3].image)
    assert read == [0, 1, 2, 3]  # each group once


def test_tables_that_hold_no_images_are_refused(photos: Path) -> None:
    with pytest.raises(InputError, match=r"expected a column of image bytes, or a column 'path' of texts"):
        list(list_images([table(photos / "t.parquet", {"number": [1, 2]})]).rows)
    with pytest.raises(InputError, match=r"row 1: expected the path of an image, got None"):
        list(list_images([table(photos / "t.parquet", {"path": ["a.png", None]})]).rows)
    (photos / "t.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(InputError, match=r"t.parquet cannot be read as Parquet"):
        list(list_images([photos / "t.parquet"]).rows)
    with pytest.raises(InputError, match=r"none.parquet cannot be read as Parquet"):
        list(list_images([photos / "none.parquet"]).rows)


@pytest.mark.parametrize("own", [True, False])
def test_shards_give_the_images_that_predict_finds(photos: Path, own: bool) -> None:
    """Those of `vitrail shard`, and tar files of others."""
    if own:
        for number in range(12):
            path = Path("classes", "ab"[number % 2], f"{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(number))
        vitrail.shard("classes", "tars", progress=False)
        given = Path("tars")
    else:
        given = Path("others.tar")
        with tarfile.open(given, "w") as tar:
            for number in range(12):
                tar.add(photos / ("below" if number > 8 else "") / f"{number}.png", f"{number}.png")
    files = find_images([given], shards=True)
    rows = list(list_images([given]).rows)
    assert [row.path for row in rows] == [str(path) for path in files]
    assert {bool(row.sha256) for row in rows} == {own}
    read = list(read_images(rows))
    assert [shade(each.image) for each in read] == [shade(each.image) for each in files.images()]
    assert sorted(shade(each.image) for each in read) == list(range(12))
    raw = Path(rows[3].where).read_bytes()
    Path(rows[3].where).write_bytes(raw[: rows[3].offset + 5])
    with pytest.raises(InputError, match=rf"is damaged at {re.escape(rows[3].path)} .*: copy the shard again"):
        list(read_images(rows))
    if own:
        at = rows[3].offset + 40
        Path(rows[3].where).write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(InputError, match="is damaged at"):
            list(read_images(rows))
    Path(rows[3].where).unlink()
    with pytest.raises(InputError, match="cannot be read: No such file"):
        list(read_images(rows))


def test_a_table_that_went_away_stops_the_work(photos: Path) -> None:
    path = table(photos / "t.parquet", {"image": [png(1)]})
    rows = list(list_images([path]).rows)
    path.unlink()
    with pytest.raises(InputError, match="t.parquet cannot be read as Parquet: FileNotFoundError"):
        list(read_images(rows))


def test_a_video_is_refused(photos: Path) -> None:
    (photos / "clip.mp4").write_bytes(b"x")
    with pytest.raises(InputError, match="is a video, whose frames are not known"):
        list(list_images([photos / "clip.mp4"]).rows)
