"""Exported files give the network's own numbers in their own runtimes, and carry all that their use needs."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import torch

import vitrail
from shipping import small
from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError, ConfigError, InputError
from vitrail.exporters import TARGETS, target_of, torch_program
from vitrail.exporters import onnx as to_onnx
from vitrail.exporters import verification as checking
from vitrail.exporters.export_graph import build_graph
from vitrail.exporters.exported import Exported, open_exported, read_exported, start_exported
from vitrail.exporters.exporter import ExportReport, add_measurements
from vitrail.exporters.openvino import multiplies_bf16
from vitrail.images import Preprocess
from vitrail.network import ConvStem, Positions, Resample, ResNetStem, Rotary
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.range_calibration import calibrate

# Several parts in each, so that all are covered by few exports.
DINO = Positions(resample=Resample("bicubic", antialias=False, offset=0.1))
NETWORKS: dict[str, dict[str, Any]] = {
    "dino": {"rotary": Rotary("dinov3"), "positions": DINO, "registers": 2, "qk_norm": True, "layer_scale": 0.1},
    "distilled": {
        "pool": "cls+distillation",
        "distillation_token": True,
        "positions": Positions("sincos-2d-moco"),
        "rotary": Rotary("mixed"),
        "mlp": "swiglu",
        "activation": "silu",
        "parallel": True,
    },
    "attention pool": {
        "pool": "map",
        "cls_token": False,
        "stem": ConvStem((8, 16)),
        "patch_size": 2,
        "positions": Positions("learned-2d", at="every"),
        "rotary": Rotary("axial"),
        "qkv_bias": "no-key",
    },
}
FIXED: dict[str, dict[str, Any]] = {
    "hybrid": {"stem": ResNetStem(()), "patch_size": 2, "representation_width": 12, "activation": "quick_gelu"},
    "merging": {"depth": 2, "merge_per_block": 3, "rotary": Rotary("axial"), "pool": "mean", "activation": "gelu_tanh"},
    "no head": {"classes": 0, "norm": "batch", "axial": True, "embedding_norm": True, "final_norm": "none"},
}


def random_pixels(batch: int, height: int = 32, width: int = 32) -> np.ndarray[Any, Any]:
    return torch.randn(batch, 3, height, width).numpy()


def agree(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(np.abs(b).max(), 1e-6))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_of_any_size_gives_the_networks_own_numbers(name: str) -> None:
    checkpoint = small.checkpoint(**NETWORKS[name])
    graph = build_graph(checkpoint, dynamic_size=True, entrance=None).graph
    for batch, height, width in ((1, 32, 32), (2, 8, 48), (5, 64, 24)):
        pixels = random_pixels(batch, height, width)
        logits, embedding, _ = graph(torch.from_numpy(pixels))
        agree([logits, embedding], checkpoint.run(pixels))


def test_offsets_are_left_out_on_the_whole_grid_alone() -> None:
    """A table is resampled with its offset as soon as one side is another."""
    checkpoint = small.checkpoint(positions=DINO)
    graph = build_graph(checkpoint, dynamic_size=True, entrance=None).graph
    for height, width in ((32, 32), (32, 48), (48, 32)):
        pixels = random_pixels(1, height, width)
        agree(graph(torch.from_numpy(pixels))[:2], checkpoint.run(pixels))


def test_relative_keys_of_any_grid_are_the_networks_own() -> None:
    checkpoint = small.checkpoint(positions=Positions("relative"), pool="mean", cls_token=False)
    graph = build_graph(checkpoint, dynamic_size=True, entrance=None).graph
    for height, width in ((32, 32), (24, 56), (64, 8)):
        pixels = random_pixels(2, height, width)
        agree(graph(torch.from_numpy(pixels))[:2], checkpoint.run(pixels))


def test_the_graph_gives_probabilities_as_the_checkpoint_does() -> None:
    one = small.checkpoint()
    several = replace(one, task="multi-label", temperature=None, reject=None, thresholds=(0.5,) * 5)
    pixels = torch.randn(3, 3, 32, 32)
    for checkpoint, expected in (
        (one, lambda logits: (logits / 1.7).softmax(dim=1)),
        (several, lambda logits: logits.sigmoid()),
    ):
        logits, _, probs = build_graph(checkpoint, dynamic_size=False, entrance=None).graph(pixels)
        torch.testing.assert_close(probs, expected(logits), rtol=0, atol=1e-6)


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


def test_several_labels_half_precision_and_silence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    plain = small.checkpoint(depth=1)
    checkpoint = Checkpoint(
        plain.model.bfloat16(), plain.preprocess, plain.classes, task="multi-label", thresholds=(0.5,) * 5
    )
    vitrail.export(checkpoint, tmp_path / "a.onnx")
    assert capfd.readouterr() == ("", "")
    assert [str(each.message) for each in recwarn] == []
    pixels = random_pixels(2)
    network = small.checkpoint(depth=1).model
    network.load_state_dict(plain.model.state_dict())  # the rounded weights, in float32
    expected = network(torch.from_numpy(pixels)).sigmoid().detach().numpy()
    exported = open_exported(tmp_path / "a.onnx")
    agree(exported.compute(pixels, ["probs"]), [expected])
    assert (exported.task, exported.thresholds) == ("multi-label", (0.5,) * 5)


class Whole(NamedTuple):
    """A file that takes whole images, and what it was made from."""

    checkpoint: Checkpoint
    report: ExportReport


@pytest.fixture(scope="module")
def cropping(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return export_whole(Preprocess(size=32, crop=0.8, order="BGR", mean=0.4, std=0.3), tmp_path_factory.mktemp("whole"))


def export_whole(preprocess: Preprocess, folder: Path) -> Whole:
    checkpoint = small.checkpoint(preprocess)
    report = vitrail.export(checkpoint, folder / "whole.onnx", pixels="bytes", resize_inside=True)
    return Whole(checkpoint, report)


def test_bytes_and_whole_images_go_in(cropping: Whole, tmp_path: Path) -> None:
    checkpoint = cropping.checkpoint
    report = vitrail.export(checkpoint, tmp_path / "bytes.onnx", pixels="bytes")
    assert report.inputs == {"img": "uint8 (batch, 32, 32, 3)"}
    exported = open_exported(tmp_path / "bytes.onnx")
    images = np.random.default_rng(0).integers(0, 256, (3, 60, 45, 3), np.uint8)
    pixels = np.stack([checkpoint.preprocess(each) for each in images])
    seen = np.stack([np.asarray(checkpoint.preprocess.visible_image(each)) for each in images])
    agree(exported.run_uint8(seen), checkpoint.run(pixels))
    agree(exported.run(pixels), checkpoint.run(pixels))
    with pytest.raises(InputError, match="8-bit values"):
        exported.run(pixels + 0.001)
    assert vitrail.predict(exported, list(images))[0].labels == vitrail.predict(checkpoint, list(images))[0].labels

    assert cropping.report.pixels is not None
    assert cropping.report.pixels.largest <= 1.01
    whole = open_exported(cropping.report.out)
    for a, b in zip(whole.run_uint8(images), checkpoint.run(pixels), strict=True):
        assert np.abs(a - b).max() < 0.01 * np.abs(b).max()  # a step of 8 bits here and there
    with pytest.raises(InputError, match="whole images"):
        whole.run(pixels)


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


def test_a_precision_that_nobody_wrote_is_refused(tmp_path: Path) -> None:
    vitrail.export(small.checkpoint(depth=1), tmp_path / "a.xml")
    with pytest.raises(ConfigError, match="precision"):
        replace(open_exported(tmp_path / "a.xml").contents, precision="int4")
    with pytest.raises(InputError, match=r"bf16 goes into NAME\.xml, or a packed .*, not into NAME\.onnx"):
        vitrail.export(small.checkpoint(depth=1), tmp_path / "a.onnx", plan=QuantPlan("bf16"))


def test_torch_export_gives_the_networks_own_numbers(tmp_path: Path) -> None:
    changes = {"positions": Positions("relative"), "pool": "mean", "cls_token": False, "qkv_bias": "none"}
    checkpoint = small.checkpoint(**changes)
    report = vitrail.export(checkpoint, tmp_path / "a.pt2", dynamic_size=True)
    extra = {"vitrail.json": ""}
    program = torch.export.load(tmp_path / "a.pt2", extra_files=extra)
    assert json.loads(extra["vitrail.json"])["about"] == checkpoint.about.to_dict()
    assert read_exported(tmp_path / "a.pt2").checks == report.checks
    module = program.module()
    for size in ((4, 32, 32), (1, 24, 56)):
        pixels = random_pixels(*size)
        logits, embedding, _ = module(torch.from_numpy(pixels))
        agree([logits.detach().numpy(), embedding.detach().numpy()], checkpoint.run(pixels))


def test_a_torch_file_names_nothing_of_this_machine(tmp_path: Path) -> None:
    vitrail.export(small.checkpoint(), tmp_path / "a.pt2", dynamic_size=True)
    with zipfile.ZipFile(tmp_path / "a.pt2") as archive:
        graph = json.loads(archive.read(torch_program.FOLDER + torch_program.GRAPH))
        assert archive.read(torch_program.FOLDER + torch_program.EXAMPLES) == b""
    assert graph["guards_code"] == []  # of the size it was traced at, which are many
    assert {json.dumps(node["metadata"]) for node in graph["graph_module"]["graph"]["nodes"]} == {"{}"}
    assert ".py" not in json.dumps(graph)


def test_notes_of_an_onnx_file_take_the_place_of_older_ones(tmp_path: Path) -> None:
    vitrail.export(small.checkpoint(), tmp_path / "a.onnx")
    for source, out, score in (("a", "b", 0.25), ("b", "c", 0.75)):
        add_measurements(tmp_path / f"{source}.onnx", tmp_path / f"{out}.onnx", {"top1": score})
        assert open_exported(tmp_path / f"{out}.onnx").contents.measurements == {"top1": score}
    first, second = (onnx.load(tmp_path / name) for name in ("b.onnx", "c.onnx"))
    assert [each.key for each in second.metadata_props] == [each.key for each in first.metadata_props]
    assert second.graph == first.graph
    assert (tmp_path / "c.onnx").stat().st_size == (tmp_path / "b.onnx").stat().st_size


def test_a_file_that_differs_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = small.checkpoint()
    (tmp_path / "a.pt2").write_bytes(b"older")
    monkeypatch.setattr(checking, "TOLERANCE", -1.0)
    with pytest.raises(CheckpointError, match="away from the network's own"):
        vitrail.export(checkpoint, tmp_path / "a.pt2")
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt2"]
    assert (tmp_path / "a.pt2").read_bytes() == b"older"


@pytest.mark.parametrize("name", ["a.onnx", "a.xml", "a.pt2"])
def test_what_is_measured_of_a_file_is_written_into_it(name: str, tmp_path: Path) -> None:
    checkpoint, pixels = small.checkpoint(), random_pixels(2)
    seen: list[Any] = []

    def measure(opened: Exported) -> dict[str, Any]:
        assert opened.path.name != name  # it has no name of its own yet
        assert not (tmp_path / name).exists()
        seen.append(opened.run(pixels)[0])
        return {"mean": float(seen[0].mean()), "nested": {"list": [1, 2]}}

    report = vitrail.export(checkpoint, tmp_path / name, measure=measure)
    opened = start_exported(tmp_path / name, target_of(name) or TARGETS["onnx"])
    assert opened.contents.measurements == {"mean": float(seen[0].mean()), "nested": {"list": [1, 2]}}
    assert opened.contents.checks == report.checks
    np.testing.assert_allclose(opened.run(pixels)[0], seen[0], atol=1e-6)  # notes change no answer


def test_a_file_whose_measure_is_refused_is_not_left_behind(tmp_path: Path) -> None:
    (tmp_path / "a.pt2").write_bytes(b"older")

    def refuse(opened: Exported) -> dict[str, Any]:
        assert len(list(tmp_path.iterdir())) == 2
        raise InputError(f"{opened.contents.target} is not good enough")

    with pytest.raises(InputError, match="torch is not good enough"):
        vitrail.export(small.checkpoint(), tmp_path / "a.pt2", measure=refuse)
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt2"]
    assert (tmp_path / "a.pt2").read_bytes() == b"older"


def test_the_comparison_finds_drift_shapes_and_values_that_are_none() -> None:
    ours = np.array([[1.0, -4.0]])
    assert checking.difference(ours, ours) == 0.0
    assert checking.difference(ours, np.array([[1.0, -4.4]])) == pytest.approx(0.1)
    assert checking.difference(ours, np.array([[1.0, np.nan]])) == np.inf
    assert checking.difference(ours, np.array([1.0, -4.0])) == np.inf


@pytest.mark.parametrize(
    "changes, name, options, words",
    [
        ({}, "a.bin", {}, "expected NAME.onnx, NAME.xml or NAME.pt2"),
        ({}, "a.onnx", {"to": "openvino"}, "is called NAME.xml"),
        ({}, "a.onnx", {"to": "tflite"}, "'tflite' is unknown"),
        ({}, "a.onnx", {"resize_inside": True}, "pixels='bytes'"),
        ({"fixed_size": True}, "a.onnx", {"dynamic_size": True}, "refuses other sizes"),
        ({"merge_per_block": 2}, "a.onnx", {"dynamic_size": True}, "token merging"),
        ({"pool": "none"}, "a.onnx", {}, "no pool"),
    ],
)
def test_what_cannot_be_exported_is_refused_at_once(
    changes: dict[str, Any], name: str, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        vitrail.export(small.checkpoint(**changes), tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


def test_more_than_one_file_can_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_onnx, "LARGEST", 1000)
    with pytest.raises(InputError, match="at most 1,000: export NAME.xml"):
        vitrail.export(small.checkpoint(), tmp_path / "a.onnx")


@pytest.mark.parametrize("way", ["crop", "squash"])
def test_predict_gives_whole_images_to_a_file_that_resizes(way: str, cropping: Whole, tmp_path: Path) -> None:
    squash = Preprocess(size=32, resize="squash", crop=1.0)
    checkpoint, report = cropping if way == "crop" else export_whole(squash, tmp_path)
    dice = np.random.default_rng(0)
    shapes = ((50, 71), (90, 40), (33, 33))
    images = [dice.integers(0, 256, (*shape, 3)).astype(np.uint8) for shape in shapes]
    found = vitrail.predict(report.out, images, top=2)
    expected = vitrail.predict(checkpoint, images, top=2)
    assert [each.labels for each in found] == [each.labels for each in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=2e-3)
