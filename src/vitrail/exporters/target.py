"""Target: all that export, open_model, optimize, bench and the command line know of another runtime's files.

A target is one object in one file; `TARGETS` has a line for each. Nothing heavy is imported until one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import torch

    from vitrail.exporters.export_graph import Graph
    from vitrail.exporters.export_info import ExportInfo
    from vitrail.quantisation.quant_plan import Range
    from vitrail.types import Array

OUTPUTS: Final = ("logits", "embedding")  # that every file has
Compute: TypeAlias = "Callable[[Array, Sequence[str]], Sequence[Array]]"
"""img and names of outputs -> those outputs."""


class Int8(NamedTuple):
    """Layers that compute in int8, with the ranges of what they receive; `symmetric` about zero."""

    ranges: Mapping[str, Range]
    symmetric: bool


class Draft(NamedTuple):
    """What a file is written from."""

    graph: Graph
    program: torch.export.ExportedProgram  # the graph, traced
    contents: ExportInfo
    int8: Int8 | None


class Entries(NamedTuple):
    """Our words in a file, as they stand there: the description, and what was found out about it; empty if missing."""

    description: str
    notes: str


class Session(NamedTuple):
    """How a file is opened."""

    threads: int = 0  # 0: as many as the runtime likes
    few_images: bool = False  # for a few images alone: a runtime need not prepare for many


def check_nothing(graph: Graph, precision: str) -> None:
    """Every network can be written."""


@dataclass(frozen=True)
class Target:
    """A kind of file that `export` writes for another runtime."""

    name: str  # what --to says, and the file of itself
    suffix: str  # ".onnx"
    runtime: str  # what runs it, in words
    precisions: tuple[str, ...]  # of fp32, bf16 and int8, those it can compute in
    write: Callable[[Draft, Path], None]  # the file, with its description
    add_notes: Callable[[ExportInfo, Path], None]  # what was found out about it, in the place of what it noted before
    read: Callable[[Path], Entries]  # once nothing in the file can lead a runtime astray; needs no runtime
    import_runtime: Callable[[], Any]  # or MissingExtraError
    start: Callable[[Any, Path, ExportInfo, Session], Compute]  # what `import_runtime` gave, and a file that was read
    beside: tuple[str, ...] = ()  # suffixes of files that belong to it
    opens: bool = True  # whether open_model takes it; where not, export alone runs it, to verify what it wrote
    check: Callable[[Graph, str], None] = check_nothing  # refuse at once what it cannot be: a network, a precision

    def files(self, path: Path) -> list[Path]:
        """All files of an export; the one with the name comes last."""
        return [*(path.with_suffix(each) for each in self.beside), path]
