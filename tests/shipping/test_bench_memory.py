"""The largest batch that bench names: from what more images were seen to take, and what is free."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shipping.small import checkpoint
from vitrail.shipping import benchmark as benching

MB = 2**20


@pytest.mark.row("P.13")
@pytest.mark.parametrize(
    "first, one, several, free, largest",
    [
        (100 * MB, 40 * MB, 40 * MB + 31 * 2 * MB, 300 * MB, 100),  # 200 MB are left, 2 MB an image
        (100 * MB, 40 * MB, 40 * MB + 31 * 8 * MB, 300 * MB, 25),  # at another size
        (100 * MB, 40 * MB, 40 * MB + 31 * 2 * MB, 90 * MB, 1),  # one was seen to fit
        (100 * MB, 40 * MB, 40 * MB + 31 * 2 * MB, 0, None),  # the system does not tell
        (100 * MB, 40 * MB, 40 * MB + 31 * 4096, 300 * MB, None),  # nothing that could be told from noise
    ],
)
def test_the_largest_batch_follows_from_what_each_image_takes(
    first: int, one: int, several: int, free: int, largest: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, json.dumps([1.5, first, one, several]) + "\n", "")

    monkeypatch.setattr(benching.subprocess, "run", run)
    monkeypatch.setattr(benching, "_free", lambda: free)
    assert benching._alone(Path("net.onnx")) == benching.Alone(1.5, first, largest)
    assert asked[0][-2:] == ["net.onnx", "32"]


@pytest.mark.row("DL.7", "4.TRT")
def test_exported_files_are_measured_beside_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    called: dict[str, int] = {}

    def interleaved(calls: dict[str, Any], rounds: int) -> dict[str, float]:
        for name, call in calls.items():
            call()
            called[name] = rounds
        return {"eager": 0.04, "onnx fp32": 0.02}

    monkeypatch.setattr(benching, "limits", lambda: {"fp32": 100.0})
    monkeypatch.setattr(benching, "interleaved", interleaved)
    monkeypatch.setattr(benching, "_alone", lambda path: benching.Alone(0.5, len(path.suffix), 7))
    found = benching.bench(checkpoint(), batches=(2,), runtimes=("onnx fp32",), rounds=3)
    eager, onnx = found.rows
    assert called == {"eager": 3, "onnx fp32": 3}
    assert (eager.runtime, onnx.runtime, onnx.ratio, onnx.memory_bytes) == ("eager", "onnx fp32", 2.0, len(".onnx"))
    assert 0 < onnx.difference < 1e-4  # it answered, by another runtime
