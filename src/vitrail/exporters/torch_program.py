"""NAME.pt2: a traced graph -> a program for torch.export.load, with our description inside, and nothing pickled.

It is written and verified here, and opened by whoever uses it: torch.export.load runs what a file says, so a file of
unknown origin is no more to be opened than a pickle.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vitrail.errors import CheckpointError, InputError
from vitrail.exporters.quiet import quietly
from vitrail.exporters.target import OUTPUTS, Compute, Draft, Entries, Session, Target

if TYPE_CHECKING:
    from vitrail.exporters.export_info import ExportInfo
    from vitrail.types import Array

DESCRIPTION: Final = "extra/vitrail.json"  # our JSON
NOTES: Final = "extra/vitrail.notes.json"  # and what was found out about the file once it was there
GRAPH: Final = "models/model.json"
EXAMPLES: Final = "data/sample_inputs/model.pt"  # a pickle wherever torch wrote it; always empty in ours
FOLDER: Final = "vitrail/"  # that all of the archive stands in


def write_torch(draft: Draft, path: Path) -> None:
    """Write the program as torch does, without the examples, which it pickles."""
    import torch

    saved = io.BytesIO()
    with quietly():
        torch.export.save(draft.program, saved)
    with zipfile.ZipFile(saved) as archive:
        entries = {each.partition("/")[2]: archive.read(each) for each in archive.namelist()}
    entries[EXAMPLES] = b""
    entries[GRAPH] = _plain(entries[GRAPH])
    entries[DESCRIPTION] = draft.contents.to_json().encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(FOLDER + name), content)  # of one date, so that equal files are equal


def add_notes(contents: ExportInfo, path: Path) -> None:
    """Note in a written file what was found out about it: one more file in the archive."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(FOLDER + NOTES), contents.noted_json())


def _plain(graph: bytes) -> bytes:
    """Without notes, which name files of this machine, and without guards, which torch keeps for its examples."""
    plain = json.loads(graph)
    plain["guards_code"] = []
    for node in plain["graph_module"]["graph"]["nodes"]:
        node["metadata"] = {}
    return json.dumps(plain).encode()


def read_torch(path: Path) -> Entries:
    """What `export` wrote a moment ago; a file from elsewhere is not looked into."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        words = [
            archive.read(FOLDER + each).decode() if FOLDER + each in names else "" for each in (DESCRIPTION, NOTES)
        ]
    return Entries(*words)


def import_torch() -> Any:
    import torch

    return torch


def start_torch(torch: Any, path: Path, contents: ExportInfo, how: Session) -> Compute:
    """The program as a function, for the export that wrote it."""
    try:
        with quietly():  # it warns of errors that it then raises
            module = torch.export.load(path).module()
    except Exception as error:  # of many kinds, from deep inside
        raise CheckpointError(f"not exported: torch {torch.__version__} refuses {path}: {error!s:.300}") from None

    def compute(img: Array, names: Sequence[str]) -> Sequence[Array]:
        try:
            with torch.inference_mode():
                results = dict(zip((*OUTPUTS, "probs"), module(torch.from_numpy(img)), strict=False))
        except Exception as error:
            raise InputError(f"torch could not run {path.name} on {img.shape}: {error!s:.300}") from None
        return [results[each].numpy() for each in names]

    return compute


TORCH: Final = Target(
    name="torch",
    suffix=".pt2",
    runtime="torch.export.load",
    precisions=("fp32",),
    opens=False,
    write=write_torch,
    add_notes=add_notes,
    read=read_torch,
    import_runtime=import_torch,
    start=start_torch,
)
