"""Files: names below a folder, and their paths when asked for; a million Paths would take seconds and much memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import overload


class Files(Sequence[Path]):
    """The paths of names below a folder."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, place: int) -> Path: ...
    @overload
    def __getitem__(self, place: slice) -> Files: ...
    def __getitem__(self, place: int | slice) -> Path | Files:
        """One path, or fewer files."""
        if isinstance(place, slice):
            return Files(self.folder, self.names[place])
        return self.folder / self.names[place]
