"""bench: every runtime beside eager; the largest batch follows from what more images take, and what is free."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shipping import packs
from shipping.small import checkpoint
from vitrail.errors import InputError
from vitrail.shipping import benchmark as benching
from vitrail.shipping.benchmark import Alone, bench
from vitrail.shipping.candidates import bench_kinds

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
    assert benching._alone(Path("net.onnx"), "cpu") == benching.Alone(1.5, first, largest)
    assert asked[0][-3:] == ["net.onnx", "32", "cpu"]
    assert benching._alone(Path("net.safetensors"), "cuda:1") == benching.Alone(1.5, None, None)
    assert asked[1][-1] == "cuda:1"  # whose memory is another


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
    monkeypatch.setattr(benching, "_alone", lambda path, device: benching.Alone(0.5, len(path.suffix), 7))
    found = benching.bench(checkpoint(), batches=(2,), runtimes=("onnx fp32",), rounds=3)
    eager, onnx = found.rows
    assert called == {"eager": 3, "onnx fp32": 3}
    assert (eager.runtime, onnx.runtime, onnx.ratio, onnx.memory_bytes) == ("eager", "onnx fp32", 2.0, len(".onnx"))
    assert 0 < onnx.difference < 1e-4  # it answered, by another runtime


@pytest.mark.row("P.13")
def test_bench_names_speed_memory_start_and_the_largest_batch_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching, "limits", lambda: {"fp32": 100.0, "int8": 400.0})  # the true ones take seconds
    monkeypatch.setattr(benching, "interleaved", lambda calls, rounds: {each: 0.02 * len(each) for each in calls})
    monkeypatch.setattr(
        benching, "_alone", lambda path, device: Alone(1.5, 500 if path.name == "int8.safetensors" else 900, 40)
    )
    found = bench(packs.checkpoint(), batches=(1, 3), sizes=(32, 64), runtimes=("packed int8",), rounds=1)
    keys = [(each.runtime, each.size, each.batch) for each in found.rows]
    assert keys == [
        (runtime, (side, side), batch) for side in (32, 64) for batch in (1, 3) for runtime in ("eager", "packed int8")
    ]
    for each in found.rows:
        assert each.milliseconds == pytest.approx(20 * len(each.runtime))
        assert each.images_per_second == pytest.approx(1000 * each.batch / each.milliseconds)
        assert (each.start_seconds, each.largest_batch) == (1.5, 40)
        assert each.memory_bytes == (900 if each.runtime == "eager" else 500)  # of a file of its own
        assert each.of_limit is not None
        assert each.of_limit > 0
    assert {each.ratio for each in found.rows if each.runtime == "eager"} == {1.0}
    assert [each.ratio for each in found.rows if each.runtime != "eager"] == pytest.approx([5 / 11] * 4)
    assert all(0 < each.difference < 0.5 for each in found.rows if each.runtime == "packed int8")
    assert found.limits["fp32"] == 100.0
    assert found.to_dict()["rows"][0]["runtime"] == "eager"
    with pytest.raises(InputError, match="no runtime 'packed fp16'"):
        bench(packs.checkpoint(), runtimes=("packed fp16",))
    assert bench_kinds() == (
        *("eager", "packed fp32", "packed bf16", "packed int8", "onnx fp32", "onnx int8"),
        *("openvino fp32", "openvino bf16", "openvino int8"),
    )
