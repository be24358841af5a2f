"""Bytes of ONNX files: fields, checksums, and all that our exports never hold; of models of a few bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from vitrail.errors import CheckpointError
from vitrail.exporters import onnx_file, protobuf
from vitrail.exporters.digest import digest_of
from vitrail.exporters.protobuf import BYTES, VARINT, Field, fields, numbers, varint, written


def view(raw: bytes) -> memoryview:
    return memoryview(raw)


# ---- numbers and lengths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -5, -(2**63)])
def test_numbers_are_read_as_protobuf_writes_them(value: int) -> None:
    """One by one or packed together, negative ones too."""
    packed = TensorProto(int64_data=[value, 7]).SerializeToString()  # field 7, packed
    [field] = fields(view(packed), 0, len(packed), "x")
    assert (field.number, field.kind) == (7, BYTES)
    assert numbers(view(packed), field, "x") == [value, 7]
    single = TensorProto(dims=[value]).SerializeToString()  # field 1, one by one
    [field] = fields(view(single), 0, len(single), "x")
    assert field.kind == VARINT
    assert numbers(view(single), field, "x") == [value]


def test_numbers_without_end_are_refused() -> None:
    assert varint(view(b"\xff" * 9 + b"\x01"), 0, 10, "x") == (2**64 - 1, 10)
    for raw in (b"", b"\x80", b"\xff" * 10, b"\xff" * 11 + b"\x01"):
        with pytest.raises(CheckpointError, match="x is cut short or damaged"):
            varint(view(raw), 0, len(raw), "x")


@pytest.mark.parametrize("kind, content", [(1, bytes(8)), (5, bytes(4)), (BYTES, b"\x03abc")])
def test_lengths_that_lead_out_of_a_message_are_refused(kind: int, content: bytes) -> None:
    """Out of the message, though not out of the file: what stands behind it belongs to another."""
    raw = bytes([3 << 3 | kind]) + content
    [field] = fields(view(raw + b"behind"), 0, len(raw), "x")
    assert (field.number, field.kind, field.stop) == (3, kind, len(raw))
    with pytest.raises(CheckpointError, match="x is cut short or damaged"):
        list(fields(view(raw + b"behind"), 0, len(raw) - 1, "x"))


@pytest.mark.parametrize("tag", [3 << 3 | 3, 3 << 3 | 4, 3 << 3 | 6, 3 << 3 | 7, 0 << 3 | VARINT])
def test_kinds_that_no_one_writes_are_refused(tag: int) -> None:
    raw = bytes([tag, 0])
    with pytest.raises(CheckpointError, match="x is cut short or damaged"):
        list(fields(view(raw), 0, 2, "x"))


def test_messages_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "MOST_FIELDS", 5)
    raw = bytes([1 << 3, 1])
    assert list(fields(view(raw * 5), 0, 10, "x"))[-1] == Field(1, VARINT, 1, 9, 10)
    with pytest.raises(CheckpointError, match="refused, a message of more than 5 fields"):
        list(fields(view(raw * 6), 0, 12, "x"))


def test_what_is_written_is_read() -> None:
    for length in (0, 1, 127, 128, 40_000):
        raw = written(200, b"x" * length)
        [field] = fields(view(raw), 0, len(raw), "x")
        assert (field.number, field.kind, raw[field.start : field.stop]) == (200, BYTES, b"x" * length)


def test_a_checksum_stays_what_it_was() -> None:
    """Files outlive versions: a SHA-256 over those of pieces of 8 MiB, each part in pieces of its own."""

    def sha(*pieces: bytes) -> str:
        return hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()

    long = bytes(range(256)) * 40_000  # 10,240,000 bytes
    assert digest_of(long) == sha(long[: 8 << 20], long[8 << 20 :])
    assert digest_of(b"a", long, b"b") == sha(b"a", long[: 8 << 20], long[8 << 20 :], b"b")
    assert digest_of(long[: 8 << 20]) == sha(long[: 8 << 20])
    assert digest_of(b"") == sha()


# ---- models ------------------------------------------------------------------------------------------------------


def model(change: Callable[[Any], object] = lambda model: None) -> memoryview:
    """The smallest that is like ours: a weight, a constant, and a description."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 3], [1.0] * 6)
    constant = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.INT64, [2], [4, 5]))
    found = helper.make_model(helper.make_graph([constant], "g", [], [], [weight]))
    found.metadata_props.add(key="vitrail", value="words")
    change(found)
    return view(found.SerializeToString())


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
        onnx_file.metadata(view(twice), "x")


@pytest.mark.fault("W16")
def test_a_seal_holds_every_byte() -> None:
    body = bytes(model())
    good = body + onnx_file.seal(digest_of(body))
    onnx_file.check_seal(view(good), "x")
    for place in range(0, len(good), 7):
        bad = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
        with pytest.raises(CheckpointError, match="x (is damaged|has no checksum)"):
            onnx_file.check_seal(view(bad), "x")
