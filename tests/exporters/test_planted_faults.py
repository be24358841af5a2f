"""What a file may not be: a table of faults planted into files of every precision, each refused; and good files taken.

The network is one of two classes whose logits on random pixels are small, which is where a share of them says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import vitrail
from exporters.two_classes import two_fruits
from vitrail.checkpoint import Checkpoint
from vitrail.data.samples import Dataset
from vitrail.errors import CheckpointError
from vitrail.exporters import openvino
from vitrail.exporters.example_inputs import inputs_for
from vitrail.exporters.export_graph import Graph, build_graph
from vitrail.exporters.exporter import prepare
from vitrail.exporters.verification import CheckCase, Run, Tolerance, compare, tolerance
from vitrail.inference import open_model
from vitrail.network import ViT
from vitrail.packed import Packed
from vitrail.quantisation.fake_quant import fake_quantise
from vitrail.quantisation.quant_plan import QuantPlan, Range
from vitrail.quantisation.quantiser import plan_all_int8
from vitrail.quantisation.range_calibration import calibration_pixels
from vitrail.shipping.optimizer import optimize

CASES = [CheckCase(1, (112, 112)), CheckCase(3, (112, 112)), CheckCase(16, (112, 112))]
State = dict[str, torch.Tensor]


class Source(NamedTuple):
    """A network, its images, the same with its channels made even, and its plan for int8."""

    checkpoint: Checkpoint
    images: Dataset
    evened: Checkpoint
    plan: QuantPlan


@pytest.fixture(scope="module")
def source(fixtures: Path) -> Source:
    checkpoint, images = two_fruits(fixtures)
    evened, plan = plan_all_int8(checkpoint, calibration_pixels(checkpoint, images, 32))
    return Source(checkpoint, images, evened, plan)


def swap_classes(state: State) -> None:
    for name in ("head.classify.weight", "head.classify.bias"):
        state[name].copy_(state[name].flip(0).clone())


def shift_bias(state: State) -> None:
    state["head.classify.bias"][0] += 0.5


def zero_head(state: State) -> None:
    state["head.classify.weight"].zero_()


def scale_layer(state: State) -> None:
    state["encoder.blocks.1.mlp.up.weight"].mul_(1.5)


def zero_a_bias_inside(state: State) -> None:
    state["encoder.blocks.0.attention.qkv.bias"].zero_()


def swap_channels(state: State) -> None:
    weight = state["patches.projection.weight"]  # (D, C * P * P)
    weight.copy_(weight.view(len(weight), 3, -1).flip(1).reshape(weight.shape).clone())


FAULTS: dict[str, Callable[[State], None]] = {
    each.__name__: each
    for each in (swap_classes, shift_bias, zero_head, scale_layer, zero_a_bias_inside, swap_channels)
}


def planned(source: Source, precision: str) -> QuantPlan:
    return {"fp32": QuantPlan(), "bf16": QuantPlan("bf16"), "int8": QuantPlan("fp32", source.plan.int8)}[precision]


def other_rounding(plan: QuantPlan) -> QuantPlan:
    """As another runtime rounds: the same ranges, and bytes that fall to other sides."""
    return QuantPlan(
        plan.precision, {name: Range(low * 1.003, high * 1.003) for name, (low, high) in plan.int8.items()}
    )


def graph_of(source: Source, model: ViT) -> Graph:
    return Graph(model, source.checkpoint.about, None).eval()


def judge(source: Source, precision: str, on_images: bool, run: Run) -> Any:
    checkpoint = source.checkpoint if precision != "int8" else source.evened
    exact = build_graph(checkpoint, dynamic_size=False, entrance=None).network
    plan = planned(source, precision)
    int8 = precision == "int8"
    network = graph_of(source, fake_quantise(exact.model, plan)) if int8 else exact
    contents = prepare(checkpoint, "onnx").contents
    within: Tolerance = tolerance(type(contents)(**{**vars(contents), "precision": PRECISIONS[precision]}))
    inputs = inputs_for(checkpoint.preprocess, "float", source.images.images if on_images else None)
    return compare(run, network, inputs, CASES, within, exact if int8 else None)


PRECISIONS = {"fp32": "float32", "bf16": "bf16", "int8": "int8"}


def file_of(source: Source, precision: str, plant: Callable[[State], None] | None = None) -> Run:
    """What a file would answer, with a fault in its weights, rounding in its own way."""
    checkpoint = source.checkpoint if precision != "int8" else source.evened
    model = build_graph(checkpoint, dynamic_size=False, entrance=None).network.model
    state = {name: each.clone() for name, each in model.state_dict().items()}
    if plant is not None:
        plant(state)
    model.load_state_dict(state, assign=True)
    graph = graph_of(source, fake_quantise(model, other_rounding(planned(source, precision))))

    def run(img: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        with torch.inference_mode():
            return [each.numpy() for each in graph(torch.from_numpy(img))]

    return run


@pytest.mark.parametrize("on_images", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_file_is_refused(fault: str, precision: str, on_images: bool, source: Source) -> None:
    with pytest.raises(CheckpointError, match="not exported: on .* the file's .* differ from the network's own by"):
        judge(source, precision, on_images, file_of(source, precision, FAULTS[fault]))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_wrong_head_does_not_hide_behind_the_rounding_before_it(precision: str, source: Source) -> None:
    """A bias that moves logits by less than bf16 may: found, since the head is asked for the file's own embeddings."""

    def shift_a_little(state: State) -> None:
        state["head.classify.bias"][0] += 0.03 if precision == "int8" else 0.15

    with pytest.raises(CheckpointError, match=r"the file's logits( \(given its own embeddings\))? differ") as told:
        judge(source, precision, True, file_of(source, precision, shift_a_little))
    assert ("given its own embeddings" in str(told.value)) == (precision != "fp32")


