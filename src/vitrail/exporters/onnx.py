"""NAME.onnx: a traced graph -> one file with our description inside, its weights under the network's own names.

Read by `onnx_file`, run by ONNX Runtime; torch is needed to write one, and by nothing else.
"""

from __future__ import annotations

import ast
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vitrail.errors import CheckpointError, InputError, import_extra
from vitrail.exporters import onnx_file
from vitrail.exporters.quiet import quietly
from vitrail.exporters.sealed_file import mapped
from vitrail.exporters.target import OUTPUTS, Compute, Draft, Entries, Session, Target

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitrail.exporters.export_graph import Graph
    from vitrail.exporters.export_info import ExportInfo
    from vitrail.types import Array

LARGEST: Final = 2**31 - 1  # bytes: protobuf can hold no more in one file
_ROOM: Final = 16 << 20  # for all that is not weights
FREE: Final = ("batch", "height", "width")  # what free sides are called
LAYERS: Final = ("MatMul", "Gemm")  # what a linear layer may become
_NETWORK: Final = "model."  # before the names of the network's parts in the graph
_SCOPES: Final = "pkg.torch.onnx.name_scopes"  # where the exporter notes the module that a node comes from


def onnx_model(graph: Graph, program: torch.export.ExportedProgram, free: Sequence[str]) -> Any:
    """The ONNX model of a traced graph (an onnx.ModelProto); its free sides are called by the names in `free`."""
    import torch

    wanted = "exporting to ONNX needs onnx and onnxscript"
    onnx = import_extra(wanted, "onnx", "onnx", "onnxscript")  # which torch's exporter stands on
    from vitrail.exporters.onnx_operators import TRANSLATIONS

    try:
        with quietly():
            exported = torch.onnx.export(
                program,
                input_names=["img"],
                output_names=list(graph.outputs),
                dynamo=True,
                external_data=False,
                verbose=False,
                custom_translation_table=TRANSLATIONS,
            )
    except Exception as error:  # of kinds that torch keeps to itself, each the cause of the next
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        raise CheckpointError(f"not exported: torch.onnx cannot write this network: {first!s:.300}") from error
    model = exported.model_proto  # type: ignore[union-attr]
    _name_weights(model, graph.model, onnx.numpy_helper.to_array)
    _strip(model)
    _name_sides(model.graph.input[0], free)
    for output in model.graph.output:
        _name_sides(output, free[:1])
    return model


def fits(graph: Graph) -> bool:
    """Whether the weights go into one file, with room for the rest."""
    return _weights(graph) < LARGEST - _ROOM


def check_size(graph: Graph, precision: str = "fp32") -> None:
    """Refuse at once what cannot become one file."""
    if not fits(graph):
        raise InputError(
            f"the weights take {_weights(graph):,} bytes, and one ONNX file holds at most {LARGEST:,}: export NAME.xml "
            "(OpenVINO) or NAME.pt2 (torch.export) instead"
        )


def _weights(graph: Graph) -> int:
    return sum(each.numel() * each.element_size() for each in graph.state_dict().values())


def quantised_model(draft: Draft) -> Any:
    """The ONNX model of a draft, with explicit nodes where it computes in int8."""
    model = onnx_model(draft.graph, draft.program, FREE)
    if draft.int8 is None:
        return model
    from vitrail.exporters.qdq import quantised

    return quantised(model, draft.int8.ranges, symmetric=draft.int8.symmetric)


def write_draft(draft: Draft, path: Path) -> None:
    write_onnx(quantised_model(draft), draft.contents, path)


def write_onnx(model: Any, contents: ExportInfo, path: Path) -> None:
    """Write the model with its description and checksum."""
    props = model.metadata_props
    del props[:]
    props.add(key=onnx_file.DESCRIPTION, value=contents.to_json())
    try:
        body = model.SerializeToString()
    except Exception as error:  # protobuf's own kind, for more than 2 GB
        raise InputError(f"the model does not fit one ONNX file ({error}): export NAME.xml or NAME.pt2") from None
    with open(path, "wb") as file:
        file.write(body)
        file.write(onnx_file.SEAL.of(body))


