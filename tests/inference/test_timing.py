"""What runtimes are timed by, and what is made of the times: by a clock of our own, and by fixed numbers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shipping.packs import checkpoint
from vitrail.errors import VitrailError
from vitrail.inference import timing
from vitrail.inference.timing import interleaved, latencies
from vitrail.insight.cost import estimate
from vitrail.packed.packed_file import save_packed
from vitrail.packed.packed_runtime import Packed
from vitrail.shipping import benchmark as benching
from vitrail.shipping.benchmark import Alone, bench
from vitrail.shipping.peak_flops import rates


class Clock:
    """A clock that goes on only while something is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.order: list[str] = []
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)

    def call(self, name: str, *seconds: float) -> Callable[[], None]:
        """Something that takes so long each time, the last of them over and over."""
        left = list(seconds)

        def run() -> None:
            self.order.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


@pytest.mark.row("P.13")
def test_the_median_of_rounds_counts_and_the_first_call_of_each_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    uneven = clock.call("uneven", 100, 1, *(100, 5), *(100, 1), *(100, 2))
    took = interleaved({"uneven": uneven, "even": clock.call("even", 3)}, rounds=3, least=0.0)
    assert took == {"uneven": 2, "even": 3}
    assert clock.order.count("uneven") == clock.order.count("even") == 2 + 3 * 2


def test_what_is_quick_is_called_until_it_takes_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    took = interleaved({"quick": clock.call("quick", 0.01), "slow": clock.call("slow", 0.5)}, rounds=4, least=0.05)
    assert took == pytest.approx({"quick": 0.01, "slow": 0.5})
    assert clock.order.count("quick") == 2 + 4 * (1 + 5)
    assert clock.order.count("slow") == 2 + 4 * (1 + 1)


def test_turns_are_taken_in_changing_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    interleaved({name: clock.call(name, 1) for name in "abc"}, rounds=7, least=0.0)
    turns = ["".join(clock.order[start : start + 6 : 2]) for start in range(6, len(clock.order), 6)]
    assert len(turns) == 7
    assert all(sorted(each) == ["a", "b", "c"] for each in turns)
    assert len(set(turns)) > 2


def test_latencies_are_milliseconds_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = checkpoint(), []
    right = type(made).run
    monkeypatch.setattr(type(made), "run", lambda self, pixels: (seen.append(pixels.shape), right(self, pixels))[1])

    def fixed(calls: Any, rounds: int) -> dict[str, float]:
        for call in calls.values():
            call()
        return {"a": 0.25} if rounds == 3 else {}

    monkeypatch.setattr(timing, "interleaved", fixed)
    assert latencies({"a": made}, batch=2, rounds=3) == {"a": 250.0}
    assert seen == [(2, 3, 32, 32)]


def test_the_limit_of_a_precision_is_its_fastest_way() -> None:
    seconds = {"fp32 plain": 2.0, "fp32 packed": 1.0, "bf16 plain": 0.5, "bf16 packed": 4.0, "int8 packed": 0.25}
    found = rates(seconds, (100, 200, 300))
    assert found == pytest.approx({"fp32": 0.012, "bf16": 0.024, "int8": 0.048})  # two for each multiply-add


