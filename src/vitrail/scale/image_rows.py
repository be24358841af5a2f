"""Folders, shards, lists and tables -> ImageRow: where each image of a large job lies, for any worker to read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from vitrail.checks import join_limited
from vitrail.data.tables import read_rows
from vitrail.errors import ImageError, InputError, first_line
from vitrail.files import reason
from vitrail.images.file_bytes import FileBytes
from vitrail.images.shards import ShardSet
from vitrail.inference import FoundImages, Named, find_images
from vitrail.inference.row_files import import_arrow
from vitrail.inference.video import is_video

LISTS: Final = (".csv", ".tsv")
TABLES: Final = (".parquet",)
BYTES: Final = ("image", "bytes", "img", "jpg", "png")  # columns of a table that hold images, the likeliest first
NAMES: Final = ("path", "id", "name", "file_name", "filename", "key")  # and what they are called
WHOLE: Final = -1


class ImageRow(NamedTuple):
    """An image of a job: what it is called in answers, and where it lies."""

    path: str
    where: str  # the file, as any worker finds it
    offset: int = 0  # its first byte there; of a table its row
    length: int = WHOLE  # of bytes
    column: str = ""  # of a table
    sha256: str = ""  # of a part of a file, where known


class ImageList(NamedTuple):
    """The images of a job, one after another, once; and the files that were found in folders, and passed over."""

    rows: Iterator[ImageRow]
    files: FoundImages


def list_images(data: Iterable[str | os.PathLike[str]]) -> ImageList:
    """The images that paths stand for: files, folders, patterns, shards; the column path of a CSV; a Parquet table."""
    others: list[Path] = []
    tables: list[Path] = []
    for path in map(Path, data):
        (tables if path.suffix.lower() in (*LISTS, *TABLES) else others).append(path)
    files = find_images(others, shards=True) if others else FoundImages(())
    return ImageList(_rows(files, tables), files)


def _rows(found: FoundImages, tables: Iterable[Path]) -> Iterator[ImageRow]:
    for path in found:
        if is_video(path):
            raise InputError(f"{path} is a video, whose frames are not known before it is read: use --engine local")
        yield _in_shard(path, *found.in_shards[path]) if path in found.in_shards else _file(path)
    for path in tables:
        yield from _in_list(path) if path.suffix.lower() in LISTS else _in_table(path)


def _file(path: Path) -> ImageRow:
    return ImageRow(str(path), os.path.abspath(path))


def _in_shard(path: Path, shards: ShardSet, row: int) -> ImageRow:
    """An image in a tar file: its place there."""
    index = shards.index
    where = os.path.abspath(shards.folder / index.shards[int(index.shard[row])].name)
    digest = index.digests[row].tobytes().hex() if index.digests is not None else ""
    return ImageRow(str(path), where, int(index.offsets[row]), int(index.sizes[row]), sha256=digest)


def _in_list(table: Path) -> Iterator[ImageRow]:
    """The images of a list, by its column path; relative to the folder of the list."""
    for line, (name,) in read_rows(table, {"path": None}):
        if not name.strip() or "\0" in name:
            raise InputError(f"{table}, line {line}: expected the path of an image, got {name!r:.80}")
        path = os.path.normpath(os.path.join(table.parent, name.strip()))
        yield ImageRow(path, os.path.abspath(path))


def _in_table(table: Path) -> Iterator[ImageRow]:
    """The images of a table: a column of bytes, or else a column of paths, relative to the folder of the table."""
    try:
        with import_arrow("pyarrow.parquet").ParquetFile(table) as file:
            held = _bytes_column(file.schema_arrow)
            named = _name_column(file.schema_arrow, table, must="" if held else "path")
            where, row = os.path.abspath(table), 0
            for batch in file.iter_batches(4096, columns=[named] if named else []):
                for name in batch.column(0).to_pylist() if named else [None] * batch.num_rows:
                    yield _of_cell(table, where, row, held, name)
                    row += 1
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        if isinstance(error, InputError):
            raise
        raise InputError(f"{table} cannot be read as Parquet: {str(error).splitlines()[0]:.160}") from error


def _of_cell(table: Path, where: str, row: int, held: str, name: str | None) -> ImageRow:
    if held:
        return ImageRow(str(name) if name else f"{table}#{row}", where, row, WHOLE, held)
    if not name:
        raise InputError(f"{table}, row {row}: expected the path of an image, got {name!r}")
    path = os.path.normpath(os.path.join(table.parent, name))
    return ImageRow(path, os.path.abspath(path))


def _bytes_column(schema: Any) -> str:
    """The column that holds images: of bytes, or of bytes and path together as datasets of Hugging Face have them."""
    arrow = import_arrow()
    fits = []
    for field in schema:
        kind = field.type
        if arrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        if arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind):
            fits.append(field.name)
    return next((name for name in BYTES if name in fits), fits[0] if fits else "")


def _name_column(schema: Any, table: Path, must: str) -> str:
    arrow = import_arrow()
    texts = [
        field.name for field in schema if arrow.types.is_string(field.type) or arrow.types.is_large_string(field.type)
    ]
    if must and must not in texts:
        raise InputError(
            f"{table}: expected a column of image bytes, or a column {must!r} of texts, found "
            f"{join_limited([f'{field.name} ({field.type})' for field in schema]) or 'no column'}"
        )
    return must or next((name for name in NAMES if name in texts), "")


def read_images(rows: Sequence[ImageRow]) -> Iterator[Named]:
    """The images of these rows, one after another; one that a table lacks stands as its error.

    A shard or a table that is damaged stops the work: what else is missing in it is unknown, and another copy has it.
    """
    cells = TableCells()
    for row in rows:
        try:
            if row.column:
                yield Named(row.path, FileBytes(cells.read(row), row.path))
            elif row.length == WHOLE:
                yield Named(row.path, row.where)
            else:
                yield Named(row.path, FileBytes(_part(row), row.path))
        except ImageError as error:
            yield Named(row.path, error)


def _part(row: ImageRow) -> bytes:
    """The bytes of an image in a larger file, held against their digest."""
    try:
        with open(row.where, "rb") as file:
            file.seek(row.offset)
            data = file.read(row.length)
    except OSError as error:
        raise InputError(f"{row.where} cannot be read: {reason(error)}") from error
    if len(data) < row.length or (row.sha256 and hashlib.sha256(data).hexdigest() != row.sha256):
        raise InputError(
            f"{row.where} is damaged at {row.path} (byte {row.offset:,}): expected {row.length:,} bytes with SHA-256 "
            f"{row.sha256[:16] or 'unknown'}, got {len(data):,} others: copy the shard again"
        )
    return data


class TableCells:
    """The bytes of single rows of Parquet files; one group of rows is held at a time."""

    def __init__(self) -> None:
        self.where = self.column = ""
        self.starts: list[int] = []
        self.file: Any = None
        self.first = 0
        self.cells: Any = None

    def read(self, row: ImageRow) -> bytes:
        if (row.where, row.column) != (self.where, self.column):
            self._open(row)
        if self.cells is None or not self.first <= row.offset < self.first + len(self.cells):
            group = max(number for number, start in enumerate(self.starts) if start <= row.offset)
            self.cells = None  # two groups are never held
            self.first = self.starts[group]
            self.cells = self.file.read_row_group(group, columns=[row.column]).column(0)
        value = self.cells[row.offset - self.first].as_py()
        value = value.get("bytes") if isinstance(value, dict) else value
        if not value:
            raise ImageError(f"{row.where}: row {row.offset} holds no image")
        return bytes(value)

    def _open(self, row: ImageRow) -> None:
        if self.file is not None:
            self.file.close()
        try:
            self.file, self.cells = import_arrow("pyarrow.parquet").ParquetFile(row.where), None
        except (OSError, ValueError) as error:
            raise InputError(f"{row.where} cannot be read as Parquet: {first_line(error)}") from error
        self.where, self.column, self.starts = row.where, row.column, []
        start = 0
        for group in range(self.file.metadata.num_row_groups):
            self.starts.append(start)
            start += self.file.metadata.row_group(group).num_rows
