"""NAME.xml and NAME.bin: a traced graph -> OpenVINO's files, with our description and a checksum over both inside.

Read by `openvino_file`, run by OpenVINO; torch is needed to write them, and by nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from vitrail.errors import CheckpointError, InputError, import_extra
from vitrail.exporters import onnx, openvino_file
from vitrail.exporters.quiet import quietly
from vitrail.exporters.sealed_file import mapped
from vitrail.exporters.target import OUTPUTS, Compute, Draft, Entries, Session, Target

if TYPE_CHECKING:
    from vitrail.exporters.export_graph import Graph
    from vitrail.exporters.export_info import ExportInfo
    from vitrail.types import Array


def check_bf16(graph: Graph, precision: str) -> None:
    """Refuse bf16 where nothing could verify it."""
    if precision == "bf16" and not multiplies_bf16():
        raise InputError("this processor does not multiply bf16, so a bf16 file could not be verified: leave bf16 out")


def openvino_model(draft: Draft) -> Any:
    """The model (an openvino.Model): by way of ONNX, which is quick, or directly where that is too large for ONNX."""
    openvino = import_extra("exporting to OpenVINO needs it", "openvino,onnx", "openvino")
    graph, contents = draft.graph, draft.contents
    if onnx.fits(graph):
        return openvino.Core().read_model(onnx.quantised_model(draft).SerializeToString())
    if contents.in_int8:
        raise InputError("int8 goes by way of ONNX, and this network is too large for one ONNX file: leave int8 out")
    with quietly():
        model = openvino.convert_model(draft.program)
    free = contents.dynamic_size or contents.resize_inside
    size = (-1, -1) if free else contents.size
    shape = (-1, *size, contents.channels) if contents.pixels == "bytes" else (-1, contents.channels, *size)
    model.reshape({model.inputs[0]: list(shape)})
    model.inputs[0].get_tensor().set_names({"img"})
    for output, name in zip(model.outputs, graph.outputs, strict=True):
        output.get_tensor().set_names({name})
    return model


def write_openvino(draft: Draft, path: Path) -> None:
    """Write both files, the weights in the precision they have."""
    model = openvino_model(draft)
    import openvino

    model.set_rt_info(draft.contents.to_json(), [openvino_file.MARK, openvino_file.DESCRIPTION])
    model.set_rt_info("{}", [openvino_file.MARK, openvino_file.NOTES])  # until there are any
    openvino.save_model(model, str(path), compress_to_fp16=False)
    _seal(path, path.read_bytes())


def add_notes(contents: ExportInfo, path: Path) -> None:
    """Note in a written file what was found out about it, in the place of what it noted before; the graph stays."""
    text = path.read_bytes()[: -openvino_file.SEAL.size]
    # No text inside a value can look like an entry, for its < is escaped.
    entry = f'<{openvino_file.NOTES} value="{escape(contents.noted_json(), {chr(34): "&quot;"})}"'.encode()
    noted, count = re.subn(rb'<%s value="[^"]*"' % openvino_file.NOTES.encode(), lambda found: entry, text)
    if count != 1:
        raise CheckpointError(f"{path.name} has {count} entries of notes, expected one: export the checkpoint again")
    _seal(path, noted)


def _seal(path: Path, text: bytes) -> None:
    weights = path.with_suffix(".bin").read_bytes()
    path.write_bytes(text + openvino_file.SEAL.of(text, weights))


# ---- read and run --------------------------------------------------------------------------------------------------


def read_openvino(path: Path) -> Entries:
    with mapped(path) as text, mapped(path.with_suffix(".bin")) as weights:
        openvino_file.SEAL.check(text, str(path), openvino_file.AGAIN, weights)
        metadata = openvino_file.metadata(text, len(weights), str(path))
        return Entries(metadata.get(openvino_file.DESCRIPTION, ""), metadata.get(openvino_file.NOTES, ""))


def import_openvino() -> Any:
    return import_extra("NAME.xml runs in OpenVINO", "openvino", "openvino")


@cache
def _core(runtime: Any) -> Any:
    """One for the whole process, never taken down.

    OpenVINO 2026.4 gives the thread another stack for signals when a core first compiles, and puts the one before it
    back when the core goes: of two cores, the second to go puts back the first one's, whose memory is gone, and the
    next signal that has a handler ends the process.
    """
    core = runtime.Core()
    core.set_property({"ENABLE_MMAP": True})
    return core


@cache
def multiplies_bf16() -> bool:
    """Whether OpenVINO takes bf16, and this processor multiplies it: OpenVINO would imitate it on AVX-512 alone."""
    if "BF16" not in _core(import_openvino()).get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return False
    try:
        flags = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:  # no Linux: OpenVINO's word is all there is
        return True
    return "avx512_bf16" in flags or "amx_bf16" in flags


def start_openvino(runtime: Any, path: Path, contents: ExportInfo, how: Session) -> Compute:
    import numpy as np

    try:
        core = _core(runtime)
        # Left alone, OpenVINO computes in bf16 wherever the processor can: float32 files were verified in float32.
        half = contents.in_bf16 and multiplies_bf16()
        settings = {"INFERENCE_PRECISION_HINT": "bf16" if half else "f32", "PERFORMANCE_HINT": "LATENCY"}
        if how.threads:
            settings["INFERENCE_NUM_THREADS"] = str(how.threads)
        compiled = core.compile_model(core.read_model(str(path)), "CPU", settings)
        for name in OUTPUTS:
            compiled.output(name)
        request, turn = compiled.create_infer_request(), Lock()  # one request serves one thread at a time
    except RuntimeError as error:
        raise CheckpointError(f"OpenVINO refuses {path}: {error}") from None

    def compute(img: Array, outputs: Sequence[str]) -> Sequence[Array]:
        try:
            with turn:
                results = request.infer({"img": img}, share_inputs=True)
                return [np.array(results[each]) for each in outputs]  # copies: the request writes over its own
        except RuntimeError as error:
            raise InputError(f"OpenVINO could not run {path.name} on {img.shape}: {error}") from None

    return compute


OPENVINO: Final = Target(
    name="openvino",
    suffix=".xml",
    runtime="OpenVINO",
    precisions=("fp32", "bf16", "int8"),
    beside=(".bin",),
    check=check_bf16,
    write=write_openvino,
    add_notes=add_notes,
    read=read_openvino,
    import_runtime=import_openvino,
    start=start_openvino,
)