def test_the_table_is_what_the_times_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint()
    gflops = 2 * estimate(made.model.config, (32, 32)).multiply_adds / 1e9
    asked: list[int] = []

    def fixed(calls: Any, rounds: int) -> dict[str, float]:
        asked.append(rounds)
        return {kind: 0.5 if kind == "eager" else 0.125 for kind in calls}

    monkeypatch.setattr(benching, "limits", lambda: {"fp32": 10.0, "bf16": 50.0})
    monkeypatch.setattr(benching, "interleaved", fixed)
    monkeypatch.setattr(benching, "_alone", lambda path, device: Alone(1.5, 7_000, 40 if "whole" in path.name else 80))
    found = bench(made, batches=(1, 4), runtimes=("packed fp32", "packed bf16"), rounds=5)
    assert asked == [5, 5]
    assert [(each.runtime, each.batch) for each in found.rows] == [
        (kind, batch) for batch in (1, 4) for kind in ("eager", "packed fp32", "packed bf16")
    ]
    for each in found.rows:
        seconds = 0.5 if each.runtime == "eager" else 0.125
        limit = 50.0 if each.runtime == "packed bf16" else 10.0
        assert (each.milliseconds, each.ratio) == (1000 * seconds, 0.5 / seconds)
        assert each.images_per_second == each.batch / seconds
        assert each.of_limit == pytest.approx(each.batch * gflops / seconds / limit)
        assert (each.start_seconds, each.memory_bytes) == (1.5, 7_000)
        assert each.largest_batch == (40 if each.runtime == "eager" else 80)
    apart = [each.difference for each in found.rows[:3]]
    assert apart[0] == 0.0
    assert apart[1] < 1e-5 < apart[2] < 0.1


@pytest.mark.parametrize(
    "first, one, several, free, memory, largest",
    [
        (100_000, 90_000, 90_000 + 31 * 5_000, 1_100_000, 100_000, 200),  # 5,000 bytes for each image more
        (100_000, 90_000, 90_000 + 31 * 5_000, 50_000, 100_000, 1),  # no room at all: one is answered
        (100_000, 90_000, 90_000 + 31 * 4_000, 1_100_000, 100_000, None),  # too little to tell
        (0, 0, 0, 1_100_000, None, None),  # a system that does not say
        (100_000, 90_000, 90_000 + 31 * 5_000, 0, 100_000, None),
    ],
)
def test_the_largest_batch_is_what_the_free_memory_holds(
    first: int,
    one: int,
    several: int,
    free: int,
    memory: int | None,
    largest: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = subprocess.CompletedProcess([], 0, f"noise\n{json.dumps([1.5, first, one, several])}\n", "")
    monkeypatch.setattr(benching.subprocess, "run", lambda *given, **options: told)
    monkeypatch.setattr(benching, "_free", lambda: free)
    assert benching._alone(Path("a.onnx"), "cpu") == Alone(1.5, memory, largest)


@pytest.mark.row("P.13")
def test_a_process_of_its_own_answers_and_says_what_it_took(tmp_path: Path) -> None:
    made = checkpoint()
    save_packed(Packed(made), made, tmp_path / "a.safetensors")
    found = benching._alone(tmp_path / "a.safetensors", "cpu")
    assert found.seconds > 0
    assert found.memory is None or 50e6 < found.memory < 5e9


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, why in (("Traceback\nOSError: no such file\n", "OSError: no such file"), ("", "no reason given")):
        told = subprocess.CompletedProcess([], 1, "", said)
        monkeypatch.setattr(benching.subprocess, "run", lambda *given, told=told, **options: told)
        with pytest.raises(VitrailError, match=f"a.onnx could not be opened in a process of its own: {why}"):
            benching._alone(Path("a.onnx"), "cpu")


@pytest.mark.row("P.13")
def test_another_size_is_timed_at_that_size(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[int, ...]] = set()

    def heard(self: Any, pixels: np.ndarray[Any, Any]) -> Any:
        seen.add(pixels.shape)
        return np.ones((len(pixels), 5), np.float32), np.ones((len(pixels), 48), np.float32)

    monkeypatch.setattr("vitrail.checkpoint.Checkpoint.run", heard)
    monkeypatch.setattr(benching, "limits", dict)
    monkeypatch.setattr(benching, "interleaved", lambda calls, rounds: dict.fromkeys(calls, 1.0))
    monkeypatch.setattr(benching, "_alone", lambda path, device: Alone(1.0, None, None))
    found = bench(checkpoint(), batches=(2,), sizes=(64, 48), runtimes=("eager",), rounds=1)
    assert [each.size for each in found.rows] == [(64, 64), (48, 48)]
    assert seen == {(2, 3, 64, 64), (2, 3, 48, 48)}
    assert [each.of_limit for each in found.rows] == [None, None]  # no limit is known
