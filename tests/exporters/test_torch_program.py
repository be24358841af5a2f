"""NAME.pt2 gives the network's own numbers in torch.export, with nothing pickled inside."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import torch

import vitrail
from exporters.graph_networks import agree, random_pixels
from shipping import small
from vitrail.exporters import torch_program
from vitrail.exporters.exported import read_exported
from vitrail.network import Positions


def test_torch_export_gives_the_networks_own_numbers(tmp_path: Path) -> None:
    changes = {"positions": Positions("relative"), "pool": "mean", "cls_token": False, "qkv_bias": "none"}
    checkpoint = small.checkpoint(**changes)
    report = vitrail.export(checkpoint, tmp_path / "a.pt2", dynamic_size=True)
    extra = {"vitrail.json": ""}
    program = torch.export.load(tmp_path / "a.pt2", extra_files=extra)
    assert json.loads(extra["vitrail.json"])["about"] == checkpoint.about.to_dict()
    assert read_exported(tmp_path / "a.pt2").checks == report.checks
    module = program.module()
    for size in ((4, 32, 32), (1, 24, 56)):
        pixels = random_pixels(*size)
        logits, embedding, _ = module(torch.from_numpy(pixels))
        agree([logits.detach().numpy(), embedding.detach().numpy()], checkpoint.run(pixels))


def test_a_torch_file_names_nothing_of_this_machine(tmp_path: Path) -> None:
    vitrail.export(small.checkpoint(), tmp_path / "a.pt2", dynamic_size=True)
    with zipfile.ZipFile(tmp_path / "a.pt2") as archive:
        graph = json.loads(archive.read(torch_program.FOLDER + torch_program.GRAPH))
        assert archive.read(torch_program.FOLDER + torch_program.EXAMPLES) == b""
    assert graph["guards_code"] == []  # of the size it was traced at, which are many
    assert {json.dumps(node["metadata"]) for node in graph["graph_module"]["graph"]["nodes"]} == {"{}"}
    assert ".py" not in json.dumps(graph)