def add_notes(contents: ExportInfo, path: Path) -> None:
    """Note in a written file what was found out about it, in the place of what it noted before; the graph stays."""
    with open(path, "r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            before = onnx_file.metadata(view, path.name).get(onnx_file.NOTES)
        old = b"" if before is None else onnx_file.entry(onnx_file.NOTES, before)
        end = file.seek(-onnx_file.SEAL.size - len(old), 2)
        if file.read(len(old)) != old:
            raise CheckpointError(f"{path.name} does not end with its notes: export the checkpoint again")
        file.seek(end)
        file.truncate()
        file.write(onnx_file.entry(onnx_file.NOTES, contents.noted_json()))
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            seal = onnx_file.SEAL.of(data)
        file.write(seal)


def _name_weights(model: Any, network: nn.Module, array_of: Callable[[Any], Array]) -> None:
    """Give every linear layer's weight its name in the network: the exporter turns weights over and numbers them.

    The module that a node says it comes from is believed only if its weight is the one that stands there.
    """
    import numpy as np
    from torch import nn

    initializers = {each.name: each for each in model.graph.initializer}
    linear = {name: each for name, each in network.named_modules() if isinstance(each, nn.Linear)}
    renamed = {name: name.removeprefix(_NETWORK) for name in initializers if name.startswith(_NETWORK)}
    for node in model.graph.node:
        scopes = ast.literal_eval(next((each.value for each in node.metadata_props if each.key == _SCOPES), "[]"))
        layers = [each.removeprefix(_NETWORK) for each in scopes if each.removeprefix(_NETWORK) in linear]
        if node.op_type not in LAYERS or node.input[1] not in initializers or not layers:
            continue
        weight, found = linear[layers[-1]].weight.numpy(), array_of(initializers[node.input[1]])
        if np.array_equal(found, weight.T if node.op_type == "MatMul" else weight):
            renamed[node.input[1]] = f"{layers[-1]}.weight"
    for each in initializers.values():
        each.name = renamed.get(each.name, each.name)
    for node in model.graph.node:
        node.input[:] = [renamed.get(each, each) for each in node.input]
        node.name = node.output[0]


def _strip(model: Any) -> None:
    """Leave out notes about where every node came from: they name files of this machine, and are long."""
    for each in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del each.metadata_props[:]
    del model.graph.metadata_props[:]
    del model.graph.value_info[:]  # onnxruntime's own tools stumble over it
    model.producer_name = "vitrail"
    model.producer_version = ""
    model.doc_string = model.graph.doc_string = ""
    model.graph.name = "vitrail"


def _name_sides(value: Any, names: Sequence[str]) -> None:
    """Free sides called by name, in order."""
    free = [each for each in value.type.tensor_type.shape.dim if not each.HasField("dim_value")]
    for side, name in zip(free, names, strict=False):
        side.dim_param = name


# ---- read and run --------------------------------------------------------------------------------------------------


def read_onnx(path: Path) -> Entries:
    with mapped(path) as data:
        onnx_file.SEAL.check(data, str(path), onnx_file.AGAIN)
        metadata = onnx_file.metadata(data, str(path))
        return Entries(metadata.get(onnx_file.DESCRIPTION, ""), metadata.get(onnx_file.NOTES, ""))


def import_onnxruntime() -> Any:
    return import_extra("NAME.onnx runs in ONNX Runtime", "onnx", "onnxruntime")


def start_onnxruntime(runtime: Any, path: Path, contents: ExportInfo, how: Session) -> Compute:
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    options.intra_op_num_threads = how.threads
    if how.few_images:  # making a second copy of the weights, in another order, pays over many images only
        options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # kinds of its own, none of them public
        raise CheckpointError(f"ONNX Runtime refuses {path}: {error}") from None
    names = [each.name for each in session.get_outputs()]
    inputs = [each.name for each in session.get_inputs()]
    if inputs != ["img"] or any(each not in names for each in OUTPUTS):
        raise CheckpointError(f"{path}: expected the input img and outputs logits and embedding, got {inputs}, {names}")

    def compute(img: Array, outputs: Sequence[str]) -> Sequence[Array]:
        try:
            arrays: Sequence[Array] = session.run(outputs, {"img": img})
        except Exception as error:
            raise InputError(f"ONNX Runtime could not run {path.name} on {img.shape}: {error}") from None
        return arrays

    return compute


ONNX: Final = Target(
    name="onnx",
    suffix=".onnx",
    runtime="ONNX Runtime",
    precisions=("fp32", "int8"),
    check=check_size,
    write=write_draft,
    add_notes=add_notes,
    read=read_onnx,
    import_runtime=import_onnxruntime,
    start=start_onnxruntime,
)
