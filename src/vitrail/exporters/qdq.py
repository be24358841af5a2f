"""An ONNX model in float32 and the ranges of its layers' inputs -> the same model in int8, said by explicit nodes.

QuantizeLinear and DequantizeLinear stand before a layer's input, DequantizeLinear behind its stored int8 weight: what
ONNX Runtime, OpenVINO and TensorRT read alike. Layers go by their names in the network: "encoder.blocks.3.mlp.up".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.errors import InputError, nearest
from vitrail.exporters.onnx import LAYERS

Array = np.ndarray[Any, Any]

_WEIGHT: Final = ".weight"


class Steps(NamedTuple):
    """How numbers become whole ones: value = (whole - zero) * scale."""

    scale: float
    zero: int
    kind: str  # uint8 or int8

    @classmethod
    def of_range(cls, low: float, high: float, symmetric: bool) -> Steps:
        """255 steps over a range, 0 exactly on one of them; TensorRT wants them symmetric about 0."""
        if symmetric:
            return cls(float(np.float32(max(abs(low), abs(high)) / 127 or 1.0)), 0, "int8")
        low, high = min(low, 0.0), max(high, 0.0)
        scale = float(np.float32((high - low) / 255 or 1.0))
        return cls(scale, int(np.clip(np.rint(-low / scale), 0, 255)), "uint8")


def layers_of(model: Any) -> tuple[str, ...]:
    """The linear layers of an exported model that can be quantised, in the order they run."""
    return tuple(_nodes(model))


def quantised(model: Any, ranges: Mapping[str, tuple[float, float]], *, symmetric: bool = False) -> Any:
    """A copy of the model (an onnx.ModelProto) whose layers named in `ranges` compute in int8.

    A range is the least and the largest value that goes into the layer. Activations get uint8 steps, one scale a
    tensor, or int8 about 0 where `symmetric`; weights int8 about 0, one scale an output channel.
    """
    import onnx

    _check(model, ranges)
    copy = type(model)()
    copy.CopyFrom(model)
    nodes, stored = _nodes(copy), {each.name: each for each in copy.graph.initializer}
    made: dict[tuple[str, Steps], str] = {}
    before: dict[str, list[Any]] = {}  # new nodes, by the name of the one they stand before
    for layer, (low, high) in ranges.items():
        node = nodes[layer]
        new = before.setdefault(node.name, [])
        steps = Steps.of_range(float(low), float(high), symmetric)
        key = (node.input[0], steps)
        if key not in made:
            made[key] = f"{layer}.input_rounded"
            new += _rounding(copy, onnx, node.input[0], made[key], steps)
        axis = 1 if node.op_type == "MatMul" else 0  # of the output channels: (in, out), or (out, in) in a Gemm
        weight = stored[layer + _WEIGHT]
        whole, scales = whole_weight(np.asarray(onnx.numpy_helper.to_array(weight)), axis)
        weight.CopyFrom(onnx.numpy_helper.from_array(whole, layer + _WEIGHT))
        new.append(_dequantize(copy, onnx, layer, scales, axis))
        node.input[0], node.input[1] = made[key], f"{layer}{_WEIGHT}_rounded"
    ordered = [part for node in copy.graph.node for part in (*before.get(node.name, ()), node)]
    kept = [type(each).FromString(each.SerializeToString()) for each in ordered]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return copy


def whole_weight(weight: Array, axis: int) -> tuple[Array, Array]:
    """int8 values about 0 and the scale of every output channel; a channel of zeros has scale 1."""
    scales = np.abs(weight).max(axis=1 - axis).astype(np.float32) / np.float32(127)
    scales = np.where(scales > 0, scales, np.float32(1))
    whole = np.rint(weight / np.expand_dims(scales, 1 - axis))
    return np.clip(whole, -127, 127).astype(np.int8), scales


def _nodes(model: Any) -> dict[str, Any]:
    """The node of every layer whose weight is stored under its name."""
    stored = {each.name for each in model.graph.initializer if each.data_type == 1}
    return {
        node.input[1].removesuffix(_WEIGHT): node
        for node in model.graph.node
        if node.op_type in LAYERS and node.input[1] in stored and node.input[1].endswith(_WEIGHT)
    }


def _check(model: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    known = layers_of(model)
    if not ranges:
        raise InputError("no layer named: give the range of at least one layer's input")
    for layer, both in ranges.items():
        if layer not in known:
            raise InputError(f"the model has no linear layer {layer!r} to quantise: {nearest(str(layer), known)}")
        right = len(both) == 2 and all(math.isfinite(each) for each in both) and both[0] <= both[1]
        if not right:
            raise InputError(f"range of {layer}: expected (least, largest), finite numbers, got {both!r:.80}")


def _rounding(model: Any, onnx: Any, source: str, out: str, steps: Steps) -> list[Any]:
    """Quantise and back, for an activation."""
    scale, zero = f"{out}.scale", f"{out}.zero"
    _store(model, onnx, scale, np.array(steps.scale, np.float32))
    _store(model, onnx, zero, np.array(steps.zero, steps.kind))
    whole = f"{out}.whole"
    return [
        onnx.helper.make_node("QuantizeLinear", [source, scale, zero], [whole], name=whole),
        onnx.helper.make_node("DequantizeLinear", [whole, scale, zero], [out], name=out),
    ]


def _dequantize(model: Any, onnx: Any, layer: str, scales: Array, axis: int) -> Any:
    weight = layer + _WEIGHT
    _store(model, onnx, f"{weight}.scale", scales)
    _store(model, onnx, f"{weight}.zero", np.zeros(len(scales), np.int8))
    inputs, out = [weight, f"{weight}.scale", f"{weight}.zero"], f"{weight}_rounded"
    return onnx.helper.make_node("DequantizeLinear", inputs, [out], name=out, axis=axis)


def _store(model: Any, onnx: Any, name: str, value: Array) -> None:
    model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
