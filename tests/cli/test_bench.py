"""The verb bench."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from cli.command_line import typed
from shipping.conftest import operators_read_once
from vitrail.shipping import benchmark as benching

__all__ = ["operators_read_once"]  # a fixture

pytestmark = pytest.mark.usefixtures("fixed_times")


@pytest.mark.row("P.13")
def test_bench_prints_its_table(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching, "limits", lambda: {"fp32": 100.0, "int8": 400.0})  # measuring it takes seconds
    shown: list[str] = []
    monkeypatch.setattr("vitrail.cli.bench.busy", lambda what: nullcontext(shown.append))
    told = typed("bench", place / "net.safetensors", "--batch", "1,2", "--runtimes", "packed fp32", "--rounds", 1)
    assert [each.partition(" (step ")[0] for each in shown] == [
        "measuring the machine's limit",
        "measuring packed fp32",
        "measuring each in a process of its own",
        "measuring batch 1",
        "measuring batch 2",
    ]
    assert all(" of 5" in each for each in shown)
    assert "largest batch for the memory free now" in told
    assert "limit, GFLOP/s of a large product: fp32 100, int8 400" in told
    rows = [line.split() for line in told.splitlines() if line.startswith("packed fp32")]
    assert [row[3:7] for row in rows] == [["1", "250", "4", "1.00"], ["2", "250", "8", "1.00"]]
    assert [row[-4:] for row in rows] == [["s", "7", "MB", "1,234"]] * 2
    plain = json.loads(
        typed("bench", place / "net.safetensors", "--batch", 1, "--runtimes", "eager", "--rounds", 1, "--json")
    )
    assert [each["runtime"] for each in plain["rows"]] == ["eager"]
