"""What optimize and bench try follows from the table of targets: a new one is tried without a word here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from shipping.packs import checkpoint
from vitrail.errors import InputError
from vitrail.exporters import TARGETS
from vitrail.shipping import candidates, optimizer
from vitrail.shipping.benchmark import bench
from vitrail.shipping.candidates import bench_kinds, precisions_here, precisions_of, runtime_names
from vitrail.shipping.optimizer import Way, optimize
from vitrail.shipping.search_plot import OTHER, _legend


def test_runtimes_are_packed_and_the_targets_that_open() -> None:
    assert runtime_names() == ("packed", "onnx", "openvino")  # NAME.pt2 is written, not opened
    assert (precisions_of("packed"), precisions_of("onnx")) == (("fp32", "bf16", "int8"), ("fp32", "int8"))


@pytest.mark.parametrize("units", [True, False])
def test_bf16_is_tried_where_the_processor_multiplies_it(units: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "has_bf16_units", lambda: units)
    assert precisions_here() == (("fp32", "bf16", "int8") if units else ("fp32", "int8"))


def test_a_new_target_is_tried_by_both(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = replace(TARGETS["onnx"], name="toy", suffix=".toy", precisions=("fp32",))
    monkeypatch.setitem(TARGETS, "toy", toy)
    assert runtime_names()[-1] == "toy"
    assert bench_kinds()[-1] == "toy fp32"
    assert optimizer._name(Path("fast.toy"), Way("toy", "fp32")) == Path("fast.toy")
    assert optimizer._name(Path("fast.toy"), Way("packed", "fp32")) == Path("fast.safetensors")
    assert next(each.colour for each in _legend([Way("toy", "fp32")])) == OTHER
    with pytest.raises(InputError, match="runtimes: expected some of packed, onnx, openvino, toy, got"):
        optimize(checkpoint(), SimpleNamespace(), "a", runtimes=("torch",))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no runtime 'toy int8': .*toy fp32"):
        bench(checkpoint(), runtimes=("toy int8",))
