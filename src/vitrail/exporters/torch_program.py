"""A traced graph -> NAME.pt2 for torch.export.load, with our description and a checksum inside, and nothing pickled."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import torch

from vitrail.inference import torch_file
from vitrail.inference.digest import digest_of
from vitrail.inference.export_info import Contents
from vitrail.inference.quiet import quietly


def write_torch(program: torch.export.ExportedProgram, contents: Contents, path: Path) -> None:
    """Write the program as torch does, without the examples, which it pickles."""
    saved = io.BytesIO()
    with quietly():
        torch.export.save(program, saved)
    with zipfile.ZipFile(saved) as archive:
        found = {each.partition("/")[2]: archive.read(each) for each in archive.namelist()}
    found[torch_file.EXAMPLES] = b""
    found[torch_file.GRAPH] = _plain(found[torch_file.GRAPH])
    found[torch_file.DESCRIPTION] = contents.to_json().encode()
    path.write_bytes(torch_file.packed(found).getbuffer())
    _seal(path)


def add_notes(contents: Contents, path: Path) -> None:
    """Note in a written file what was found out about it: one more file in the archive."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(torch_file.FOLDER + torch_file.NOTES), contents.noted_json())
    _seal(path)


def _plain(graph: bytes) -> bytes:
    """Without notes, which name files of this machine, and without guards, which torch keeps for its examples."""
    plain = json.loads(graph)
    plain["guards_code"] = []
    for node in plain["graph_module"]["graph"]["nodes"]:
        node["metadata"] = {}
    return json.dumps(plain).encode()


def _seal(path: Path) -> None:
    with open(path, "r+b") as file:
        body = file.read()[: -torch_file.SEAL]
        file.seek(len(body))
        file.write(torch_file.seal(digest_of(body)))
