"""export: a checkpoint -> a file for another runtime, with all that its use needs inside, run and compared first."""

from __future__ import annotations

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
from vitrail.checks import check_choice
from vitrail.errors import CheckpointError, InputError, nearest
from vitrail.exporters import TARGETS, check_precision, file_names, target_of
from vitrail.exporters.example_inputs import ExampleInputs, example, inputs_for
from vitrail.exporters.export_graph import Graph, build_graph
from vitrail.exporters.export_info import PIXELS, Check, ExportInfo
from vitrail.exporters.exported import Exported, read_exported, start_exported
from vitrail.exporters.input_stage import Entrance
from vitrail.exporters.quiet import quietly
from vitrail.exporters.target import Draft, Int8, Target
from vitrail.exporters.verification import PixelCheck, cases, compare, compare_pixels, tolerance
from vitrail.files import path_text, reason
from vitrail.inference.batches import Images
from vitrail.inference.recognisers import CPU, as_checkpoint
from vitrail.quantisation.fake_quant import fake_quantise
from vitrail.quantisation.quant_plan import QuantPlan, Range
from vitrail.reporting.html_page import counted
from vitrail.reporting.object_card import Card
from vitrail.system_calls import replace_file, sync_file, sync_folder

_MOST_BATCH: Final = 1 << 16
_MOST_CELLS: Final = 4096  # along a side that is free
_TOLD: Final = ("out", "format", "bytes", "inputs", "compared_on", "share_of", "seconds")  # of a report, as they are


