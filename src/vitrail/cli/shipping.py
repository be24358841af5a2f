"""Verbs that ship: export."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.app import app
from vitrail.cli.terminal import (
    AsJson,
    CheckpointPath,
    LeaveOut,
    Override,
    busy,
    print_json,
    say,
    show,
    size_of,
    table_of,
)
from vitrail.cli.weights import load_checkpoint


@app.command()
def export(
    checkpoint: CheckpointPath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="NAME.onnx, NAME.xml (OpenVINO) or NAME.pt2 (torch).")],
    to: Annotated[str, typer.Option("--to", help="onnx, openvino or torch; by default as OUT is called.")] = "",
    dynamic_size: Annotated[
        bool, typer.Option("--dynamic-size", help="Take pictures of any size that divides into patches.")
    ] = False,
    as_bytes: Annotated[
        bool, typer.Option("--bytes", help="Take 8-bit values, and normalise them inside the graph.")
    ] = False,
    resize_inside: Annotated[
        bool, typer.Option("--resize-inside", help="Take whole pictures of any size, and resize them too.")
    ] = False,
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Write a file for another runtime, run it there, and say how equal its answers are."""
    from vitrail.shipping import export as run

    loaded = load_checkpoint(checkpoint, override, leave_out)
    with busy(f"exporting {checkpoint}"):
        report = run(
            loaded,
            out,
            to=to,
            dynamic_size=dynamic_size,
            pixels="bytes" if as_bytes or resize_inside else "float",
            resize_inside=resize_inside,
        )
    if as_json:
        print_json(report.to_dict())
        return
    say(f"written           {report.out} ({report.format}, {size_of(report.bytes)}, {report.seconds:.0f} s)")
    for name, kind in report.inputs.items():
        say(f"input             {name}: {kind}")
    say(f"outputs           {', '.join(report.outputs)}")
    table = table_of("compared with the network", "size", "largest difference")
    for each in report.checks:
        pictures = "1 picture" if each.batch == 1 else f"{each.batch} pictures"
        table.add_row(pictures, f"{each.height}x{each.width}", f"{each.difference:.1e} of the largest value")
    show(table)
    if report.pixels is not None:
        say(
            f"pixels            made inside differ from Preprocess's by at most {report.pixels.largest:.2g} of 255 "
            f"({100 * report.pixels.share:.2g} % of them by half a step or more)"
        )
    if report.format != "torch" and not resize_inside:
        say(f"try it            vitrail predict {shlex.quote(report.out)} PICTURE")
