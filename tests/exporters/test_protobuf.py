"""Bytes of ONNX files: fields, checksums, and all that our exports never hold; of models of a few bytes."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from vitrail.errors import CheckpointError
from vitrail.exporters import protobuf
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


# ---- models ------------------------------------------------------------------------------------------------------
