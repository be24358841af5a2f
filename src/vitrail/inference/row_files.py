"""Rows of answers <-> FILE.jsonl or FILE.parquet: written piece by piece, read back and compared before it has a name.

A line of JSON a row; or Apache Parquet, by the extra `parquet`. Both hold the same columns with the same values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from vitrail.errors import InputError, import_extra
from vitrail.files import atomic_write, reason
from vitrail.inference.rows import Row

PARQUET: Final = ".parquet"
JSON_LINES: Final = ".jsonl"
SUFFIXES: Final = (JSON_LINES, PARQUET)
PIECE: Final = 1024  # rows in a group of a Parquet file, and rows held at once
TYPES: Final[dict[str, str | list[str]]] = {  # of columns, as pyarrow calls them; of a list, that of its values
    "path": "string",
    "labels": ["string"],
    "probabilities": ["float64"],
    "confident": "bool_",
    "needed": "float64",
    "unlike": "bool_",
    "familiarity": "float64",
    "embedding": ["float32"],
    "error": "string",
}


class RowWriter(Protocol):
    """Writes rows to an open file, some at a time."""

    def write(self, rows: Sequence[Row]) -> None: ...

    def close(self) -> None: ...


class LineWriter:
    """A line of JSON a row; names that are not text stand as escapes, which read back as they were."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.columns = columns
        self.file = open(path, "w", encoding="utf-8")  # noqa: SIM115  # closed by `close`

    def write(self, rows: Sequence[Row]) -> None:
        self.file.writelines(json.dumps(_plain({name: row[name] for name in self.columns})) + "\n" for row in rows)

    def close(self) -> None:
        self.file.close()


class ParquetRows:
    """A group of rows at a time, in columns."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.arrow = import_arrow()
        self.schema = self.arrow.schema([(name, self._type(TYPES[name])) for name in columns])
        self.file = import_arrow("pyarrow.parquet").ParquetWriter(path, self.schema)

    def write(self, rows: Sequence[Row]) -> None:
        columns = {field.name: [row[field.name] for row in rows] for field in self.schema}
        try:
            self.file.write_table(self.arrow.table(columns, schema=self.schema))
        except UnicodeEncodeError as error:
            raise InputError(f"{error.object!r:.200} is not text, and fits no Parquet file: use .jsonl") from None

    def close(self) -> None:
        self.file.close()

    def _type(self, name: str | list[str]) -> Any:
        return self.arrow.list_(self._type(name[0])) if isinstance(name, list) else getattr(self.arrow, name)()


def import_arrow(module: str = "pyarrow") -> Any:
    """The library that reads and writes Parquet, or what to install."""
    import_extra("Parquet files need pyarrow", "parquet", "pyarrow", "pyarrow.parquet")
    return import_module(module)


@contextmanager
def writing_rows(path: Path, columns: Sequence[str]) -> Iterator[Callable[[Row], None]]:
    """Where rows of these columns go, one after another; the file is there when all of them are, and proved to be.

    Told by its name: FILE.jsonl, FILE.parquet.
    """
    digest = _Digest()
    waiting: list[Row] = []
    try:
        with atomic_write(path, lambda written: _prove(written, path, digest)) as temporary:
            made = ParquetRows if path.suffix == PARQUET else LineWriter
            with closing(made(temporary, columns)) as writer:

                def put(row: Row) -> None:
                    waiting.append(row)
                    if len(waiting) >= PIECE:
                        flush(writer)

                def flush(writer: RowWriter) -> None:
                    writer.write(waiting)
                    for row in waiting:
                        digest.add(row)
                    waiting.clear()

                yield put
                if waiting:
                    flush(writer)
    except OSError as error:
        raise InputError(f"cannot write {path}: {reason(error)}") from error


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows of a file that `writing_rows` wrote, one after another; vectors as float32 arrays."""
    return _parquet_rows(path, columns) if _is_parquet(path) else _lines(path, columns)


def _is_parquet(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def _lines(path: Path, columns: Sequence[str] | None) -> Iterator[Row]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            yield _with_vectors({name: row[name] for name in columns} if columns else row)


def _parquet_rows(path: Path, columns: Sequence[str] | None) -> Iterator[Row]:
    with import_arrow("pyarrow.parquet").ParquetFile(path) as file:
        for batch in file.iter_batches(PIECE, columns=list(columns) if columns else None):
            vectors = _vectors(batch.column("embedding")) if "embedding" in batch.schema.names else None
            others = batch.drop_columns(["embedding"]) if vectors is not None else batch
            for number, row in enumerate(others.to_pylist()):
                yield row if vectors is None else {**row, "embedding": vectors[number]}


def _vectors(column: Any) -> list[np.ndarray[Any, Any] | None]:
    """A column of lists as arrays, without a Python number each."""
    values = column.values.to_numpy(zero_copy_only=False)
    starts, there = column.offsets.to_pylist(), column.is_valid().to_pylist()
    return [values[start:end] if valid else None for start, end, valid in zip(starts, starts[1:], there, strict=False)]


def _plain(row: Row) -> Row:
    vector = row.get("embedding")
    return row if vector is None else row | {"embedding": np.asarray(vector, np.float32).tolist()}


def _with_vectors(row: Row) -> Row:
    vector = row.get("embedding")
    return row if vector is None else row | {"embedding": np.asarray(vector, np.float32)}


class _Digest:
    """What tells whether rows are the same rows, in the same order."""

    def __init__(self) -> None:
        self.hash, self.count = hashlib.sha256(), 0

    def add(self, row: Row) -> None:
        vector = row.get("embedding")
        rest = [[name, value] for name, value in sorted(row.items()) if name != "embedding"]
        self.hash.update(json.dumps(rest).encode() + b"\n")
        self.hash.update(b"" if vector is None else np.ascontiguousarray(vector, np.float32).tobytes())
        self.count += 1


def _prove(written: Path, path: Path, expected: _Digest) -> None:
    """Read the file back: it must hold what was to be written."""
    read_back = _Digest()
    try:
        for row in read_rows(written):
            read_back.add(row)
    except (ValueError, KeyError) as error:  # what a damaged file gives
        raise InputError(f"{path} was not written as it should be ({error}): is the disk sound?") from error
    if (read_back.count, read_back.hash.digest()) != (expected.count, expected.hash.digest()):
        raise InputError(
            f"{path} was not written as it should be: {expected.count:,} rows were to be in it, and "
            f"{read_back.count:,} are read back, or others: is the disk sound?"
        )
