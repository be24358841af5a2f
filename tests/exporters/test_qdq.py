"""int8 by explicit nodes: what ONNX Runtime computes is what rounding inputs and weights by hand gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from shipping import small
from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError, InputError
from vitrail.exporters import onnx as to_onnx
from vitrail.exporters.example_inputs import ExampleInputs
from vitrail.exporters.exported import open_exported
from vitrail.exporters.exporter import Prepared, _rounding, prepare, trace
from vitrail.exporters.qdq import int8_weight, layers_of, quantised
from vitrail.exporters.verification import CheckCase, Run, compare, tolerance
from vitrail.quantisation.fake_quant import fake_quantise
from vitrail.quantisation.quant_plan import QuantPlan

CHANGES: dict[str, Any] = {"width": 64, "mlp_width": 256, "depth": 2, "heads": 2}


@pytest.fixture(scope="module")
def source() -> Checkpoint:
    return small.checkpoint(**CHANGES)


@pytest.fixture(scope="module")
def ready(source: Checkpoint) -> Prepared:
    return prepare(source, "onnx")


@pytest.fixture(scope="module")
def model(ready: Prepared) -> Any:
    return to_onnx.onnx_model(ready.graph, trace(ready.graph, ready.contents), to_onnx.FREE)


@torch.no_grad()
def ranges_of(source: Checkpoint, pixels: Tensor) -> dict[str, tuple[float, float]]:
    """The least and the largest value that goes into every linear layer."""
    seen: dict[str, tuple[float, float]] = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda _, given, name=name: seen.update({name: (float(given[0].min()), float(given[0].max()))})
        )
        for name, module in source.model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    source.model(pixels)
    for hook in hooks:
        hook.remove()
    return seen


def rounded_by_hand(x: Tensor, low: float, high: float, symmetric: bool) -> Tensor:
    if symmetric:
        scale = torch.tensor(max(abs(low), abs(high)) / 127)
        return (x / scale).round().clamp(-128, 127) * scale
    low, high = min(low, 0.0), max(high, 0.0)
    scale = torch.tensor((high - low) / 255)
    zero = round(-low / float(scale))
    return ((x / scale).round() + zero).clamp(0, 255).sub(zero) * scale


@torch.no_grad()
def by_hand(ranges: dict[str, tuple[float, float]], pixels: Tensor, symmetric: bool) -> Tensor:
    """The network with the inputs and weights of its layers rounded."""
    network = small.checkpoint(**CHANGES).model
    for name, (low, high) in ranges.items():
        layer = network.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        scale = layer.weight.abs().amax(dim=1, keepdim=True) / 127
        layer.weight.copy_((layer.weight / scale).round() * scale)
        layer.register_forward_pre_hook(
            lambda _, given, low=low, high=high: (rounded_by_hand(given[0], low, high, symmetric),)
        )
    return network(pixels)  # type: ignore[no-any-return]


@pytest.mark.row("DL.7")
@pytest.mark.parametrize("symmetric", [False, True])
def test_int8_is_what_rounding_by_hand_gives(
    symmetric: bool, source: Checkpoint, ready: Prepared, model: Any, tmp_path: Path
) -> None:
    pixels = torch.randn(4, 3, 32, 32)
    ranges = ranges_of(source, pixels)
    assert set(ranges) == set(layers_of(model))
    found = quantised(model, ranges, symmetric=symmetric)
    onnx.checker.check_model(found)
    kinds = {each.name: each.data_type for each in found.graph.initializer}
    for name in ranges:
        assert kinds[f"{name}.weight"] == onnx.TensorProto.INT8
        zero = onnx.TensorProto.INT8 if symmetric else onnx.TensorProto.UINT8
        assert {kind for each, kind in kinds.items() if each.endswith("input_rounded.zero")} == {zero}
    assert found.ByteSize() < 0.4 * model.ByteSize()

    path = tmp_path / "int8.onnx"
    to_onnx.write_onnx(found, replace(ready.contents, precision="int8"), path)
    exported = open_exported(path)
    assert exported.contents.precision == "int8"
    logits, _ = exported.run(pixels.numpy())
    expected = by_hand(ranges, pixels, symmetric).numpy()
    plain, _ = source.run(pixels.numpy())
    scale = np.abs(expected).max()
    # A value near a half may be rounded the other way, by sums in another order: far less than rounding itself does.
    assert np.abs(logits - expected).max() < 0.01 * scale
    assert np.abs(logits - expected).max() < 0.3 * np.abs(plain - expected).max()


def test_some_layers_alone(source: Checkpoint, model: Any) -> None:
    before = model.SerializeToString()
    found = quantised(model, {"encoder.blocks.1.mlp.up": (-3.0, 5.0)})
    assert model.SerializeToString() == before
    assert sum(node.op_type == "QuantizeLinear" for node in found.graph.node) == 1
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in found.graph.initializer}
    assert stored["encoder.blocks.1.mlp.up.input_rounded.zero"] == 96  # 3 of 8 in 255 steps
    assert stored["encoder.blocks.1.mlp.up.input_rounded.scale"] == np.float32(8 / 255)
    weight = source.model.encoder.blocks[1].mlp.up.weight.detach().numpy()  # type: ignore[union-attr]
    rebuilt = stored["encoder.blocks.1.mlp.up.weight"] * stored["encoder.blocks.1.mlp.up.weight.scale"]
    assert np.abs(rebuilt.T - weight).max() <= np.abs(weight).max() / 127 / 2 + 1e-6


@pytest.mark.parametrize("axis", [0, 1])
def test_every_channel_of_a_weight_has_its_own_scale(axis: int) -> None:
    weight = np.array([[0.5, -1.0, 0.25], [0.0, 0.0, 0.0], [100.0, 254.0, -127.0]], np.float32)  # (out, in)
    whole, scales = int8_weight(weight if axis == 0 else weight.T, axis)
    np.testing.assert_allclose(scales, [1 / 127, 1.0, 2.0], rtol=1e-6)
    assert (whole if axis == 0 else whole.T).tolist() == [[64, -127, 32], [0, 0, 0], [50, 127, -64]]
    assert whole.dtype == np.int8


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_network_to_compare_with_rounds_inputs_and_weights(symmetric: bool, source: Checkpoint) -> None:
    pixels = torch.randn(4, 3, 32, 32)
    ranges = ranges_of(source, pixels)
    with torch.no_grad():
        found = fake_quantise(source.model, QuantPlan("fp32", ranges), symmetric)(pixels)
    torch.testing.assert_close(found, by_hand(ranges, pixels, symmetric), rtol=0, atol=1e-5 * float(found.abs().max()))
    assert isinstance(source.model.get_submodule("encoder.blocks.0.mlp.up"), nn.Linear)  # left as it was


@pytest.mark.parametrize(
    "ranges, words",
    [
        ({}, "no layer named"),
        ({"encoder.blocks.0.mlp.upp": (0.0, 1.0)}, "did you mean 'encoder.blocks.0.mlp.up'"),
        ({"encoder.blocks.0.mlp.up": (1.0, 0.0)}, "least, largest"),
        ({"encoder.blocks.0.mlp.up": (0.0, float("nan"))}, "finite"),
    ],
)
def test_wrong_ranges_are_told(ranges: dict[str, tuple[float, float]], words: str, model: Any) -> None:
    with pytest.raises(InputError, match=words):
        quantised(model, ranges)


def test_an_int8_file_may_be_twice_as_far_as_rounding_moves_the_answers_and_no_further(
    source: Checkpoint, ready: Prepared
) -> None:
    pixels = torch.randn(4, 3, 32, 32)
    seen = ranges_of(source, pixels)
    layers = {name: ends for name, ends in seen.items() if name.startswith("encoder")}
    wide = {name: (low * 9, high * 9) for name, (low, high) in layers.items()}
    narrow = {name: (low / 4, high / 4) for name, (low, high) in layers.items()}
    exact = ready.network
    one = {name: ends for name, ends in seen.items() if name == "encoder.blocks.0.mlp.up"}
    coarsest, coarse, fine = (_rounding(exact, each, False) for each in (narrow, wide, one))
    case = [CheckCase(2, (32, 32))]
    dice = np.random.default_rng(0)
    images = tuple(dice.integers(0, 256, (32, 32, 3), np.uint8) for _ in range(2))
    yours, made_up = ExampleInputs(source.preprocess, "float", images), ExampleInputs(source.preprocess, "float")

    def beyond(network: Any, share: float) -> Run:
        """A file whose embeddings are off as rounding is, times a share; all else follows from them."""

        def run(img: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
            a, b = (each(torch.from_numpy(img))[1] for each in (network, exact))
            embedding = a + share * (b - a)
            logits = exact.model.head(embedding)
            return [each.detach().numpy() for each in (logits, embedding, exact.probabilities(logits))]

        return run

    def differ(network: Any, share: float, inputs: ExampleInputs = yours) -> float:
        return compare(beyond(network, share), network, inputs, case, within, exact)[0].difference

    within = tolerance(replace(ready.contents, precision="int8"))
    with pytest.raises(CheckpointError, match="at most 30 % is allowed"):  # however far rounding moves the answers
        differ(coarsest, 1.4)
    moved = differ(coarse, 1.0)
    assert 0.05 / 2 < moved < 0.15
    assert differ(coarse, 1.98) == pytest.approx(1.98 * moved, rel=1e-3)
    assert differ(coarse, 0.98, made_up) > 0.05
    with pytest.raises(CheckpointError, match="random pixels"):  # both clip them alike: they may not be further apart
        differ(coarse, 1.02, made_up)
    with pytest.raises(CheckpointError, match="not exported: .* is allowed"):
        differ(coarse, 2.02)
    allowed = 0.05 / differ(fine, 1.0)
    assert allowed > 2
    differ(fine, 0.98 * allowed)
    with pytest.raises(CheckpointError, match="at most 5 % is allowed"):
        differ(fine, 1.02 * allowed)
