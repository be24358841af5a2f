"""A traced graph -> NAME.pt2 for torch.export.load, with our description beside the weights inside."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Final

import torch

from vitrail.errors import CheckpointError
from vitrail.inference.contents import Contents, read_contents
from vitrail.shipping.checking import Array, Run
from vitrail.shipping.quiet import quietly

DESCRIPTION: Final = "vitrail.json"  # among the archive's extra files
CHECKS: Final = "vitrail.checks.json"
_EXTRA: Final = "extra/"  # where torch keeps them


def write_torch(program: torch.export.ExportedProgram, contents: Contents, path: Path) -> None:
    with quietly():
        torch.export.save(program, path, extra_files={DESCRIPTION: contents.to_json()})


def open_torch(path: Path) -> Run:
    """The program as torch loads it back."""
    with quietly():
        module = torch.export.load(path).module()

    def run(img: Array) -> list[Array]:
        with torch.inference_mode():
            found: Any = module(torch.from_numpy(img))
        return [each.numpy() for each in found]

    return run


def add_checks(contents: Contents, path: Path) -> None:
    """Note in a written file what was verified of it: one more file in the archive."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{_folder(archive)}{CHECKS}", contents.checks_json())


def read_torch(path: Path) -> Contents:
    """What a .pt2 file says of itself; nothing in it is run, and no torch is needed."""
    try:
        with zipfile.ZipFile(path) as archive:
            folder = _folder(archive)
            texts = [archive.read(folder + each).decode("utf-8") for each in (DESCRIPTION, CHECKS)]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: no description of ours inside: {error}") from None
    return read_contents(texts[0], texts[1], str(path))


def _folder(archive: zipfile.ZipFile) -> str:
    """Where the extra files stand in the archive."""
    for name in archive.namelist():
        if name.endswith(_EXTRA + DESCRIPTION):
            return name.removesuffix(DESCRIPTION)
    raise KeyError(DESCRIPTION)
