"""An ONNX file is read without a library: our words in it, and what no export holds is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from vitrail.errors import CheckpointError
from vitrail.exporters import onnx_file
from vitrail.exporters.protobuf import written


def model(change: Callable[[Any], object] = lambda model: None) -> memoryview:
    """The smallest that is like ours: a weight, a constant, and a description."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 3], [1.0] * 6)
    constant = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.INT64, [2], [4, 5]))
    found = helper.make_model(helper.make_graph([constant], "g", [], [], [weight]))
    found.metadata_props.add(key="vitrail", value="words")
    change(found)
    return memoryview(found.SerializeToString())


def test_a_model_like_ours_is_read() -> None:
    assert onnx_file.metadata(model(), "x") == {"vitrail": "words"}
    raw = bytes(range(24))
    assert onnx_file.metadata(
        model(lambda it: it.graph.initializer.append(TensorProto(dims=[2, 3], data_type=1, raw_data=raw))), "x"
    ) == {"vitrail": "words"}


def tensor(**values: Any) -> Callable[[Any], object]:
    """The weight, changed."""

    def change(it: Any) -> None:
        kept = {"dims": [2, 3], "data_type": TensorProto.FLOAT, "float_data": [1.0] * 6}
        it.graph.initializer[0].CopyFrom(TensorProto(**kept | values))

    return change


def attribute(**values: Any) -> Callable[[Any], object]:
    """An attribute of the node, besides its own."""
    return lambda it: it.graph.node[0].attribute.add(name="more", **values)


BAD = TensorProto(dims=[9], data_type=TensorProto.FLOAT, float_data=[1.0])


@pytest.mark.fault("W16")
@pytest.mark.parametrize(
    "change, words",
    [
        (tensor(data_location=TensorProto.EXTERNAL), "data in another file"),
        (tensor(external_data=[onnx.StringStringEntryProto(key="location", value="w")]), "data in another file"),
        (tensor(dims=[2, 4]), "claims 8 numbers, and the file has 6"),
        (tensor(dims=[2, 2]), "claims 4 numbers, and the file has 6"),
        (tensor(dims=[-2, -3]), "a tensor of shape"),
        (tensor(dims=[1] * 17), "a tensor of shape"),
        (tensor(data_type=TensorProto.STRING, float_data=[], string_data=[b"x"] * 6), "a tensor of kind 8"),
        (tensor(raw_data=bytes(24)), "claims 6 numbers"),  # twice, of which a runtime takes one
        (tensor(float_data=[], raw_data=bytes(25)), "claims 6 numbers"),
        (tensor(float_data=[], raw_data=bytes(20)), "claims 6 numbers, and the file has 5"),
        (attribute(t=BAD), "claims 9 numbers"),
        (attribute(tensors=[TensorProto(dims=[0], data_type=1), BAD]), "claims 9 numbers"),
        (attribute(g=onnx.GraphProto()), "a graph within a graph"),
        (attribute(graphs=[onnx.GraphProto()]), "a graph within a graph"),
        (attribute(sparse_tensor=onnx.SparseTensorProto()), "or a sparse tensor"),
        (attribute(sparse_tensors=[onnx.SparseTensorProto()]), "or a sparse tensor"),
        (lambda it: it.graph.sparse_initializer.add(), "it holds sparse tensors"),
        (lambda it: it.functions.add(name="f"), "functions or training graphs"),
        (lambda it: it.training_info.add(), "functions or training graphs"),
        (lambda it: it.metadata_props.add(key="vitrail", value="other words"), "'vitrail' stands twice"),
        (lambda it: it.ClearField("graph"), "expected one graph, got 0"),
    ],
)
def test_what_no_export_holds_is_refused(change: Callable[[Any], object], words: str) -> None:
    with pytest.raises(CheckpointError, match=f"x: .*{words}"):
        onnx_file.metadata(model(change), "x")


def test_two_graphs_are_refused() -> None:
    twice = bytes(model()) + written(7, b"")
    with pytest.raises(CheckpointError, match="expected one graph, got 2"):
        onnx_file.metadata(memoryview(twice), "x")


@pytest.mark.fault("W16")
def test_a_seal_holds_every_byte() -> None:
    body = bytes(model())
    good = body + onnx_file.SEAL.of(body)
    onnx_file.SEAL.check(memoryview(good), "x", "again")
    for place in range(0, len(good), 7):
        bad = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
        with pytest.raises(CheckpointError, match="x (is damaged|has no checksum)"):
            onnx_file.SEAL.check(memoryview(bad), "x", "again")
