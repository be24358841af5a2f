"""Packed networks asked by each thread: the same answers, by threads that work alone, and a process that ends well."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from shipping.packs import checkpoint, make_images
from vitrail.inference import batches as passes_module
from vitrail.packed import packed_runtime as packed
from vitrail.packed.packed_runtime import Packed
from vitrail.packed.packing import Plan

UNFINISHED = """
import sys
import threading
from shipping.test_lone import files
from shipping.packs import checkpoint
from vitrail.inference import ahead, passes, predictions
from vitrail.packed.packed_runtime import Packed

count, taken, patience = map(int, sys.argv[1:])
passes._cores = lambda: 2
ahead.PATIENCE = patience


def stream(count):
    yield from files(count)
    threading.Event().wait()  # for ever


runtime = Packed(checkpoint(image_size=64, width=192, depth=12))
found = predictions(runtime, stream(count), batch=16)
for _ in range(taken):
    next(found)
sys.exit(7)
"""


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(passes_module, "_cores", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def files(count: int) -> list[bytes]:
    made = []
    for values in make_images(count):
        file = io.BytesIO()
        Image.fromarray(values).save(file, "PNG")
        made.append(file.getvalue())
    return made


@pytest.mark.parametrize("plan", [Plan(), Plan("bf16"), Plan("bf16", clear=3.0, again="fp32")], ids=str)
def test_the_same_answers_by_threads_that_work_alone(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, images = Packed(checkpoint(), plan), files(40)
    together = vitrail.predict(runtime, images, threads=1)
    asked: list[tuple[bool, int]] = []
    right = Packed.run_bytes

    def spy(self: Packed, values: Any) -> Any:
        asked.append((threading.current_thread() is threading.main_thread(), torch.get_num_threads()))
        return right(self, values)

    monkeypatch.setattr(Packed, "run_bytes", spy)
    each = vitrail.predict(runtime, images, threads=2)
    assert asked == [(False, 1)] * 5
    assert [one.path for one in each] == [one.path for one in together]
    for one, other in zip(each, together, strict=True):
        found, expected = (dict(zip(it.labels, it.probabilities, strict=True)) for it in (one, other))
        within = 0.02 if plan.precision == "bf16" else 1e-5
        assert np.allclose([found[name] for name in expected], list(expected.values()), rtol=0, atol=within)
    assert torch.get_num_threads() == 2


def test_not_where_it_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Packed(checkpoint()).alone is not None
    torch.set_num_threads(1)
    assert Packed(checkpoint()).alone is None  # whoever said one thread meant it
    torch.set_num_threads(2)
    monkeypatch.setattr(packed, "possible", lambda plan: (None, ("nothing is packed",)))
    assert Packed(checkpoint()).alone is None  # modules that change their mode while they answer


@pytest.mark.parametrize(
    "count, taken, patience",
    [
        pytest.param(400, 1, 300, id="while they are read"),  # however slow the machine, what is begun is finished
        pytest.param(17, 16, 1, id="while one is waited for"),  # for which nobody computes any more
    ],
)
def test_a_process_ends_well_with_a_stream_left_open(count: int, taken: int, patience: int) -> None:
    command = [sys.executable, "-c", UNFINISHED, *map(str, (count, taken, patience))]
    tests = Path(__file__).resolve().parents[1]
    ran = subprocess.run(command, cwd=tests, capture_output=True, text=True, timeout=600)
    assert (ran.returncode, ran.stderr) == (7, "")
