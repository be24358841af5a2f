"""A traced graph -> NAME.xml and NAME.bin for OpenVINO, with our description and a checksum over both inside."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import torch

from vitrail.errors import CheckpointError, InputError, MissingExtraError
from vitrail.exporters import onnx
from vitrail.exporters.export_graph import Graph
from vitrail.inference import openvino_file
from vitrail.inference.digest import digest_of
from vitrail.inference.export_info import Contents
from vitrail.inference.quiet import quietly


def openvino_model(
    graph: Graph, program: torch.export.ExportedProgram, contents: Contents, change: Callable[[Any], Any]
) -> Any:
    """The model (an openvino.Model): by way of ONNX, which is quick, or directly where that is too large for ONNX.

    `change` is done to the ONNX model on the way.
    """
    try:
        import openvino
    except ImportError:
        raise MissingExtraError("exporting to OpenVINO needs it: pip install 'vitrail[openvino,onnx]'") from None
    if onnx.fits(graph):
        return openvino.Core().read_model(change(onnx.onnx_model(graph, program, onnx.FREE)).SerializeToString())
    if contents.in_int8:
        raise InputError("int8 goes by way of ONNX, and this network is too large for one ONNX file: leave int8 out")
    with quietly():
        model = openvino.convert_model(program)
    free = contents.dynamic_size or contents.resize_inside
    size = (-1, -1) if free else contents.size
    shape = (-1, *size, contents.channels) if contents.pixels == "bytes" else (-1, contents.channels, *size)
    model.reshape({model.inputs[0]: list(shape)})
    model.inputs[0].get_tensor().set_names({"img"})
    for output, name in zip(model.outputs, graph.outputs, strict=True):
        output.get_tensor().set_names({name})
    return model


def write_openvino(model: Any, contents: Contents, path: Path) -> None:
    """Write both files, the weights in the precision they have."""
    import openvino

    model.set_rt_info(contents.to_json(), [openvino_file.MARK, openvino_file.DESCRIPTION])
    model.set_rt_info("{}", [openvino_file.MARK, openvino_file.NOTES])  # until there are any
    openvino.save_model(model, str(path), compress_to_fp16=False)
    _seal(path, path.read_bytes())


def add_notes(contents: Contents, path: Path) -> None:
    """Note in a written file what was found out about it, in the place of what it noted before; the graph stays."""
    text = path.read_bytes()[: -openvino_file.SEAL]
    # No text inside a value can look like an entry, for its < is escaped.
    entry = f'<{openvino_file.NOTES} value="{escape(contents.noted_json(), {chr(34): "&quot;"})}"'.encode()
    noted, count = re.subn(rb'<%s value="[^"]*"' % openvino_file.NOTES.encode(), lambda found: entry, text)
    if count != 1:
        raise CheckpointError(f"{path.name} has {count} entries of notes, expected one: export the checkpoint again")
    _seal(path, noted)


def _seal(path: Path, text: bytes) -> None:
    weights = path.with_suffix(".bin").read_bytes()
    path.write_bytes(text + openvino_file.seal(digest_of(text, weights)))
