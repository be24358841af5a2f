"""The log of a run: one JSON object a line, appended; cut back to where the state stood when a run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.files import reason
from vitrail.system_calls import sync_file


class Record:
    """Rows appended to a file; what is in it is a function of the run, never of when it was stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, **row: Any) -> None:
        """Append one row; a line that does not fit the disk is taken back whole."""
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        before = self.size
        try:
            with open(self.path, "ab") as file:
                file.write(line)
        except OSError as error:
            self.cut(before)
            raise CheckpointError(
                f"could not write {self.path} ({len(line):,} bytes needed): {reason(error)}"
            ) from error

    @property
    def size(self) -> int:
        """Bytes in it."""
        return self.path.stat().st_size if self.path.exists() else 0

    def sync(self) -> None:
        """Make it last before a state says how long it is."""
        if self.path.exists():
            sync_file(self.path)

    def cut(self, size: int) -> None:
        """Back to its first `size` bytes: the rows after them come again."""
        if self.size < size:
            raise CheckpointError(f"{self.path} has {self.size:,} bytes, expected {size:,}: it was changed")
        if size or self.path.exists():
            os.truncate(self.path, size)
        else:
            self.path.touch()

    def rows(self) -> list[Mapping[str, Any]]:
        """Every row."""
        return [json.loads(line) for line in self.path.read_text("utf-8").splitlines()] if self.path.exists() else []


class NoRecord(Record):
    """The record of a process that is not the first: nothing is written."""

    def add(self, **row: Any) -> None:
        pass

    @property
    def size(self) -> int:
        return 0

    def sync(self) -> None:
        pass

    def cut(self, size: int) -> None:
        pass


def times_of(path: Path) -> list[dict[str, Any]]:
    """How long every epoch took: the last time it was trained, where a kill or a rollback made it come again."""
    found: dict[int, dict[str, Any]] = {}
    for line in path.read_text("utf-8", errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError, KeyError, TypeError):  # a power cut may leave half a line
            row = json.loads(line)
            found[row["epoch"]] = row
    return [found[epoch] for epoch in sorted(found)]
