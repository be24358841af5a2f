"""The verb export: a file for another runtime, checked there."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.checks import join_limited
from vitrail.cli.application import app
from vitrail.cli.budget_images import images_for
from vitrail.cli.options import (
    AsJson,
    BudgetData,
    CheckpointPath,
    Force,
    LeaveOut,
    MaxDrop,
    Override,
    Unlabelled,
    offer,
)
from vitrail.cli.terminal import busy, complain, print_json, refuse_overwrite, say, show, size_of, table_of
from vitrail.cli.weights import load_checkpoint
from vitrail.errors import InputError
from vitrail.exporters import TARGETS, check_precision, file_names, target_of

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint
    from vitrail.evaluation import Score
    from vitrail.exporters.exported import Exported
    from vitrail.exporters.exporter import ExportReport
    from vitrail.quantisation.quantiser import Quantised, RuntimeProof


@app.command("export")
def export_checkpoint(
    checkpoint: CheckpointPath,
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help=f"{file_names()}; or NAME.safetensors, packed."),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", help=f"One of: {', '.join(TARGETS)}; default: by the ending of OUT.", autocompletion=offer(TARGETS)
        ),
    ] = "",
    dynamic_size: Annotated[
        bool, typer.Option("--dynamic-size", help="Let the file take images of any size that divides into patches.")
    ] = False,
    as_bytes: Annotated[
        bool, typer.Option("--bytes", help="Let the file take 8-bit values and normalise them itself.")
    ] = False,
    resize_inside: Annotated[
        bool, typer.Option("--resize-inside", help="Let the file take images of any size and resize them itself.")
    ] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Compute in 8 bits, as far as --max-drop allows.")] = False,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="Compute in bf16 (.xml, .safetensors), if --max-drop holds.")
    ] = False,
    data: BudgetData = "",
    max_drop: MaxDrop = 0.5,
    symmetric: Annotated[bool, typer.Option("--symmetric", help="Make int8 symmetric, as TensorRT wants it.")] = False,
    unlabelled: Unlabelled = False,
    override: Override = None,
    leave_out: LeaveOut = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a file for another runtime, run it there, and say how equal its answers are.

    OUT as NAME.safetensors is a packed network for this machine's processor.
    """
    from vitrail.exporters.exporter import export

    if int8 and bf16:
        raise InputError("--int8 and --bf16: choose one of them")
    target = target_of(out)
    if target is not None and (int8 or bf16):
        check_precision(target, "int8" if int8 else "bf16")
    if target is None and out.suffix != ".safetensors":
        raise InputError(f"expected {file_names()}; or NAME.safetensors, got {out.name!r}")
    if target is None:
        from vitrail.packed import check_overwrite

        check_overwrite(out)
    refuse_overwrite(force, *([out] if target is None else target.files(out)))
    loaded = load_checkpoint(checkpoint, override, leave_out)
    quantised = None
    if int8 or bf16:
        from vitrail.quantisation.quantiser import quantise

        source = images_for(loaded, checkpoint, data, unlabelled)
        precision = "int8" if int8 else "bf16"
        with busy(f"finding what may be {precision} within the budget"):
            quantised = quantise(loaded, source, precision=precision, max_drop=max_drop, log=complain)
    elif data or unlabelled or symmetric:
        raise InputError("--data, --unlabelled and --symmetric are for --int8 or --bf16: add one of them")
    if target is None:
        if to or dynamic_size or as_bytes or resize_inside or symmetric:
            raise InputError("a packed network takes pixels and bytes of any size already: leave the other options out")
        _write_packed(loaded, quantised, out, as_json)
        return
    proofs: list[RuntimeProof] = []

    def write(quantised: Quantised | None) -> ExportReport:
        return export(
            loaded if quantised is None else quantised.checkpoint,
            out,
            to=to,
            dynamic_size=dynamic_size,
            pixels="bytes" if as_bytes or resize_inside else "float",
            resize_inside=resize_inside,
            plan=None if quantised is None else quantised.plan,
            symmetric=symmetric,
            images=None if quantised is None else quantised.choosing.images.images,
            measure=None if quantised is None else _measuring(quantised, proofs),
        )

    with busy(f"exporting {checkpoint}"):
        report = write(None) if quantised is None else quantised.carry_out(write, complain)
    if as_json:
        print_json(report.to_dict() | ({each.quantised.plan.name: each.to_dict() for each in proofs}))
        return
    for proof in proofs:
        _show(proof)
    _show_report(report)


