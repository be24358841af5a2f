"""An ONNX model in float32 and the ranges of its layers' inputs -> the same model in int8, said by explicit nodes.

QuantizeLinear and DequantizeLinear stand before a layer's input, DequantizeLinear behind its stored int8 weight: what
ONNX Runtime, OpenVINO and TensorRT read alike. Layers go by their names in the network: "encoder.blocks.3.mlp.up".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from onnx import helper, numpy_helper

from vitrail.errors import InputError, nearest
from vitrail.exporters.onnx import LAYERS
from vitrail.quantisation.quant_params import Int8Weight, QuantParams
from vitrail.types import Array

_WEIGHT: Final = ".weight"


def layers_of(model: Any) -> tuple[str, ...]:
    """The linear layers of an exported model that can be quantised, in the order they run."""
    return tuple(_nodes(model))


def quantised(model: Any, ranges: Mapping[str, tuple[float, float]], *, symmetric: bool = False) -> Any:
    """A copy of the model (an onnx.ModelProto) whose layers named in `ranges` compute in int8.

    A range is the least and the largest value that goes into the layer. Activations get uint8 steps, one scale a
    tensor, or int8 about 0 where `symmetric`; weights int8 about 0, one scale an output channel.
    """
    _check(model, ranges)
    copy = type(model)()
    copy.CopyFrom(model)
    nodes, stored = _nodes(copy), {each.name: each for each in copy.graph.initializer}
    rounded: dict[tuple[str, QuantParams], str] = {}
    before: dict[str, list[Any]] = {}  # new nodes, by the name of the one they stand before
    for layer, (low, high) in ranges.items():
        node = nodes[layer]
        new = before.setdefault(node.name, [])
        params = QuantParams.of_range(float(low), float(high), symmetric)
        key = (node.input[0], params)
        if key not in rounded:
            rounded[key] = f"{layer}.input_rounded"
            new += _rounding(copy, node.input[0], rounded[key], params)
        axis = 1 if node.op_type == "MatMul" else 0  # of the output channels: (in, out), or (out, in) in a Gemm
        weight = stored[layer + _WEIGHT]
        values, scales = int8_weight(np.array(numpy_helper.to_array(weight)), axis)
        weight.CopyFrom(numpy_helper.from_array(values, layer + _WEIGHT))
        new.append(_dequantize(copy, layer, scales, axis))
        node.input[0], node.input[1] = rounded[key], f"{layer}{_WEIGHT}_rounded"
    ordered = [part for node in copy.graph.node for part in (*before.get(node.name, ()), node)]
    kept = [type(each).FromString(each.SerializeToString()) for each in ordered]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return copy


def int8_weight(weight: Array, axis: int) -> tuple[Array, Array]:
    """int8 values about 0 and the scale of every output channel, which lie along this axis of the weight."""
    by_output = weight if axis == 0 else weight.T
    values, scales = Int8Weight.of(torch.from_numpy(by_output))
    return np.ascontiguousarray(values.numpy() if axis == 0 else values.numpy().T), scales.numpy()


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


def _rounding(model: Any, source: str, out: str, params: QuantParams) -> list[Any]:
    """Quantise and back, for an activation."""
    scale, zero = f"{out}.scale", f"{out}.zero"
    _store(model, scale, np.array(params.scale, np.float32))
    _store(model, zero, np.array(params.zero_point, np.int8 if params.signed else np.uint8))
    integers = f"{out}.integers"
    return [
        helper.make_node("QuantizeLinear", [source, scale, zero], [integers], name=integers),
        helper.make_node("DequantizeLinear", [integers, scale, zero], [out], name=out),
    ]


def _dequantize(model: Any, layer: str, scales: Array, axis: int) -> Any:
    weight = layer + _WEIGHT
    _store(model, f"{weight}.scale", scales)
    _store(model, f"{weight}.zero", np.zeros(len(scales), np.int8))
    inputs, out = [weight, f"{weight}.scale", f"{weight}.zero"], f"{weight}_rounded"
    return helper.make_node("DequantizeLinear", inputs, [out], name=out, axis=axis)


def _store(model: Any, name: str, value: Array) -> None:
    model.graph.initializer.append(numpy_helper.from_array(value, name))
