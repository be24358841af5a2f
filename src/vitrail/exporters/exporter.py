"""export: a checkpoint -> a file for another runtime, with all that its use needs inside, run and compared first."""

from __future__ import annotations

import copy
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_choice, check_type
from vitrail.errors import CheckpointError, InputError, nearest
from vitrail.exporters import onnx, openvino
from vitrail.exporters import torch_program as torch_export
from vitrail.exporters.export_graph import Graph, build_graph, example
from vitrail.exporters.input_stage import Entrance
from vitrail.exporters.qdq import quantised
from vitrail.exporters.verification import PixelCheck, Run, cases, compare, compare_pixels, tolerance
from vitrail.files import path_text, reason, sync_folder
from vitrail.inference.export_info import PIXELS, TARGETS, Check, Contents
from vitrail.inference.exported import Exported, multiplies_bf16, open_exported, read_exported
from vitrail.inference.quiet import quietly
from vitrail.quantisation.fake_quant import fake_quantise
from vitrail.quantisation.quant_plan import QuantPlan, Range

SUFFIXES: Final = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2"}
_MOST_BATCH: Final = 1 << 16
_MOST_CELLS: Final = 4096  # along a side that is free


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how it was verified."""

    out: str
    format: str
    bytes: int
    inputs: dict[str, str]  # name -> kind and shape, free sides by name
    outputs: tuple[str, ...]
    checks: tuple[Check, ...]  # each compared with the network itself
    pixels: PixelCheck | None  # where the graph makes pixels of bytes: compared with Preprocess
    seconds: float

    @property
    def largest_difference(self) -> float:
        return max(each.difference for each in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {name: getattr(self, name) for name in ("out", "format", "bytes", "inputs", "seconds")}
        return plain | {
            "outputs": list(self.outputs),
            "checks": [each._asdict() for each in self.checks],
            "pixels": None if self.pixels is None else self.pixels._asdict(),
            "largest_difference": self.largest_difference,
        }


def export(
    checkpoint: Checkpoint,
    out: str | os.PathLike[str],
    *,
    to: str = "",
    dynamic_size: bool = False,
    pixels: str = "float",
    resize_inside: bool = False,
    int8: Mapping[str, Range] | None = None,
    symmetric: bool = False,
    bf16: bool = False,
    measure: Callable[[Exported], Mapping[str, Any]] | None = None,
) -> ExportReport:
    """Write NAME.onnx (ONNX), NAME.xml with NAME.bin (OpenVINO) or NAME.pt2 (torch.export).

    The batch is always free; with `dynamic_size` height and width are too, in whole patches. With pixels="bytes" the
    graph takes 8-bit values and normalises them, with `resize_inside` whole images of any size. The file is run in
    its own runtime and compared with the network; one that differs is an error, and nothing is left behind.

    `int8` names layers and the ranges of what they receive, as calibration finds them: they compute in int8, by
    explicit nodes, `symmetric` ones for TensorRT; the file is then compared with a network that rounds in the same
    places. With `bf16` all else computes in bf16, by OpenVINO on a processor that can.

    `measure` is given the file, opened in its own runtime, before it gets its name: what it returns is written into the
    file as its measurements; what it raises is raised, and nothing is left behind.
    """
    start = time.perf_counter()
    check_type("checkpoint", checkpoint, Checkpoint, error=InputError)
    path = Path(path_text(out))
    target = _target(path, to)
    check_choice("pixels", pixels, PIXELS)
    if resize_inside and (pixels != "bytes" or dynamic_size):
        raise InputError("resize_inside makes one size of whole images: it needs pixels='bytes', and no dynamic_size")
    if int8 and target == "torch":
        raise InputError("int8 goes into NAME.onnx, NAME.xml, or a packed NAME.safetensors, not into NAME.pt2")
    if bf16 and target != "openvino":
        raise InputError("bf16 is for NAME.xml, which OpenVINO runs in it, or a packed NAME.safetensors")
    if bf16 and not multiplies_bf16():
        raise InputError("this processor does not multiply bf16, so a bf16 file could not be verified: leave bf16 out")
    ready = prepare(checkpoint, target, dynamic_size=dynamic_size, pixels=pixels, resize_inside=resize_inside)
    if int8:
        ready = ready._replace(
            network=_rounding(ready.network, int8, symmetric),
            exact=ready.network,
            int8=Int8(int8, symmetric),
        )
    if int8 or bf16:
        precision = "+".join(name for name, wanted in (("int8", int8), ("bf16", bf16)) if wanted)
        ready = ready._replace(contents=replace(ready.contents, precision=precision))
    found = _write(path, ready, measure)
    return ExportReport(
        out=str(path),
        format=target,
        bytes=sum(each.stat().st_size for each in _files(path, target)),
        inputs={"img": _shape(ready.contents)},
        outputs=ready.graph.outputs,
        checks=tuple(found),
        pixels=ready.pixels,
        seconds=time.perf_counter() - start,
    )


class Prepared(NamedTuple):
    """All that an export starts from."""

    graph: Graph  # what is written
    network: Graph  # what it is compared with
    contents: Contents
    pixels: PixelCheck | None
    int8: Int8 | None = None
    exact: Graph | None = None  # in int8: the network without


class Int8(NamedTuple):
    """Layers that compute in int8."""

    ranges: Mapping[str, Range]
    symmetric: bool


def _rounding(network: Graph, ranges: Mapping[str, Range], symmetric: bool) -> Graph:
    """The graph that an int8 file is compared with."""
    other = copy.copy(network)
    other._modules = dict(network._modules)
    other.model = fake_quantise(network.model, QuantPlan("fp32", ranges), symmetric)
    return other


def prepare(
    checkpoint: Checkpoint,
    target: str,
    *,
    dynamic_size: bool = False,
    pixels: str = "float",
    resize_inside: bool = False,
) -> Prepared:
    """The graph of a checkpoint for a target, and what will be written about it."""
    entrance = Entrance(checkpoint.preprocess, resize_inside) if pixels == "bytes" else None
    graph, network = build_graph(checkpoint, dynamic_size=dynamic_size, entrance=entrance)
    if target == "onnx":
        onnx.check_size(graph)
    config = checkpoint.model.config
    contents = Contents(
        about=checkpoint.about,
        target=target,
        size=checkpoint.preprocess.size,
        cell=config.cell,
        embedding=config.representation_width or config.pooled_width,
        config=config.to_dict(),
        pixels=pixels,
        dynamic_size=dynamic_size,
        resize_inside=resize_inside,
    )
    made = compare_pixels(entrance, checkpoint.preprocess) if entrance is not None else None
    return Prepared(graph, network, contents, made)


def _target(path: Path, to: str) -> str:
    """The kind of file, by its name unless it is given."""
    known = {suffix: target for target, suffix in SUFFIXES.items()}
    target = to or known.get(path.suffix, "")
    if to and to not in TARGETS:
        raise InputError(f"export to {to!r} is unknown: {nearest(to, TARGETS)}")
    if not target:
        raise InputError(f"expected NAME.onnx, NAME.xml or NAME.pt2, got {path.name!r}")
    if path.suffix != SUFFIXES[target]:
        raise InputError(f"an export to {target} is called NAME{SUFFIXES[target]}, got {path.name!r}")
    return target


def _files(path: Path, target: str) -> list[Path]:
    return [path.with_suffix(".bin"), path] if target == "openvino" else [path]


def _shape(contents: Contents) -> str:
    """The input in words: float32 (batch, 3, 224, 224)."""
    free = contents.dynamic_size or contents.resize_inside
    h, w = ("height", "width") if free else map(str, contents.size)
    if contents.pixels == "bytes":
        return f"uint8 (batch, {h}, {w}, {contents.channels})"
    return f"float32 (batch, {contents.channels}, {h}, {w})"


def trace(graph: Graph, contents: Contents) -> torch.export.ExportedProgram:
    """The graph with its free sides as symbols."""
    (h, w), (p, q) = contents.size, contents.cell
    sides: dict[int, Any] = {0: torch.export.Dim("batch", min=1, max=_MOST_BATCH)}
    first = 1 if contents.pixels == "bytes" else 2
    size = (h, w)
    if contents.resize_inside:
        for side, name in enumerate(("height", "width"), first):
            sides[side] = torch.export.Dim(name, min=1, max=_MOST_BATCH)
        size = (h + 5, w + 3)
    elif contents.dynamic_size:
        rows, columns = (torch.export.Dim(name, min=1, max=_MOST_CELLS) for name in ("rows", "columns"))
        sides[first], sides[first + 1] = p * rows, q * columns
        size = (h + p, w + 2 * q)  # of no size that the network knows: nothing may be read off it
    img = example(contents.about.preprocess, batch=2, size=size, pixels=contents.pixels)
    try:
        with quietly(), torch.no_grad():
            return torch.export.export(graph, (img,), dynamic_shapes=(sides,))
    except Exception as error:  # of many kinds, from deep inside
        said = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"not exported: torch.export cannot trace this network: {said:.300}") from error


def _write(path: Path, ready: Prepared, measure: Callable[[Exported], Mapping[str, Any]] | None) -> list[Check]:
    """Write under another name, run, compare, measure, note what was found, read that, and only then give it its own.

    Notes stand beside the graph: writing them changes no byte of what was compared and measured.
    """
    graph, network, contents, _, int8, exact = ready
    parameters = sum(each.numel() for each in graph.model.parameters())
    step = contents.cell if contents.dynamic_size else (1, 1) if contents.resize_inside else (0, 0)
    wanted = cases(parameters, contents.size, step)
    target = contents.target
    with _named_last(path, target) as temporary:
        program = trace(graph, contents)
        run = _written(target, graph, program, contents, temporary, int8)
        within = tolerance(contents)
        checks = compare(run, network, contents.about.preprocess, wanted, contents.pixels, within, exact)
        measured = {} if measure is None else measure(open_exported(temporary))
        _note(target, replace(contents, checks=tuple(checks), measurements=measured), temporary)
    return checks


def add_measurements(source: Path, out: Path, measurements: Mapping[str, Any]) -> None:
    """A finished NAME.onnx or NAME.xml once more, under another name and with measurements; its graph is the same."""
    before = read_exported(source)
    target = before.target
    with _named_last(out, target) as temporary:
        for file, place in zip(_files(source, target), _files(temporary, target), strict=True):
            shutil.copyfile(file, place)
        _note(target, replace(before, measurements=measurements), temporary)


@contextmanager
def _named_last(path: Path, target: str) -> Iterator[Path]:
    """Another name to write to; what stands there in the end gets its own, and after an error nothing is left."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        for source, place in zip(_files(temporary, target), _files(path, target), strict=True):
            with open(source, "rb") as file:
                os.fsync(file.fileno())
            os.replace(source, place)
        sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(f"could not write {path}: {reason(error)}") from error
    finally:
        for each in _files(temporary, target):
            with suppress(OSError):
                each.unlink()


def _written(
    target: str,
    graph: Graph,
    program: torch.export.ExportedProgram,
    contents: Contents,
    path: Path,
    int8: Int8 | None,
) -> Run:
    """Write the file of a target, and open it in its own runtime."""
    if target == "torch":
        torch_export.write_torch(program, contents, path)
    elif target == "onnx":
        onnx.write_onnx(_in_int8(onnx.onnx_model(graph, program, onnx.FREE), int8), contents, path)
    else:
        model = openvino.openvino_model(graph, program, contents, lambda made: _in_int8(made, int8))
        openvino.write_openvino(model, contents, path)
    opened = open_exported(path)
    return lambda img: opened.compute(img, graph.outputs)


def _in_int8(model: Any, int8: Int8 | None) -> Any:
    return model if int8 is None else quantised(model, int8.ranges, symmetric=int8.symmetric)


def _note(target: str, contents: Contents, path: Path) -> None:
    """Add to the file what was found out about it, and read it once more."""
    {"onnx": onnx, "openvino": openvino, "torch": torch_export}[target].add_notes(contents, path)
    if read_exported(path) != contents:
        raise CheckpointError("not exported: the description does not come back as it was written")