def _write_packed(loaded: Checkpoint, quantised: Quantised | None, out: Path, as_json: bool) -> None:
    from vitrail.packed import Packed, pack_checkpoint, save_packed

    proof = None
    if quantised is None:
        base, runtime = loaded, Packed(loaded)
    else:

        def pack(quantised: Quantised) -> tuple[Checkpoint, Packed, RuntimeProof]:
            runtime = pack_checkpoint(quantised.checkpoint, quantised.plan)
            proof = quantised.judge_runtime(runtime, "packed", runtime.weight_bytes, runtime.notes)
            return quantised.checkpoint, runtime, proof

        base, runtime, proof = quantised.carry_out(pack, complain)
    measured = {} if proof is None else proof.to_dict()
    save_packed(runtime, base, out, measured)
    for note in runtime.notes:
        complain(note)
    size = out.stat().st_size
    if as_json:
        print_json({"out": str(out), "format": "packed", "bytes": size, "precision": runtime.precision} | measured)
        return
    if proof is not None:
        _show(proof)
    say(f"written           {out} (packed {runtime.precision}, {size_of(size)}); opened again, it answers the same")
    say(f"try it            vitrail predict {out} IMAGE")


def _measuring(quantised: Quantised, proofs: list[RuntimeProof]) -> Callable[[Exported], Mapping[str, Any]]:
    """Judges a file by itself, on the same images and under the same budget; what it is worth goes into the file."""

    def measure(opened: Exported) -> Mapping[str, Any]:
        proofs.append(quantised.judge_runtime(opened, opened.contents.target, opened.weight_bytes))
        return proofs[-1].to_dict()

    return measure


def _show(proof: RuntimeProof) -> None:
    from vitrail.reporting.html_page import counted

    before, after, quantised = proof.before, proof.after, proof.quantised
    drop = after.result.drop
    packed = proof.runtime == "packed"
    table = table_of("", "before", "after")
    for name, old, new in (
        ("accuracy", *(_percent(each.result.accuracy) for each in (before, after))),
        ("points lost", "", f"{drop.value:+.2f} ({drop.low:+.2f} to {drop.high:+.2f})"),
        ("same answers", "", f"{100 * after.result.agreement:.1f} %"),
        ("ms an image", f"{before.milliseconds:.4g}", f"{after.milliseconds:.4g}"),
        ("weights in memory" if packed else "weights, file", *map(size_of, (before.weight_bytes, after.weight_bytes))),
    ):
        table.add_row(name, old, new)
    show(table)
    how = "packed" if packed else f"by {proof.runtime}"
    say(f"speed             {proof.speed:.2f} times, {how} on this machine, measured in turn; intervals are of 95 %")
    if quantised.plan.int8:
        kept = join_limited([each.name for each in quantised.kept], ", ")
        say(f"int8              {counted(len(quantised.plan.int8), 'layer')}; in higher precision: {kept or 'none'}")
    say(f"images            {quantised.words}")


def _percent(score: Score) -> str:
    return f"{100 * score.value:.1f} % ({100 * score.low:.1f} to {100 * score.high:.1f} %)"


def _share(difference: float) -> str:
    return f"{100 * difference:.2g} %" if difference >= 1e-3 else f"{difference:.1e}"


def _show_report(report: ExportReport) -> None:
    say(f"written           {report.out} ({report.format}, {size_of(report.bytes)}, {report.seconds:.0f} s)")
    for name, kind in report.inputs.items():
        say(f"input             {name}: {kind}")
    say(f"outputs           {', '.join(report.outputs)}")
    table = table_of(f"compared with the network on {report.compared_on}", "size", "largest difference")
    for each in report.checks:
        images = "1 image" if each.batch == 1 else f"{each.batch} images"
        table.add_row(
            images, f"{each.height}x{each.width}", f"{_share(each.difference)} of the {report.share_of} value"
        )
    show(table)
    if report.pixels is not None:
        say(
            f"pixels            made inside differ from Preprocess's by at most {report.pixels.largest:.2g} of 255 "
            f"({100 * report.pixels.share:.2g} % of them by half a step or more)"
        )
    say(f"try it            vitrail predict {shlex.quote(report.out)} IMAGE")
