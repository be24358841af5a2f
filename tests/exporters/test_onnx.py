"""NAME.onnx gives the network's own numbers in ONNX Runtime, and carries all that its use needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import vitrail
from exporters.export_infos import contents
from exporters.graph_networks import NETWORKS, agree, random_pixels
from shipping import small
from vitrail.errors import CheckpointError, InputError
from vitrail.exporters import onnx as to_onnx
from vitrail.exporters.exported import OUTPUTS, open_exported
from vitrail.exporters.exporter import add_measurements
from vitrail.exporters.onnx import start_onnxruntime
from vitrail.exporters.target import Session
from vitrail.network import ResNetStem, Rotary

FIXED: dict[str, dict[str, Any]] = {
    "hybrid": {"stem": ResNetStem(()), "patch_size": 2, "representation_width": 12, "activation": "quick_gelu"},
    "merging": {"depth": 2, "merge_per_block": 3, "rotary": Rotary("axial"), "pool": "mean", "activation": "gelu_tanh"},
    "no head": {"classes": 0, "norm": "batch", "axial": True, "embedding_norm": True, "final_norm": "none"},
}


@pytest.mark.row("4.TRT")
def test_onnx_of_any_size_gives_the_networks_own_numbers(tmp_path: Path) -> None:
    checkpoint = small.checkpoint(**NETWORKS["dino"])
    report = vitrail.export(checkpoint, tmp_path / "a.onnx", dynamic_size=True)
    assert report.inputs == {"img": "float32 (batch, 3, height, width)"}
    assert len({check.batch for check in report.checks}) >= 3
    sizes = {(check.height, check.width) for check in report.checks}
    assert len(sizes) == 3
    assert any(h != w for h, w in sizes)
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"), providers=["CPUExecutionProvider"])
    for batch, height, width in ((1, 32, 32), (2, 8, 48), (5, 64, 24)):  # none but the first was checked on the way
        pixels = random_pixels(batch, height, width)
        agree(session.run(["logits", "embedding"], {"img": pixels}), checkpoint.run(pixels))


@pytest.mark.parametrize("name", [*FIXED, "distilled", "attention pool"])
def test_onnx_of_one_size_gives_the_networks_own_numbers(name: str, tmp_path: Path) -> None:
    checkpoint = small.checkpoint(**(FIXED | NETWORKS)[name])
    report = vitrail.export(checkpoint, tmp_path / "a.onnx")
    assert report.outputs == (("logits", "embedding") if name == "no head" else ("logits", "embedding", "probs"))
    exported = open_exported(tmp_path / "a.onnx")
    for batch in (1, 7):
        pixels = random_pixels(batch)
        agree(exported.run(pixels), checkpoint.run(pixels))


@pytest.mark.row("DL.6")
def test_onnx_has_img_probs_and_a_free_batch(tmp_path: Path) -> None:
    cut = vitrail.prune_heads(small.checkpoint().model, {0: [1, 2]})
    checkpoint = replace(small.checkpoint(), model=cut)
    vitrail.export(checkpoint, tmp_path / "a.onnx")
    model = onnx.load(tmp_path / "a.onnx")
    onnx.checker.check_model(model)
    [img] = model.graph.input
    sides = [side.dim_param or side.dim_value for side in img.type.tensor_type.shape.dim]
    assert (img.name, sides) == ("img", ["batch", 3, 32, 32])
    assert [each.name for each in model.graph.output] == ["logits", "embedding", "probs"]
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"), providers=["CPUExecutionProvider"])
    for batch in (1, 4):
        pixels = random_pixels(batch)
        expected = torch.softmax(checkpoint.model(torch.from_numpy(pixels)) / 1.7, dim=1).detach().numpy()
        agree(session.run(["probs"], {"img": pixels}), [expected])
    said = [entry.value for entry in model.metadata_props if entry.key == "vitrail"]
    description = json.loads(said[0])
    assert description["about"] == checkpoint.about.to_dict()
    assert vitrail.ViTConfig.from_dict(description["config"]) == cut.config
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    for name in ("patches.projection", "encoder.blocks.0.attention.qkv", "encoder.blocks.0.mlp.up"):
        weight = cut.get_submodule(name).weight.detach().numpy()  # type: ignore[union-attr, operator]
        np.testing.assert_array_equal(stored[f"{name}.weight"].T, weight)
    assert "File " not in str(model.graph)  # where in the source a node comes from is nobody's business


def test_notes_of_an_onnx_file_take_the_place_of_older_ones(tmp_path: Path) -> None:
    vitrail.export(small.checkpoint(), tmp_path / "a.onnx")
    for source, out, score in (("a", "b", 0.25), ("b", "c", 0.75)):
        add_measurements(tmp_path / f"{source}.onnx", tmp_path / f"{out}.onnx", {"top1": score})
        assert open_exported(tmp_path / f"{out}.onnx").contents.measurements == {"top1": score}
    first, second = (onnx.load(tmp_path / name) for name in ("b.onnx", "c.onnx"))
    assert [each.key for each in second.metadata_props] == [each.key for each in first.metadata_props]
    assert second.graph == first.graph
    assert (tmp_path / "c.onnx").stat().st_size == (tmp_path / "b.onnx").stat().st_size


def test_more_than_one_file_can_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_onnx, "LARGEST", 1000)
    with pytest.raises(InputError, match="at most 1,000: export NAME.xml"):
        vitrail.export(small.checkpoint(), tmp_path / "a.onnx")


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
