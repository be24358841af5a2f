"""NAME.xml gives the network's own numbers in OpenVINO, in bf16 where it is asked to and can."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
import torch

import vitrail
from exporters.export_infos import Array, contents
from exporters.graph_networks import agree, random_pixels
from shipping import small
from vitrail.errors import InputError
from vitrail.exporters import TARGETS
from vitrail.exporters import onnx as to_onnx
from vitrail.exporters import openvino as to_openvino
from vitrail.exporters.exported import open_exported
from vitrail.exporters.exporter import add_measurements
from vitrail.exporters.openvino import multiplies_bf16
from vitrail.exporters.target import Session
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.range_calibration import calibrate


def test_openvino_gives_the_networks_own_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = small.checkpoint(depth=1, registers=1)
    report = vitrail.export(checkpoint, tmp_path / "a.xml")
    assert report.bytes == sum((tmp_path / name).stat().st_size for name in ("a.xml", "a.bin"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.bin", "a.xml"]
    exported = open_exported(tmp_path / "a.xml", threads=1)
    assert exported.contents.checks == report.checks
    assert exported.about == checkpoint.about
    for batch in (1, 5):
        pixels = random_pixels(batch)
        agree(exported.run(pixels), checkpoint.run(pixels))
    by_itself = openvino.Core().compile_model(str(tmp_path / "a.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    pixels = random_pixels(3)
    agree([by_itself(pixels)["logits"]], checkpoint.run(pixels)[:1])

    said = {"best": {"way": 'packed & "sure"', "rate": 12.5}}
    add_measurements(tmp_path / "a.xml", tmp_path / "c.xml", said)
    noted = open_exported(tmp_path / "c.xml", threads=1)
    assert noted.contents == replace(exported.contents, measurements=said)
    np.testing.assert_array_equal(noted.run(pixels)[0], exported.run(pixels)[0])
    assert not list(tmp_path.glob(".*"))

    monkeypatch.setattr(to_onnx, "fits", lambda graph: False)  # too large for ONNX: converted without it
    vitrail.export(checkpoint, tmp_path / "b.xml")
    agree(open_exported(tmp_path / "b.xml").run(pixels), checkpoint.run(pixels))


@pytest.mark.parametrize("int8", [False, True])
def test_openvino_computes_in_bf16_where_it_is_asked_to_and_can(
    int8: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = small.checkpoint(depth=2)
    pixels = random_pixels(4)
    ranges = calibrate(checkpoint.model, [torch.from_numpy(pixels)]) if int8 else {}
    if not multiplies_bf16():
        with pytest.raises(InputError, match="could not be verified"):
            vitrail.export(checkpoint, tmp_path / "half.xml", plan=QuantPlan("bf16"))
        monkeypatch.setitem(TARGETS, "openvino", replace(TARGETS["openvino"], check=lambda graph, precision: None))
    vitrail.export(checkpoint, tmp_path / "full.xml", plan=QuantPlan("fp32", ranges))
    report = vitrail.export(checkpoint, tmp_path / "half.xml", plan=QuantPlan("bf16", ranges))
    full, half = (open_exported(tmp_path / name) for name in ("full.xml", "half.xml"))
    assert (full.contents.precision, half.contents.precision) == (
        ("int8", "int8+bf16") if int8 else ("float32", "bf16")
    )
    exact, rounded, found = (each.run(pixels)[0] for each in (checkpoint, full, half))
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() < 0.1 * np.abs(exact).max()
    can = multiplies_bf16()
    assert (np.abs(found - rounded).max() > 1e-4 * np.abs(exact).max()) == can
    assert (report.largest_difference > 1e-4) == (can or int8)


MOMENT = 0.2  # seconds: what must not happen is given so long to happen


class OpenVino:
    """As much of OpenVINO as is used: one request, which writes every answer over the one before it."""

    def __init__(self) -> None:
        self.settings: list[dict[str, str]] = []
        self.answers = {"logits": np.zeros(2), "embedding": np.zeros(3)}

    def Core(self) -> OpenVino:  # noqa: N802
        return self

    def set_property(self, _: object) -> None: ...

    def read_model(self, path: str) -> str:
        return path

    def compile_model(self, model: str, device: str, settings: dict[str, str]) -> OpenVino:
        assert (model, device) == ("a.xml", "CPU")
        self.settings.append(settings)
        return self

    def output(self, name: str) -> None:
        assert name in self.answers

    def create_infer_request(self) -> OpenVino:
        return self

    def infer(self, given: dict[str, Array], share_inputs: bool) -> dict[str, Array]:
        for each in self.answers.values():
            each[:] = given["img"].mean()
        return self.answers


@pytest.mark.parametrize("can", [False, True])
def test_openvino_is_asked_as_told(can: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 unless the file asks for bf16 and the processor has it; left alone it would take bf16 for float32."""
    monkeypatch.setattr(to_openvino, "multiplies_bf16", lambda: can)
    runtime = OpenVino()
    for precision, threads in (("float32", 0), ("bf16", 2), ("int8", 3), ("int8+bf16", 0)):
        given = contents(target="openvino", precision=precision)
        to_openvino.start_openvino(runtime, Path("a.xml"), given, Session(threads))
    half = "bf16" if can else "f32"
    assert [each["INFERENCE_PRECISION_HINT"] for each in runtime.settings] == ["f32", half, "f32", half]
    assert [each.get("INFERENCE_NUM_THREADS") for each in runtime.settings] == [None, "2", "3", None]
    assert {each["PERFORMANCE_HINT"] for each in runtime.settings} == {"LATENCY"}


def test_openvino_answers_are_not_written_over() -> None:
    compute = to_openvino.start_openvino(OpenVino(), Path("a.xml"), contents(target="openvino"), Session())
    first = compute(np.full(4, 5.0), ("embedding", "logits"))
    second = compute(np.full(4, 7.0), ("logits",))
    assert [each.tolist() for each in first] == [[5.0] * 3, [5.0] * 2]
    assert [each.tolist() for each in second] == [[7.0] * 2]


def test_openvino_is_asked_by_one_thread_at_a_time() -> None:
    """One request serves one thread: a second one waits for its turn."""
    came = threading.Event()

    class Slow(OpenVino):
        inside = 0

        def infer(self, given: dict[str, Array], share_inputs: bool) -> dict[str, Array]:
            self.inside += 1
            if self.inside > 1:
                came.set()
            came.wait(MOMENT)
            found = super().infer(given, share_inputs)
            self.inside -= 1
            return found

    compute = to_openvino.start_openvino(Slow(), Path("a.xml"), contents(target="openvino"), Session())
    found: dict[float, Any] = {}
    threads = [
        threading.Thread(target=lambda value=value: found.update({value: compute(np.full(4, value), ("logits",))}))
        for value in (1.0, 2.0)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not came.is_set()
    assert {value: each[0].tolist() for value, each in found.items()} == {1.0: [1.0, 1.0], 2.0: [2.0, 2.0]}