@pytest.mark.parametrize("on_images", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_file_that_sees_other_pixels_is_refused(precision: str, on_images: bool, source: Source) -> None:
    """Normalised by ImageNet's mean and std instead of its own."""
    right = file_of(source, precision)
    mean, std = (np.reshape(each, (3, 1, 1)) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with pytest.raises(CheckpointError, match="the file's embeddings differ"):
        judge(source, precision, on_images, lambda img: right(((img / 2 + 0.5 - mean) / std).astype(np.float32)))


@pytest.mark.parametrize("on_images", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_good_file_is_taken_however_small_its_logits_are_on_random_pixels(
    precision: str, on_images: bool, source: Source
) -> None:
    checks = judge(source, precision, on_images, file_of(source, precision))
    limit = {"fp32": 1e-4, "bf16": 0.04, "int8": 0.1}[precision]
    assert 0 <= max(each.difference for each in checks) < limit


def test_answers_that_change_where_the_network_is_sure_are_refused(source: Source) -> None:
    """A file that is near in every number may not turn answers; a near tie may fall to the other side."""
    right = file_of(source, "fp32")

    def other_answer(img: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        logits, embedding, _ = right(img)
        turned = logits[:, ::-1].copy()
        return [turned, embedding, torch.from_numpy(turned).softmax(dim=-1).numpy()]

    checkpoint = source.checkpoint
    network = build_graph(checkpoint, dynamic_size=False, entrance=None).network
    inputs = inputs_for(checkpoint.preprocess, "float", source.images.images)
    blind = Tolerance(9.0, 9.0)  # of anything but answers
    with pytest.raises(CheckpointError, match=r"other answers than the network .*: 100 % of its certainty"):
        compare(other_answer, network, inputs, CASES, blind)
    assert compare(right, network, inputs, CASES, blind)


@pytest.mark.parametrize("name, precision", [("a.onnx", "int8"), ("a.xml", "int8"), ("a.xml", "bf16")])
def test_a_network_of_two_classes_is_exported(
    name: str, precision: str, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino, "multiplies_bf16", lambda: True)
    int8 = precision == "int8"
    report = vitrail.export(
        source.evened if int8 else source.checkpoint,
        tmp_path / name,
        plan=source.plan if int8 else QuantPlan("bf16"),
        images=source.images.images if int8 else None,
    )
    assert report.compared_on == ("your images" if int8 else "random pixels")
    assert report.share_of == "typical"
    files = list(source.images.images)
    logits, _ = open_model(tmp_path / name).run(source.checkpoint.preprocess.batch(files))
    assert (logits.argmax(axis=1) == np.arange(80) // 40).mean() >= 0.98


def test_a_network_of_two_classes_is_packed_in_bf16(source: Source) -> None:
    packed = Packed(source.checkpoint, QuantPlan("bf16"))
    assert packed.difference is not None
    if packed.precision == "bf16":
        assert 1e-4 < packed.difference < 0.05


def test_the_search_keeps_its_candidates(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "multiplies_bf16", lambda: True)
    monkeypatch.setattr("vitrail.shipping.candidates.has_bf16_units", lambda: True)
    monkeypatch.setattr("vitrail.shipping.optimizer.TIMED", 4)
    said: list[str] = []
    found = optimize(
        *(source.checkpoint, source.images, tmp_path / "fast"),
        max_drop=2.0,
        batches=(4,),
        merging=False,
        runtimes=("onnx", "openvino"),
        log=said.append,
    )
    assert not [each for each in said if "left out" in each]
    judged = {str(each.way) for each in found.tried}
    assert judged == {"eager fp32", "onnx fp32", "onnx int8", "openvino fp32", "openvino bf16", "openvino int8"}