@dataclass(frozen=True, repr=False)
class ExportReport:
    """What was written, and how it was verified."""

    out: str
    format: str
    bytes: int
    inputs: dict[str, str]  # name -> kind and shape, free sides by name
    outputs: tuple[str, ...]
    checks: tuple[Check, ...]  # each compared with the network itself
    compared_on: str  # your images, or random pixels
    share_of: str  # what differences are shares of: the largest value, or the typical one where the file rounds
    pixels: PixelCheck | None  # where the graph makes pixels of bytes: compared with Preprocess
    seconds: float

    @property
    def largest_difference(self) -> float:
        return max(each.difference for each in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {name: getattr(self, name) for name in _TOLD}
        return plain | {
            "outputs": list(self.outputs),
            "checks": [each._asdict() for each in self.checks],
            "pixels": None if self.pixels is None else self.pixels._asdict(),
            "largest_difference": self.largest_difference,
        }

    def card(self) -> Card:
        """What it says of itself in a REPL and in a notebook."""
        apart = f"at most {self.largest_difference:.1e} of the {self.share_of} value away from the network"
        return Card(
            f"ExportReport: {self.out}, for {self.format}",
            (
                ("file", f"{self.bytes / 1e6:.4g} MB"),
                *((f"input {name}", shape) for name, shape in self.inputs.items()),
                ("outputs", ", ".join(self.outputs)),
                ("compared", f"{counted(len(self.checks), 'time')}, on {self.compared_on}: {apart}"),
            ),
        )

    def __repr__(self) -> str:
        return self.card().as_text()

    def _repr_html_(self) -> str:
        return self.card().as_html()


def export(
    checkpoint: Checkpoint | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    to: str = "",
    dynamic_size: bool = False,
    pixels: str = "float",
    resize_inside: bool = False,
    plan: QuantPlan | None = None,
    symmetric: bool = False,
    images: Images | None = None,
    measure: Callable[[Exported], Mapping[str, Any]] | None = None,
) -> ExportReport:
    """Write a file of one of the `TARGETS`: NAME.onnx, NAME.xml with NAME.bin (OpenVINO), NAME.pt2 (torch.export).

    The batch is always free; with `dynamic_size` height and width are too, in whole patches. With pixels="bytes" the
    graph takes 8-bit values and normalises them, with `resize_inside` whole images of any size. The file is run in
    its own runtime and compared with the network; one that differs is an error, and nothing is left behind.

    The layers that a `plan` names compute in int8, by explicit nodes, `symmetric` ones for TensorRT; the file is then
    compared with a network that rounds in the same places. All else computes in the plan's other precision: bf16 by
    OpenVINO on a processor that can; beside int8 layers a target without bf16 computes it in fp32.

    It is compared on some of `images`, where there are any: an int8 file is true to the network on images like those
    that its ranges were taken from. Without them, on random pixels.

    `measure` is given the file, opened in its own runtime, before it gets its name: what it returns is written into the
    file as its measurements; what it raises is raised, and nothing is left behind.

    - checkpoint: a Checkpoint, the path of one, or a run's folder.
    - out: the file to write: NAME.onnx, NAME.xml or NAME.pt2.
    - to: the target by name, where the ending leaves it open; "": by the ending.
    - dynamic_size: leave height and width free.
    - pixels: "float", or "bytes": 8-bit values, normalised inside.
    - resize_inside: take whole images of any size, resized inside.
    - plan: which layers compute in int8 or bf16; None: all in float32.
    - symmetric: int8 without zero points, as TensorRT has it.
    - images: some to compare the file on; None: random pixels.
    - measure: a function that is given the opened file, and returns what is to be written into it.
    """
    start = time.perf_counter()
    checkpoint = as_checkpoint(checkpoint, CPU)  # what is traced is for other machines
    path = Path(path_text(out))
    target = _target(path, to)
    check_choice("pixels", pixels, PIXELS)
    if resize_inside and (pixels != "bytes" or dynamic_size):
        raise InputError("resize_inside makes one size of whole images: it needs pixels='bytes', and no dynamic_size")
    plan = QuantPlan() if plan is None else plan
    check_precision(target, plan.name)
    bf16 = plan.precision == "bf16" and "bf16" in target.precisions
    ready = prepare(checkpoint, target.name, dynamic_size=dynamic_size, pixels=pixels, resize_inside=resize_inside)
    target.check(ready.graph, "bf16" if bf16 else "fp32")
    if plan.int8:
        ready = ready._replace(
            network=_rounding(ready.network, plan.int8, symmetric),
            exact=ready.network,
            int8=Int8(plan.int8, symmetric),
        )
    if plan.int8 or bf16:
        precision = "+".join(name for name, wanted in (("int8", plan.int8), ("bf16", bf16)) if wanted)
        ready = ready._replace(contents=replace(ready.contents, precision=precision))
    inputs = inputs_for(checkpoint.preprocess, pixels, images)
    checks = _write(path, target, ready, inputs, measure)
    return ExportReport(
        out=str(path),
        format=target.name,
        bytes=sum(each.stat().st_size for each in target.files(path)),
        inputs={"img": _shape(ready.contents)},
        outputs=ready.graph.outputs,
        checks=tuple(checks),
        compared_on=inputs.words,
        share_of=tolerance(ready.contents).scale,
        pixels=ready.pixels,
        seconds=time.perf_counter() - start,
    )


class Prepared(NamedTuple):
    """All that an export starts from."""

    graph: Graph  # what is written
    network: Graph  # what it is compared with
    contents: ExportInfo
    pixels: PixelCheck | None
    int8: Int8 | None = None
    exact: Graph | None = None  # in int8: the network without


def _rounding(network: Graph, ranges: Mapping[str, Range], symmetric: bool) -> Graph:
    """The graph that an int8 file is compared with."""
    rounding = fake_quantise(network.model, QuantPlan("fp32", ranges), symmetric)
    return Graph(rounding, network.about, network.entrance).eval()


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
    config = checkpoint.model.config
    contents = ExportInfo(
        about=checkpoint.about,
        target=target,
        size=checkpoint.preprocess.size,
        cell=config.cell,
        embedding=config.representation_width or config.pooled_width,
        config=config.to_dict(),
        pixels=pixels,
        dynamic_size=dynamic_size,
        resize_inside=resize_inside,
        run=checkpoint.provenance.run,
        source=checkpoint.provenance.source,
    )
    made = compare_pixels(entrance, checkpoint.preprocess) if entrance is not None else None
    return Prepared(graph, network, contents, made)


def _target(path: Path, to: str) -> Target:
    """The kind of file, by its name unless it is given."""
    if to and to not in TARGETS:
        raise InputError(f"export to {to!r} is unknown: {nearest(to, TARGETS)}")
    target = TARGETS[to] if to else target_of(path)
    if target is None:
        raise InputError(f"expected {file_names()}, got {path.name!r}")
    if path.suffix != target.suffix:
        raise InputError(f"an export to {target.name} is called NAME{target.suffix}, got {path.name!r}")
    return target


def _shape(contents: ExportInfo) -> str:
    """The input in words: float32 (batch, 3, 224, 224)."""
    free = contents.dynamic_size or contents.resize_inside
    h, w = ("height", "width") if free else map(str, contents.size)
    if contents.pixels == "bytes":
        return f"uint8 (batch, {h}, {w}, {contents.channels})"
    return f"float32 (batch, {contents.channels}, {h}, {w})"


def trace(graph: Graph, contents: ExportInfo) -> torch.export.ExportedProgram:
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


def _write(
    path: Path,
    target: Target,
    ready: Prepared,
    inputs: ExampleInputs,
    measure: Callable[[Exported], Mapping[str, Any]] | None,
) -> list[Check]:
    """Write under another name, run, compare, measure, note what was found, read that, and only then give it its own.

    Notes stand beside the graph: writing them changes no byte of what was compared and measured.
    """
    graph, network, contents, _, int8, exact = ready
    parameters = sum(each.numel() for each in graph.model.parameters())
    step = contents.cell if contents.dynamic_size else (1, 1) if contents.resize_inside else (0, 0)
    wanted = cases(parameters, contents.size, step)
    with _named_last(path, target) as temporary:
        target.write(Draft(graph, trace(graph, contents), contents, int8), temporary)
        opened = start_exported(temporary, target)
        checks = compare(
            lambda img: opened.compute(img, graph.outputs),
            network,
            inputs,
            wanted,
            tolerance(contents),
            exact,
        )
        measured = {} if measure is None else measure(opened)
        _note(target, replace(contents, checks=tuple(checks), measurements=measured), temporary)
    return checks


def add_measurements(source: Path, out: Path, measurements: Mapping[str, Any]) -> None:
    """A finished export once more, under another name and with measurements; its graph is the same."""
    before = read_exported(source)
    target = TARGETS[before.target]
    with _named_last(out, target) as temporary:
        for file, copied in zip(target.files(source), target.files(temporary), strict=True):
            shutil.copyfile(file, copied)
        _note(target, replace(before, measurements=measurements), temporary)


@contextmanager
def _named_last(path: Path, target: Target) -> Iterator[Path]:
    """Another name to write to; what stands there in the end gets its own, and after an error nothing is left."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        for source, final in zip(target.files(temporary), target.files(path), strict=True):
            sync_file(source)
            replace_file(source, final)
        sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(f"could not write {path}: {reason(error)}") from error
    finally:
        for each in target.files(temporary):
            with suppress(OSError):
                each.unlink()


def _note(target: Target, contents: ExportInfo, path: Path) -> None:
    """Add to the file what was found out about it, and read it once more."""
    target.add_notes(contents, path)
    if read_exported(path, target) != contents:
        raise CheckpointError("not exported: the description does not come back as it was written")
