"""Exported files give the network's own numbers in their own runtimes, and carry all that their use needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import vitrail
from exporters.graph_networks import agree, random_pixels
from shipping import small
from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError, ConfigError, InputError
from vitrail.exporters import TARGETS, target_of
from vitrail.exporters import verification as checking
from vitrail.exporters.exported import Exported, open_exported, start_exported
from vitrail.exporters.exporter import ExportReport
from vitrail.images import Preprocess
from vitrail.quantisation.quant_plan import QuantPlan


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


def test_a_precision_that_nobody_wrote_is_refused(tmp_path: Path) -> None:
    vitrail.export(small.checkpoint(depth=1), tmp_path / "a.xml")
    with pytest.raises(ConfigError, match="precision"):
        replace(open_exported(tmp_path / "a.xml").contents, precision="int4")
    with pytest.raises(InputError, match=r"bf16 goes into NAME\.xml, or a packed .*, not into NAME\.onnx"):
        vitrail.export(small.checkpoint(depth=1), tmp_path / "a.onnx", plan=QuantPlan("bf16"))


def test_a_file_that_differs_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = small.checkpoint()
    (tmp_path / "a.pt2").write_bytes(b"older")
    monkeypatch.setattr(checking, "TOLERANCE", -1.0)
    with pytest.raises(CheckpointError, match="differ from the network's own by"):
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
