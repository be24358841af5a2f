"""Exported files: what their graph is given, and how their runtime is asked; with stand-ins, so nothing is exported."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vitrail.errors import CheckpointError, InputError
from vitrail.exporters import openvino
from vitrail.exporters.export_info import ExportInfo
from vitrail.exporters.exported import OUTPUTS, Exported
from vitrail.exporters.mapped_file import mapped
from vitrail.exporters.onnx import start_onnxruntime
from vitrail.exporters.target import Session
from vitrail.images import Preprocess
from vitrail.images.model_info import ModelInfo

Array = np.ndarray[Any, Any]
MOMENT = 0.2  # seconds: what must not happen is given so long to happen


def contents(preprocess: Preprocess | None = None, **changes: Any) -> ExportInfo:
    about = ModelInfo(preprocess or Preprocess(size=(8, 16), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)), ("a", "b"))
    settings = {"about": about, "target": "onnx", "size": (8, 16), "cell": (4, 8), "embedding": 3}
    return ExportInfo(**settings | changes)  # type: ignore[arg-type]


def opened(given: ExportInfo) -> tuple[Exported, list[Array]]:
    """A file whose graph keeps what it is given."""
    seen: list[Array] = []

    def compute(img: Array, outputs: Any) -> list[Array]:
        seen.append(img)
        return [np.zeros((len(img), 2)), np.zeros((len(img), 3))]

    return Exported(Path("a.onnx"), given, compute), seen


VALUES = np.random.default_rng(0).integers(0, 256, (2, 8, 16, 3), np.uint8)


# ---- what the graph is given -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_pixels_go_back_to_the_bytes_they_were_made_of(order: Any) -> None:
    preprocess = Preprocess(size=(8, 16), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), order=order)
    runtime, seen = opened(contents(preprocess, pixels="bytes"))
    runtime.run(preprocess.normalise(VALUES))
    runtime.run_uint8(VALUES)
    assert [each.dtype for each in seen] == [np.uint8] * 2
    assert np.array_equal(seen[0], VALUES)
    assert np.array_equal(seen[1], VALUES)


def test_pixels_that_were_no_bytes_are_refused() -> None:
    runtime, seen = opened(contents(pixels="bytes"))
    pixels = runtime.preprocess.normalise(VALUES)
    for wrong in (pixels + 0.3 / 255, np.where(pixels == pixels.max(), pixels + 9, pixels), pixels * np.nan):
        with pytest.raises(InputError, match="takes 8-bit values, and these pixels are none that were normalised"):
            runtime.run(wrong.astype(np.float32))
    assert seen == []


def test_bytes_are_normalised_for_a_graph_of_pixels() -> None:
    runtime, seen = opened(contents())
    logits, embedding = runtime.run_uint8(VALUES)
    assert np.array_equal(seen[0], runtime.preprocess.normalise(VALUES))
    assert (logits.dtype, embedding.dtype) == (np.float32, np.float32)
    assert seen[0].flags.c_contiguous
    for wrong in (VALUES[0], VALUES[..., :2], VALUES[:0], VALUES.astype(np.int16), [1]):
        with pytest.raises(InputError, match=r"expected (values \(B, H, W, 3\)|8-bit values)"):
            runtime.run_uint8(wrong)  # type: ignore[arg-type]


def test_sides_are_multiples_of_a_patch() -> None:
    fixed, _ = opened(contents())
    free, seen = opened(contents(dynamic_size=True))
    for height, width in ((8, 16), (4, 8), (12, 8), (4, 40)):
        free.run(np.zeros((1, 3, height, width), np.float32))
    assert [each.shape[2:] for each in seen] == [(8, 16), (4, 8), (12, 8), (4, 40)]
    for height, width in ((6, 8), (8, 12), (8, 4), (2, 8), (0, 8)):
        with pytest.raises(InputError, match=f"multiples of 4x8 pixels, got {height}x{width}"):
            free.run(np.zeros((1, 3, height, width), np.float32))
    with pytest.raises(InputError, match="takes images of 8x16 only, got 16x8"):
        fixed.run(np.zeros((1, 3, 16, 8), np.float32))


def test_a_graph_that_resizes_takes_full_images() -> None:
    runtime, seen = opened(contents(pixels="bytes", resize_inside=True))
    whole = np.zeros((1, 51, 37, 3), np.uint8)
    runtime.run_uint8(whole)
    assert np.array_equal(seen[0], whole)
    with pytest.raises(InputError, match="resizes and crops by itself, so it takes whole images"):
        runtime.run(np.zeros((1, 3, 8, 16), np.float32))


# ---- how a runtime is asked --------------------------------------------------------------------------------------


class OnnxRuntime:
    """As much of ONNX Runtime as is used."""

    def __init__(self, inputs: tuple[str, ...] = ("img",), outputs: tuple[str, ...] = ("probs", *OUTPUTS)):
        self.inputs, self.outputs = inputs, outputs
        self.options: list[Any] = []

    def SessionOptions(self) -> SimpleNamespace:  # noqa: N802
        found = SimpleNamespace(entries={})
        found.add_session_config_entry = found.entries.__setitem__
        return found

    def InferenceSession(self, path: str, options: Any, providers: list[str]) -> SimpleNamespace:  # noqa: N802
        self.options.append((path, options.intra_op_num_threads, options.entries, providers))
        return SimpleNamespace(
            get_inputs=lambda: [SimpleNamespace(name=each) for each in self.inputs],
            get_outputs=lambda: [SimpleNamespace(name=each) for each in self.outputs],
            run=lambda names, given: [f"{each} of {given['img']}" for each in names],
        )


def test_onnx_runtime_is_asked_as_told() -> None:
    runtime = OnnxRuntime()
    compute = start_onnxruntime(runtime, Path("a.onnx"), contents(), Session(3))
    start_onnxruntime(runtime, Path("a.onnx"), contents(), Session(few_images=True))
    cpu = ["CPUExecutionProvider"]
    assert runtime.options == [
        ("a.onnx", 3, {}, cpu),
        ("a.onnx", 0, {"session.disable_prepacking": "1"}, cpu),
    ]
    assert compute("x", ("embedding", "logits")) == ["embedding of x", "logits of x"]  # type: ignore[arg-type]
    for wrong in (OnnxRuntime(inputs=("x",)), OnnxRuntime(outputs=("logits",)), OnnxRuntime(outputs=("embedding",))):
        with pytest.raises(CheckpointError, match="expected the input img and outputs logits and embedding, got"):
            start_onnxruntime(wrong, Path("a.onnx"), contents(), Session())


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
    monkeypatch.setattr(openvino, "multiplies_bf16", lambda: can)
    runtime = OpenVino()
    for precision, threads in (("float32", 0), ("bf16", 2), ("int8", 3), ("int8+bf16", 0)):
        given = contents(target="openvino", precision=precision)
        openvino.start_openvino(runtime, Path("a.xml"), given, Session(threads))
    half = "bf16" if can else "f32"
    assert [each["INFERENCE_PRECISION_HINT"] for each in runtime.settings] == ["f32", half, "f32", half]
    assert [each.get("INFERENCE_NUM_THREADS") for each in runtime.settings] == [None, "2", "3", None]
    assert {each["PERFORMANCE_HINT"] for each in runtime.settings} == {"LATENCY"}


def test_openvino_answers_are_not_written_over() -> None:
    compute = openvino.start_openvino(OpenVino(), Path("a.xml"), contents(target="openvino"), Session())
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

    compute = openvino.start_openvino(Slow(), Path("a.xml"), contents(target="openvino"), Session())
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


# ---- files -------------------------------------------------------------------------------------------------------


@pytest.mark.fault("W16")
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """Written over in place, made longer, or exchanged for another."""
    path = tmp_path / "a.onnx"

    def anew() -> None:
        path.write_bytes(b"one")
        os.utime(path, ns=(0, 1_000_000_000))

    def over() -> None:
        path.write_bytes(b"two")
        os.utime(path, ns=(0, 2_000_000_000))

    def longer() -> None:
        path.write_bytes(b"longer")
        os.utime(path, ns=(0, 1_000_000_000))

    def exchanged() -> None:
        (tmp_path / "b").write_bytes(b"two")
        os.utime(tmp_path / "b", ns=(0, 1_000_000_000))
        os.replace(tmp_path / "b", path)

    anew()
    with mapped(path) as data:
        assert bytes(data) == b"one"
    for change in (over, longer, exchanged):
        anew()
        with pytest.raises(CheckpointError, match="was changed while being read"), mapped(path):
            change()
