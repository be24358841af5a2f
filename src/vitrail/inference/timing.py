"""How long runtimes take, side by side: in turn, in random order, after warm-up; the median of rounds."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from vitrail.inference.runtime import Runtime

Key = TypeVar("Key")


def interleaved(calls: Mapping[Key, Callable[[], object]], rounds: int = 7, least: float = 0.05) -> dict[Key, float]:
    """Seconds a call: each comes once a round, untimed first, then for at least `least` seconds."""
    repeats: dict[Key, int] = {}
    for key, call in calls.items():
        call()
        started = time.perf_counter()
        call()
        repeats[key] = max(1, round(least / max(time.perf_counter() - started, 1e-9)))
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    dice = random.Random(0)
    for _ in range(rounds):
        for key in dice.sample(list(calls), len(calls)):
            calls[key]()
            started = time.perf_counter()
            for _ in range(repeats[key]):
                calls[key]()
            seconds[key].append((time.perf_counter() - started) / repeats[key])
    return {key: statistics.median(each) for key, each in seconds.items()}


def latencies(runtimes: Mapping[Key, Runtime], batch: int = 1, rounds: int = 7) -> dict[Key, float]:
    """Milliseconds of one pass of random pixels through each runtime, or 8-bit values if it takes them; in turn."""
    took = interleaved({key: _call(each, batch) for key, each in runtimes.items()}, rounds)
    return {key: 1000 * each for key, each in took.items()}


def _call(runtime: Runtime, batch: int) -> Callable[[], object]:
    dice, wanted = np.random.default_rng(0), runtime.preprocess
    if runtime.takes != "pixels":
        values = dice.integers(0, 256, (batch, *wanted.size, wanted.channels), np.uint8)
        return lambda: runtime.run_uint8(values)
    pixels = dice.standard_normal((batch, wanted.channels, *wanted.size), np.float32)
    return lambda: runtime.run(pixels)
