"""A table (CSV or TSV) of images and labels -> Reading; its lines are numbered in every message."""

from __future__ import annotations

import codecs
import csv
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from vitrail.checks import join_limited, short_repr
from vitrail.data.classes import Reading, as_label
from vitrail.data.folder_walk import is_inside
from vitrail.data.samples import Sample, as_split
from vitrail.errors import InputError
from vitrail.images import describe
from vitrail.images.file_names import in_order

DELIMITERS: Final = (",", "\t", ";")
BETWEEN: Final = "|"  # two labels of one image
LONGEST_LINE: Final = 2**20


class TableRow(NamedTuple):
    """A line of a table: its number in the file, and the cells of the columns asked for."""

    line: int
    cells: tuple[str, ...]


def read_table(path: Path) -> Reading:
    """Columns path and label, and perhaps split and group; paths are relative to the table's folder.

    Where any cell holds several labels, as in cat|dog, the task is several labels, and an empty cell means none.
    """
    rows = list(read_rows(path, {"path": None, "label": None, "split": "", "group": ""}))
    several = any(BETWEEN in row.cells[1] for row in rows)
    table, folder, real_folder = describe(path), os.fspath(path.parent), os.path.realpath(path.parent)
    labels: dict[str, tuple[str, ...]] = {}
    lines: dict[str, int] = {}  # by the name of the file
    samples, faults = [], []
    for line, (file, label, split, group) in rows:
        where = f"{table}, line {line}"
        if label not in labels:
            labels[label] = _labels(label, several, where)
        name = _file_name(file.strip(), where)
        if lines.setdefault(name, line) != line:
            raise InputError(
                f"{where}: {describe(name)} stands in line {lines[name]} already: expected every image once "
                f"(several labels go into one cell, as in cat{BETWEEN}dog)"
            )
        if fault := _fault(name, folder, real_folder):
            faults.append(f"line {line}: {describe(name)} {fault}")
        samples.append(Sample(name, labels[label], as_split(split, where) if split else "", group.strip()))
    if faults:
        raise InputError(
            f"{table}: {len(faults):,} of {len(lines):,} images cannot be used "
            f"(paths are relative to the folder of the table): {join_limited(faults)}"
        )
    return Reading(samples, path.parent, task="multi-label" if several else "single-label")


def read_rows(path: Path, columns: Mapping[str, str | None]) -> Iterator[TableRow]:
    """The cells of these columns, line by line; a column that is missing has the value given here, None: an error.

    The header is read without regard to case, commas, tabs or semicolons divide cells, empty lines are passed over.
    """
    name = describe(path)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{name}: expected a CSV file")
        with open(path, "rb") as raw:
            if raw.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise InputError(f"{name} is UTF-16: save it as CSV in UTF-8")
        # File names need not be UTF-8, so bytes that are not come through as they are.
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            yield from _rows(file, columns, name)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from error


def _rows(file: TextIO, columns: Mapping[str, str | None], name: str) -> Iterator[TableRow]:
    head = file.readline(LONGEST_LINE)
    file.seek(0)
    delimiter = max(DELIMITERS, key=lambda each: len({*columns} & {*_names(head, each)}))
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    line = 1
    try:
        header = _header(next(reader, []), columns, name)
        places = [header.index(each) if each in header else None for each in columns]
        absent = [value or "" for value in columns.values()]
        line = reader.line_num + 1
        for cells in reader:
            if any(cells):
                if len(cells) != len(header):
                    raise InputError(
                        f"{name}, line {line}: {len(cells)} cells, expected {len(header)} as in the header"
                    )
                found = (other if place is None else cells[place] for place, other in zip(places, absent, strict=True))
                yield TableRow(line, tuple(found))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{name}, line {line}: cannot be read as CSV: {error}") from None


def _names(head: str, delimiter: str) -> list[str]:
    return [each.strip().strip('"').lower() for each in head.split(delimiter)]


def _header(cells: list[str], columns: Mapping[str, str | None], name: str) -> list[str]:
    """The names of the columns in lower case."""
    header = [each.strip().lower() for each in cells]
    needed = [each for each, other in columns.items() if other is None]
    if missing := [each for each in needed if each not in header]:
        raise InputError(
            f"{name} has no column {' and no '.join(map(repr, missing))}: expected a header with "
            f"{', '.join(needed)}, its first line is {short_repr(cells)}"
        )
    if twice := [each for each in columns if header.count(each) > 1]:
        raise InputError(f"{name} has two columns {twice[0]!r}: expected one")
    return header


def _labels(cell: str, several: bool, where: str) -> tuple[str, ...]:
    if not several:
        return (as_label(cell.strip(), where),)
    if not cell.strip():
        return ()
    return tuple(in_order({as_label(each.strip(), where) for each in cell.split(BETWEEN)}))


def _file_name(text: str, where: str) -> str:
    if not text or "\0" in text:
        raise InputError(f"{where}: expected the path of an image, got {text!r:.80}")
    return os.path.normpath(text)


def _fault(name: str, folder: str, real_folder: str) -> str:
    """What is wrong with a file named in the table of a folder; empty where it may be used."""
    path = os.path.join(folder, name)
    try:
        kind = os.stat(path).st_mode
    except OSError as error:
        return f"is not there ({error.strerror})"
    if not stat.S_ISREG(kind):
        return "is a folder" if stat.S_ISDIR(kind) else "is a pipe, socket or device"
    # What the table spells out may stand anywhere; what a link hides may not.
    if os.path.isabs(name) or name.startswith("../") or is_inside(os.path.realpath(path), real_folder):
        return ""
    return "is a link that leads out of the folder"
