"""The benchmarks run, and compare what they say they compare."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import vitrail
from vitrail.network import ViT, ViTConfig

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.row("003.19")
def test_batch_norm_is_timed_beside_layer_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ViT] = []
    ran: list[str] = []

    def create(name: str, **changes: Any) -> ViT:
        config = ViTConfig(
            image_size=224, patch_size=56, width=16, depth=1, heads=2, mlp_width=16, classes=3, **changes
        )
        made.append(ViT(config))
        made[-1].register_forward_hook(lambda model, *_: ran.append(model.config.norm))
        return made[-1]

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["network.py"])
    module = runpy.run_path(str(BENCHMARKS / "network.py"))
    monkeypatch.setattr(vitrail, "create", create)
    (row,) = module["norm_kinds"](2)
    assert row["what"] == "S batch 8: batch norm / layer norm"
    assert row["ratio"] > 0
    kinds = [
        {type(each) for each in model.modules() if isinstance(each, nn.LayerNorm | nn.BatchNorm1d)} for model in made
    ]
    assert kinds[0] == {nn.LayerNorm}
    assert all(issubclass(kind, nn.BatchNorm1d) for kind in kinds[1])
    assert min(ran.count("layer"), ran.count("batch")) >= 2
    assert not torch.is_inference_mode_enabled()


def test_every_way_of_the_packed_runtime_is_raced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Quickly, on a tiny network: rows for each batch, precision and way, as ratios to the modules alone."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["packed_ways.py", "--quick", "--json", str(tmp_path / "rows.json")])
    timing = SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "network.py")))
    monkeypatch.setitem(sys.modules, "network", timing)  # which other tests know as a folder of tests
    try:
        runpy.run_path(str(BENCHMARKS / "packed_ways.py"), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    rows = json.loads((tmp_path / "rows.json").read_text())
    precisions = list(dict.fromkeys(each["precision"] for each in rows))
    assert precisions in (["fp32", "bf16", "int8"], ["fp32", "int8"])
    assert [(each["batch"], each["precision"], each["way"]) for each in rows] == [
        (batch, precision, way) for batch in (1, 16) for precision in precisions for way in ("modules", "program")
    ]
    assert {each["ratio"] for each in rows if each["way"] == "modules"} == {1.0}
    assert {each["rounds"] for each in rows} == {1}


def test_a_tree_is_raced_against_another(tmp_path: Path) -> None:
    """Quickly, a tiny network against the very same code: a row for each call."""
    command = [sys.executable, str(BENCHMARKS / "two_trees.py"), str(BENCHMARKS.parent), "--quick"]
    rows = tmp_path / "rows.json"
    for only, count in (("eager", 2), ("packed ti", 6)):
        run = subprocess.run(
            [*command, "--only", only, "--json", str(rows)], capture_output=True, text=True, timeout=600
        )
        assert run.returncode == 0, run.stderr
        found = json.loads(rows.read_text())
        assert len(found) == count
        assert all(row["call"].startswith(only) and row["ratio"] > 0 and row["rounds"] == 1 for row in found)
