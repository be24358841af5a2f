"""NAME.onnx -> what is written about it inside, once nothing in the file can lead a runtime astray.

An exported file is an ONNX model whose metadata carries our description, and whose last 84 bytes are one more entry of
that metadata: the checksum of all that stands before it. Read without the onnx package.
"""

from __future__ import annotations

import math
from typing import Final

from vitrail.errors import CheckpointError
from vitrail.exporters.protobuf import BYTES, VARINT, Field, damaged, fields, numbers, text, written
from vitrail.exporters.sealed_file import Seal

DESCRIPTION: Final = "vitrail"  # the key of our JSON in the metadata
NOTES: Final = "vitrail.notes"  # the key of what was found out about the file once it was there
DIGEST: Final = "vitrail.sha256"

# Field numbers of onnx.proto.
_GRAPH, _METADATA, _TRAINING, _FUNCTIONS = 7, 14, 20, 25  # of a model
_NODE, _INITIALIZER, _SPARSE = 1, 5, 15  # of a graph
_ATTRIBUTE = 5  # of a node
_A_TENSOR, _A_GRAPH, _A_TENSORS, _A_GRAPHS, _A_SPARSE, _A_SPARSES = 5, 6, 10, 11, 22, 23  # of an attribute
_DIMS, _TYPE, _RAW, _EXTERNAL, _LOCATION = 1, 2, 9, 13, 14  # of a tensor
_LISTS: Final = {4: 4, 5: 0, 7: 0, 10: 8, 11: 0}  # numbers outside raw_data: bytes of each, 0 for varints

# Bytes of a number by its kind: float, uint8, int8, uint16, int16, int32, int64, bool, float16, double, uint32,
# uint64, bfloat16.
_BYTES: Final = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}


def entry(key: str, value: str) -> bytes:
    """One more entry of a model's metadata; may be appended to a file, for protobuf adds what is repeated."""
    return written(_METADATA, written(1, key.encode()) + written(2, value.encode()))


SEAL: Final = Seal(entry(DIGEST, "0" * 64)[:-64])  # one more entry
AGAIN: Final = "export the checkpoint again with vitrail.export(checkpoint, 'NAME.onnx')"


def metadata(data: memoryview, name: str) -> dict[str, str]:
    """The model's metadata, after a walk through all of it: no data outside the file, every tensor as large as it says.

    What our exports never hold is refused, whatever a runtime would make of it: external data, sparse tensors,
    functions, training graphs, graphs within graphs.
    """
    entries: dict[str, str] = {}
    graphs = 0
    for field in fields(data, 0, len(data), name):
        if field.number == _METADATA:
            key, value = _entry(data, field, name)
            if key in entries:
                raise CheckpointError(f"{name}: refused, {key!r} stands twice in its metadata")
            entries[key] = value
        elif field.number == _GRAPH:
            graphs += 1
            _check_graph(data, _inside(field, name), name)
        elif field.number in (_TRAINING, _FUNCTIONS):
            raise CheckpointError(f"{name}: refused, it holds functions or training graphs, which our exports never do")
    if graphs != 1:
        raise CheckpointError(f"{name}: expected one graph, got {graphs}: it is no ONNX model, or damaged: {AGAIN}")
    return entries


def _entry(data: memoryview, field: Field, name: str) -> tuple[str, str]:
    parts = {1: "", 2: ""}
    for part in fields(data, *_inside(field, name), name):
        if part.number in parts and part.kind == BYTES:
            parts[part.number] = text(data, part, name)
    return parts[1], parts[2]


def _inside(field: Field, name: str) -> tuple[int, int]:
    """Where the content of a message stands."""
    if field.kind != BYTES:
        raise damaged(name)
    return field.start, field.stop


def _check_graph(data: memoryview, span: tuple[int, int], name: str) -> None:
    for field in fields(data, *span, name):
        if field.number == _INITIALIZER:
            _check_tensor(data, _inside(field, name), name)
        elif field.number == _NODE:
            for part in fields(data, *_inside(field, name), name):
                if part.number == _ATTRIBUTE:
                    _check_attribute(data, _inside(part, name), name)
        elif field.number == _SPARSE:
            raise CheckpointError(f"{name}: refused, it holds sparse tensors, which our exports never do")


def _check_attribute(data: memoryview, span: tuple[int, int], name: str) -> None:
    for field in fields(data, *span, name):
        if field.number in (_A_TENSOR, _A_TENSORS):
            _check_tensor(data, _inside(field, name), name)
        elif field.number in (_A_GRAPH, _A_GRAPHS, _A_SPARSE, _A_SPARSES):
            raise CheckpointError(
                f"{name}: refused, it holds a graph within a graph or a sparse tensor, which our exports never do"
            )


def _check_tensor(data: memoryview, span: tuple[int, int], name: str) -> None:
    """As many bytes as the shape asks for, and all of them here."""
    shape: list[int] = []
    kind = raw = 0
    listed: dict[int, int] = {}
    has_raw = False
    for field in fields(data, *span, name):
        if field.number == _DIMS:
            shape += numbers(data, field, name)
        elif field.number == _TYPE and field.kind == VARINT:
            kind = field.value
        elif field.number == _RAW:
            start, stop = _inside(field, name)
            has_raw, raw = True, stop - start
        elif field.number == _EXTERNAL or (field.number == _LOCATION and field.value != 0):
            raise CheckpointError(
                f"{name}: refused, a tensor keeps its data in another file, which an export of ours never does: {AGAIN}"
            )
        elif field.number in _LISTS:
            listed[field.number] = listed.get(field.number, 0) + _count(data, field, name)
    if kind not in _BYTES:
        raise CheckpointError(f"{name}: refused, a tensor of kind {kind}, which our exports never hold")
    if len(shape) > 16 or any(side < 0 for side in shape):
        raise CheckpointError(f"{name}: refused, a tensor of shape {shape[:16]}")
    count = math.prod(shape)
    got = raw // _BYTES[kind] if has_raw else sum(listed.values())
    if got != count or (has_raw and (listed or raw % _BYTES[kind])):
        raise CheckpointError(
            f"{name}: refused, a tensor of shape {tuple(shape)} claims {count:,} numbers, and the file has {got:,} "
            f"of them: {AGAIN}"
        )


def _count(data: memoryview, field: Field, name: str) -> int:
    """How many numbers a field of them holds."""
    width = _LISTS[field.number]
    if field.kind != BYTES:
        return 1
    if width == 0:
        return len(numbers(data, field, name))
    if (field.stop - field.start) % width:
        raise damaged(name)
    return (field.stop - field.start) // width
